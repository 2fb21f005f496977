"""A small finished run, written to disk from records as the stages would write it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from envace.config import Params, parse
from envace.report.report import build
from envace.types import (
    Answer,
    Attempt,
    Episode,
    FailureReason,
    FinishReason,
    Generation,
    Item,
    Message,
    Observation,
    PolicyRef,
    Record,
    Role,
    SampleRecord,
    SampleStatus,
    Sampling,
    ScoreRecord,
    Source,
    StopReason,
    Task,
    ToolCall,
    Verdict,
    replace,
    to_json,
)

TASK = Task(
    id="desk-train-0",
    prefix=(
        Message(role="system", content="Be brief. Rules follow.\nNever guess."),
        Message(role="user", content="Cancel order #kite."),
    ),
    user_turns=("Thanks. And #lamp?",),
    tools=(
        {
            "type": "function",
            "function": {
                "name": "cancel_order",
                "parameters": {"type": "object", "properties": {"order": {"type": "string"}}},
            },
        },
    ),
    checklist=(
        (
            Item(
                id="C0",
                question="Cancels order #kite?",
                pass_condition="call made",
                focus_on="assistant.tool_calls",
                weight=0.5,
                required_for_next_turn=True,
            ),
            Item(
                id="C1",
                question="Tells the user?",
                pass_condition="reply says so",
                focus_on="assistant.content.user_visible_reply",
                weight=0.5,
            ),
        ),
        (
            Item(
                id="C0",
                question="Cancels order #lamp?",
                pass_condition="call made",
                focus_on="assistant.tool_calls",
                weight=1.0,
                required_for_next_turn=True,
            ),
        ),
    ),
    source="desk",
)


EXAMPLE = replace(
    TASK,
    id="desk-held-0",
    tools=(
        {
            "type": "function",
            "function": {
                "name": "cancel_order",
                "description": "Cancels it.",
                "parameters": TASK.tools[0]["function"]["parameters"],
            },
        },
    ),
    reference=(
        *TASK.prefix,
        Message(
            role="assistant", content="", calls=(ToolCall(name="cancel_order", arguments={"order": "#kite"}),)
        ),
        Message(role="tool", content='{"status": "cancelled"}', name="cancel_order"),
        Message(role="assistant", content="It is cancelled."),
        Message(role="user", content=TASK.user_turns[0], turn=1),
        Message(role="assistant", content="No lamp.", turn=1),
    ),
    records=(
        Record(
            turn=0,
            call=ToolCall(name="cancel_order", arguments={"order": "#kite"}),
            result={"status": "cancelled"},
        ),
    ),
)


def generation(
    role: Role,
    text: str,
    *,
    turn: int = 0,
    step: int = 0,
    failure: FailureReason | None = None,
    version: int = 1,
) -> Generation:
    return Generation(
        role=role,
        turn=turn,
        step=step,
        prompt_ids=(1, 2),
        output_ids=tuple(range(len(text.split()))),
        logprobs=(),
        text=text,
        sampling=Sampling(),
        finish=FinishReason.STOP,
        failure=failure,
        weight_version=version,
    )


def make_episode(
    *,
    id: str = "e0",
    task_id: str = TASK.id,
    answers: str = "yyy",
    reward: float | None = 1.0,
    said: str = "It is cancelled.",
    source: Source = Source.REHEARSAL,
    shown: str = '{"status": "cancelled"}',
    stop: StopReason = StopReason.DONE,
    version: int = 1,
) -> Episode:
    """Two turns; one call answered by `source`, one refused by the validator. `answers`: y, n or u an
    item."""
    call = ToolCall(name="cancel_order", arguments={"order": "#kite"})
    messages = (
        *TASK.prefix,
        Message(role="assistant", content="", thinking="The order is #kite.", calls=(call,)),
        Message(role="tool", content=shown, name="cancel_order"),
        Message(role="assistant", content=said),
        Message(role="user", content=TASK.user_turns[0], turn=1),
        Message(role="assistant", content="", calls=(ToolCall(name="burn_order", arguments={}),), turn=1),
        Message(role="tool", content='{"error": "no such tool: burn_order"}', name="burn_order", turn=1),
        Message(role="assistant", content="I could not.", turn=1),
    )
    acts = [
        generation(Role.ACT, m.content or "call", turn=m.turn, step=k, version=version)
        for k, m in enumerate(m for m in messages if m.role == "assistant")
    ]
    dreams = (
        [generation(Role.REHEARSE, f"<execution_result>{shown}</execution_result>", version=version)]
        if source is Source.REHEARSAL
        else []
    )
    letters = {"y": Answer.YES, "n": Answer.NO, "u": Answer.UNSCORED}
    keys = [(0, "C0"), (0, "C1"), (1, "C0")]
    return Episode(
        id=id,
        task_id=task_id,
        group_id="g",
        seed=3,
        prompt_set="abc123",
        generations=(*acts, *dreams),
        messages=messages,
        observations=(
            Observation(content={"status": "cancelled"}, source=source),
            Observation(
                content={"error": "no such tool"},
                source=Source.VALIDATOR,
                error=True,
                failure=FailureReason.UNKNOWN_TOOL,
            ),
        ),
        verdicts=tuple(Verdict(item_id=i, turn=t, answer=letters[a]) for (t, i), a in zip(keys, answers)),
        turn_rewards=(1.0, 1.0),
        reward=reward,
        unscored_reason=None if reward is not None else "judge_timeout",
        stop=stop,
        counters={
            "act": 4,
            "rehearse": len(dreams),
            "tokens_act": 20,
            "tokens_rehearse": 5,
            "failure/unknown_tool": 1,
        },
        seconds=0.5,
    )


MANIFEST = {
    "counts": {"read": 9, "rejected": 1},
    "outputs": {"held.parquet": {"rows": 4, "sha256": "d" * 64}},
}
PARAMS = {"eval": {"trials": 2}, "report": {"bootstrap": 200}, "train": {"steps": 3}}


@pytest.fixture(scope="session")
def params() -> Params:
    return parse(PARAMS)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A folder of its own with a finished run."""
    return write_run(tmp_path)


