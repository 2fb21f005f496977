"""A small finished run, written to disk from records as the stages would write it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from envace import types as t
from envace.config import Params, parse
from envace.report.report import build
from envace.types import Message, Role, Source, StopReason, to_json

CALL = t.ToolCall(name="cancel_order", arguments={"order": "#kite"})
TAKES = {"type": "object", "properties": {"order": {"type": "string"}}}
FUNCTION = {"name": "cancel_order", "description": "Cancels it.", "parameters": TAKES}
REPLY = "assistant.content.user_visible_reply"


def item(id: str, question: str, weight: float, *, reply: bool = False) -> t.Item:
    focus, condition = (REPLY, "reply says so") if reply else ("assistant.tool_calls", "call made")
    words = {"id": id, "question": question, "pass_condition": condition, "focus_on": focus}
    return t.Item(**words, weight=weight, required_for_next_turn=not reply)


TASK = t.Task(
    id="desk-train-0",
    prefix=(
        Message(role="system", content="Be brief. Rules follow.\nNever guess."),
        Message(role="user", content="Cancel order #kite."),
    ),
    user_turns=("Thanks. And #lamp?",),
    tools=({"type": "function", "function": FUNCTION},),
    checklist=(
        (item("C0", "Cancels order #kite?", 0.5), item("C1", "Tells the user?", 0.5, reply=True)),
        (item("C0", "Cancels order #lamp?", 1.0),),
    ),
    source="desk",
)
EXAMPLE = t.replace(
    TASK,
    id="desk-held-0",
    reference=(
        *TASK.prefix,
        Message(role="assistant", content="", calls=(CALL,)),
        Message(role="tool", content='{"status": "cancelled"}', name="cancel_order"),
        Message(role="assistant", content="It is cancelled."),
        Message(role="user", content=TASK.user_turns[0], turn=1),
        Message(role="assistant", content="No lamp.", turn=1),
    ),
    records=(t.Record(turn=0, call=CALL, result={"status": "cancelled"}),),
)


def generation(role: Role, text: str, turn: int = 0, step: int = 0, version: int = 1) -> t.Generation:
    return t.Generation(
        role=role,
        turn=turn,
        step=step,
        prompt_ids=(1, 2),
        output_ids=tuple(range(len(text.split()))),
        logprobs=(),
        text=text,
        sampling=t.Sampling(),
        finish=t.FinishReason.STOP,
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
) -> t.Episode:
    """Two turns; one call answered by `source`, one refused by the validator. `answers`: y, n, u an item."""
    messages = (
        *TASK.prefix,
        Message(role="assistant", content="", thinking="The order is #kite.", calls=(CALL,)),
        Message(role="tool", content=shown, name="cancel_order"),
        Message(role="assistant", content=said),
        Message(role="user", content=TASK.user_turns[0], turn=1),
        Message(role="assistant", content="", calls=(t.ToolCall(name="burn_order", arguments={}),), turn=1),
        Message(role="tool", content='{"error": "no such tool: burn_order"}', name="burn_order", turn=1),
        Message(role="assistant", content="I could not.", turn=1),
    )
    written = [
        generation(Role.ACT, m.content or "call", m.turn, k, version)
        for k, m in enumerate(m for m in messages if m.role == "assistant")
    ]
    rehearsed = source is Source.REHEARSAL
    if rehearsed:
        written.append(generation(Role.REHEARSE, f"<result>{shown}</result>", version=version))
    refused = {"source": Source.VALIDATOR, "error": True, "failure": t.FailureReason.UNKNOWN_TOOL}
    letters = {"y": t.Answer.YES, "n": t.Answer.NO, "u": t.Answer.UNSCORED}
    judged = zip([(0, "C0"), (0, "C1"), (1, "C0")], answers)
    counters = {"act": 4, "rehearse": int(rehearsed), "tokens_act": 20, "tokens_rehearse": 5}
    return t.Episode(
        id=id,
        task_id=task_id,
        group_id="g",
        seed=3,
        prompt_set="abc123",
        generations=tuple(written),
        messages=messages,
        observations=(
            t.Observation(content={"status": "cancelled"}, source=source),
            t.Observation(content={"error": "no such tool"}, **refused),
        ),
        verdicts=tuple(t.Verdict(item_id=i, turn=turn, answer=letters[a]) for (turn, i), a in judged),
        turn_rewards=(1.0, 1.0),
        reward=reward,
        unscored_reason=None if reward is not None else "judge_timeout",
        stop=stop,
        counters=counters | {"failure/unknown_tool": 1},
        seconds=0.5,
    )


OUTPUTS = {"held.parquet": {"rows": 4, "sha256": "d" * 64}}
MANIFEST = {"counts": {"read": 9, "rejected": 1}, "outputs": OUTPUTS}
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


def write_run(root: Path) -> Path:
    """Everything a run of the default parameters leaves, but parquet files."""
    _write(root / "data/staged/manifest.json", MANIFEST)
    for name, step in (("start", 0), ("envace-1", 3)):
        card = t.PolicyRef(kind="tiny", uri=f"models/{name}", hash="f" * 64, step=step, name=name)
        _write(root / f"models/{name}/card.json", to_json(card))
    _train(root / "runs/train/envace-1")
    evaluation(root, "start", "desk", (0, 0, 1, 0))
    evaluation(root, "envace-1", "desk", (1, 1, 1, 0))
    _point(root / "results/tts/plain-0", (1, 0, 1, 0))
    for point in ("parallel-2", "sequential-2"):
        _point(root / f"results/tts/{point}", (1, 1, 1, 0))
    # a task: equal on the recorded call? start succeeds nowhere in truth, the trained one in tasks 0 and 1
    _fidelity(root / "results/fidelity/start", (0, 0, 1, 0), (0, 0, 0, 0))
    _fidelity(root / "results/fidelity/envace-1", (1, 0, 1, 0), (1, 1, 0, 0))
    return root


def _train(folder: Path) -> None:
    same = {"act/rows": 8, "rehearse/rows": 6, "act/adv_std": 0.3, "rehearse/adv_std": 0.2}
    same |= {"act/tokens": 300, "rehearse/tokens": 200, "train/unscored": 0.0, "stop/done": 3}
    same |= {"stop/error_budget": 1, "failure/bad_json": 2, "collapse/true_state_entropy": 1.5}
    steps = []
    for k, episodes in ((1, 1), (2, 0), (3, 4)):
        own = {"train/reward": 0.2 * k, "act/reward": 0.2 * k, "rehearse/reward": 0.15 * k}
        own |= {"train/rehearsed_success": 0.25 * k, "collapse/rehearsed_state_entropy": 1.0 / k}
        steps.append({"step": k, "train/episodes": episodes, "seconds/step": 4.0 + k} | same | own)
    _lines(folder / "metrics.jsonl", steps)
    # step 1 fails in rehearsal, step 3 succeeds in three of four: an item not met ends the fourth
    episodes = [make_episode(id="s1p0-0", answers="nny", reward=0.0, version=0)]
    for k in range(4):
        answers = "yny" if k else "nyy"
        episodes.append(make_episode(id=f"s3p0-{k}", answers=answers, reward=0.5 + 0.1 * k, version=2))
    _lines(folder / "episodes.jsonl", [to_json(e) for e in episodes])
    numbers = {"seed": 1, "steps": 3, "resumed_from": 2, "attempts": 2, "seconds": 95.0, "tokens": 1500}
    _write(folder / "train.json", {"arm": "envace"} | numbers)


def _point(folder: Path, wins: tuple[int, ...]) -> None:
    """One test-time-scaling point: two attempts and one memory a run, 120 tokens each run."""
    n = int(folder.name[-1])
    _evaluation(folder, "envace-1", wins, trials=1)
    runs = len(wins) if n else 0
    counts = {"runs": runs, "attempts": runs * n, "condensations": runs, "condensation_fallbacks": 0}
    counts |= {"self_evaluations": runs * n - (n > 0), "self_evaluation_fallbacks": int(n > 0)}
    counts |= {"empty_memories": 0, "tokens": 120 * runs}
    _write(folder / "scores.json", json.loads((folder / "scores.json").read_text()) | {"rehearsal": counts})
    attempt = t.Attempt(index=0, episode=make_episode(), feedback={}, feedback_ok=True, tokens=40)
    line = {"task": "desk-held-0", "trial": 0, "memory": {"text": "Look it up first."}}
    _lines(folder / "attempts.jsonl", [line | {"attempt": to_json(attempt)}] * n)


def _fidelity(folder: Path, exact: tuple[int, ...], true: tuple[int, ...]) -> None:
    """A recorded call a task in two modes, and a pair of plays a task, all rehearsals successful."""
    same = {"call": to_json(CALL), "by": "policy", "recorded": True, "truth": {"a": 1}, "shown": ""}
    same |= {"verdict": 1.0, "shape": 1.0, "grounded": None}
    calls = [
        {"task": f"desk-held-{k}", "few_shot": mode, "rehearsed": {"a": 2 - won}}
        | same
        | {"exact": float(won and mode == "up_to_turn")}
        for mode in ("up_to_turn", "none")
        for k, won in enumerate(exact)
    ]
    plays = [
        {"task": f"desk-held-{k}", "trial": 0, "rehearsed": 1.0, "true": float(won), "success": float(won)}
        for k, won in enumerate(true)
    ]
    share, held = sum(exact) / len(exact), sum(true) / len(true)
    own = {
        "exact": share,
        "recorded/exact": share,
        "valid": 0.9,
        "recorded/copy/exact": 1.0,
        "copy/exact": 0.5,
    }
    own |= {
        "constant/exact": 0.125,
        "majority/verdict": 0.75,
        "verdict": 0.8,
        "tool/cancel_order/exact": share,
    }
    spread = {f"up_to_turn/{k}": v for k, v in own.items()} | {"none/exact": 0.0, "gap/rehearsed": 1.0}
    spread |= {"gap/true": held, "gap/success": held, "gap/collusion": 1 - held}
    bits = {"rehearsed_entropy": 0.25, "true_entropy": 1.5, "rehearsed_refusals": 0.0, "true_refusals": 0.2}
    counts = {"calls": 4, "tasks": 4}
    full = {k: {"value": v, "low": max(0.0, v - 0.1), "high": v + 0.1} | counts for k, v in spread.items()}
    full |= {f"gap/{k}": {"value": v, "low": None, "high": None} | counts for k, v in bits.items()}
    values = {k: v["value"] for k, v in full.items()}
    _write(folder / "scores.json", {"scores": values, "spread": full, "policy": folder.name, "seconds": 2.0})
    _lines(folder / "calls.jsonl", calls)
    _lines(folder / "plays.jsonl", plays)


def evaluation(root: Path, policy: str, benchmark: str, wins: tuple[int, ...], trials: int = 2) -> None:
    """An evaluation on disk; `wins` says for each task whether every trial of it succeeds."""
    _evaluation(root / f"results/evaluate/{policy}-{benchmark}", policy, wins, trials)


def _evaluation(folder: Path, policy: str, wins: tuple[int, ...], trials: int = 2) -> None:
    samples, episodes = [], []
    for trial in range(trials):
        for k, won in enumerate(wins):
            task, id = f"desk-held-{k}", f"{policy}/{k}/{trial}"
            episodes.append(to_json(make_episode(id=id, task_id=task, source=Source.ENVIRONMENT)))
            sample = t.SampleRecord(
                task=task,
                trial=trial,
                seed=1,
                status=t.SampleStatus.SCORED,
                reward=float(won),
                metrics={"success": float(won)},
                stop="done",
                episode_id=id,
            )
            samples.append(to_json(sample))
    mean = sum(wins) / len(wins)
    score = t.ScoreRecord(
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