@pytest.fixture(scope="session")
def report(tmp_path_factory: pytest.TempPathFactory, params: Params) -> Path:
    """report/ of a finished run, built once; not to be changed."""
    root = write_run(tmp_path_factory.mktemp("finished"))
    build(root, params)
    return root / "report"


def write_run(tmp_path: Path) -> Path:
    """Everything a run of the default parameters leaves, but parquet files."""
    _write(tmp_path / "data/staged/manifest.json", MANIFEST)
    for name, step in (("start", 0), ("envace-1", 3)):
        _write(
            tmp_path / f"models/{name}/card.json",
            to_json(PolicyRef(kind="tiny", uri=f"models/{name}", hash="f" * 64, step=step, name=name)),
        )
    _train(tmp_path / "runs/train/envace-1")
    for policy, wins in (("start", (0, 0, 1, 0)), ("envace-1", (1, 1, 1, 0))):
        _evaluation(tmp_path / f"results/evaluate/{policy}-desk", policy, wins)
    for point, wins in (
        ("plain-0", (1, 0, 1, 0)),
        ("parallel-2", (1, 1, 1, 0)),
        ("sequential-2", (1, 1, 1, 0)),
    ):
        _point(tmp_path / f"results/tts/{point}", wins)
    # per task 0 to 3: equal on the recorded call? start succeeds nowhere in truth, the trained one in tasks 0
    # and 1
    for policy, exact, true in (
        ("start", (0, 0, 1, 0), (0, 0, 0, 0)),
        ("envace-1", (1, 0, 1, 0), (1, 1, 0, 0)),
    ):
        _fidelity(tmp_path / f"results/fidelity/{policy}", policy, exact, true)
    return tmp_path


def _train(folder: Path) -> None:
    steps = [
        {
            "step": k,
            "train/reward": 0.2 * k,
            "act/reward": 0.2 * k,
            "rehearse/reward": 0.15 * k,
            "act/rows": 8,
            "rehearse/rows": 6,
            "act/adv_std": 0.3,
            "rehearse/adv_std": 0.2,
            "act/tokens": 300,
            "rehearse/tokens": 200,
            "train/unscored": 0.0,
            "train/episodes": {1: 1, 2: 0, 3: 4}[k],
            "seconds/step": 4.0 + k,
            "stop/done": 3,
            "stop/error_budget": 1,
            "failure/bad_json": 2,
            "train/rehearsed_success": 0.25 * k,
            "collapse/rehearsed_state_entropy": 1.0 / k,
            "collapse/true_state_entropy": 1.5,
        }
        for k in (1, 2, 3)
    ]
    _lines(folder / "metrics.jsonl", steps)
    # step 1 fails in rehearsal, step 3 succeeds in three of four: an item not met ends the fourth
    episodes = [(1, make_episode(id="s1p0-0", answers="nny", reward=0.0, version=0))]
    episodes += [
        (3, make_episode(id=f"s3p0-{k}", answers="yny" if k else "nyy", reward=0.5 + 0.1 * k, version=2))
        for k in range(4)
    ]
    _lines(folder / "episodes.jsonl", [to_json(e) for _, e in episodes])
    _write(
        folder / "train.json",
        {
            "arm": "envace",
            "seed": 1,
            "steps": 3,
            "resumed_from": 2,
            "attempts": 2,
            "seconds": 95.0,
            "tokens": 1500,
        },
    )


def _point(folder: Path, wins: tuple[int, ...]) -> None:
    """One test-time-scaling point: two attempts and one memory a run, 120 tokens each run."""
    n = int(folder.name[-1])
    _evaluation(folder, "envace-1", wins, trials=1)
    runs = len(wins) if n else 0
    counts = {
        "runs": runs,
        "attempts": runs * n,
        "self_evaluations": runs * n - (n > 0),
        "self_evaluation_fallbacks": int(n > 0),
        "condensations": runs,
        "condensation_fallbacks": 0,
        "empty_memories": 0,
        "tokens": 120 * runs,
    }
    scores = json.loads((folder / "scores.json").read_text())
    _write(folder / "scores.json", {**scores, "rehearsal": counts})
    attempt = Attempt(index=0, episode=make_episode(), feedback={}, feedback_ok=True, tokens=40)
    line = {
        "task": "desk-held-0",
        "trial": 0,
        "memory": {"text": "Look it up first."},
        "attempt": to_json(attempt),
    }
    _lines(folder / "attempts.jsonl", [line] * n)


def _fidelity(folder: Path, policy: str, exact: tuple[int, ...], true: tuple[int, ...]) -> None:
    """A recorded call a task in two modes, and a pair of plays a task, all rehearsals successful."""
    calls = [
        {
            "task": f"desk-held-{k}",
            "call": {"name": "cancel_order", "arguments": {"order": "#kite"}},
            "few_shot": mode,
            "by": "policy",
            "recorded": True,
            "truth": {"a": 1},
            "rehearsed": {"a": 2 - won},
            "shown": "",
            "exact": float(won and mode == "up_to_turn"),
            "verdict": 1.0,
            "shape": 1.0,
            "grounded": None,
        }
        for mode in ("up_to_turn", "none")
        for k, won in enumerate(exact)
    ]
    plays = [
        {"task": f"desk-held-{k}", "trial": 0, "rehearsed": 1.0, "true": float(won), "success": float(won)}
        for k, won in enumerate(true)
    ]
    share, held = sum(exact) / len(exact), sum(true) / len(true)
    spread = {
        "up_to_turn/exact": share,
        "up_to_turn/recorded/exact": share,
        "up_to_turn/valid": 0.9,
        "none/exact": 0.0,
        "up_to_turn/recorded/copy/exact": 1.0,
        "up_to_turn/constant/exact": 0.125,
        "up_to_turn/copy/exact": 0.5,
        "up_to_turn/majority/verdict": 0.75,
        "up_to_turn/verdict": 0.8,
        "up_to_turn/tool/cancel_order/exact": share,
        "gap/rehearsed": 1.0,
        "gap/true": held,
        "gap/success": held,
        "gap/collusion": 1 - held,
    }
    bits = {
        "gap/rehearsed_entropy": 0.25,
        "gap/true_entropy": 1.5,
        "gap/rehearsed_refusals": 0.0,
        "gap/true_refusals": 0.2,
    }
    counts = {"calls": 4, "tasks": 4}
    full = {k: {"value": v, "low": max(0.0, v - 0.1), "high": v + 0.1, **counts} for k, v in spread.items()}
    full |= {k: {"value": v, "low": None, "high": None, **counts} for k, v in bits.items()}
    values = {k: v["value"] for k, v in full.items()}
    _write(folder / "scores.json", {"scores": values, "spread": full, "policy": policy, "seconds": 2.0})
    _lines(folder / "calls.jsonl", calls)
    _lines(folder / "plays.jsonl", plays)


def evaluation(root: Path, policy: str, benchmark: str, wins: tuple[int, ...], trials: int = 2) -> None:
    """An evaluation on disk; `wins` says for each task whether every trial of it succeeds."""
    _evaluation(root / f"results/evaluate/{policy}-{benchmark}", policy, wins, trials)


def _evaluation(folder: Path, policy: str, wins: tuple[int, ...], trials: int = 2) -> None:
    samples, episodes = [], []
    for trial in range(trials):
        for k, won in enumerate(wins):
            e = make_episode(id=f"{policy}/{k}/{trial}", task_id=f"desk-held-{k}", source=Source.ENVIRONMENT)
            episodes.append(to_json(e))
            samples.append(
                to_json(
                    SampleRecord(
                        task=e.task_id,
                        trial=trial,
                        seed=1,
                        status=SampleStatus.SCORED,
                        reward=float(won),
                        metrics={"success": float(won)},
                        stop="done",
                        episode_id=e.id,
                    )
                )
            )
    mean = sum(wins) / len(wins)
    score = ScoreRecord(
        benchmark="desk",
        subset="held",
        metric="success",
        score=mean,
        low=max(0, mean - 0.3),
        high=min(1, mean + 0.3),
        n_tasks=len(wins),
        n_trials=trials,
        n_scored=len(samples),
        floors={"do_nothing": 0.0, "random": 0.02, "blind": 0.15},
        policy=policy,
    )
    _write(folder / "scores.json", {"scores": [to_json(score)], "seconds": 12.0, "versions": {}})
    _lines(folder / "samples.jsonl", samples)
    _lines(folder / "episodes.jsonl", episodes)


def _write(path: Path, data: dict) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(data))


def _lines(path: Path, items: list[dict]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(i) + "\n" for i in items))
