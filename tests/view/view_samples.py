"""A small finished run, written to disk from records as the stages would write it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from envace.params import Params, parse
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
    to_json,
)
from envace.view.report import build

TASK = Task(
    id="desk-train-0",
    prefix=(Message(role="system", content="Be brief. Rules follow.\nNever guess."), Message(role="user", content="Cancel order #kite.")),
    user_turns=("Thanks. And #lamp?",),
    tools=({"type": "function", "function": {"name": "cancel_order", "parameters": {"type": "object", "properties": {"order": {"type": "string"}}}}},),
    checklist=(
        (Item(id="C0", question="Cancels order #kite?", pass_condition="call made", focus_on="assistant.tool_calls", weight=0.5, required_for_next_turn=True),
         Item(id="C1", question="Tells the user?", pass_condition="reply says so", focus_on="assistant.content.user_visible_reply", weight=0.5)),
        (Item(id="C0", question="Cancels order #lamp?", pass_condition="call made", focus_on="assistant.tool_calls", weight=1.0, required_for_next_turn=True),),
    ),
    source="desk",
)  # fmt: skip


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
        role=role, turn=turn, step=step, prompt_ids=(1, 2), output_ids=tuple(range(len(text.split()))), logprobs=(), text=text,
        sampling=Sampling(), finish=FinishReason.STOP, failure=failure, weight_version=version,
    )  # fmt: skip


def make_episode(
    *, id: str = "e0", task_id: str = TASK.id, answers: str = "yyy", reward: float | None = 1.0, said: str = "It is cancelled.",
    source: Source = Source.REHEARSAL, shown: str = '{"status": "cancelled"}', stop: StopReason = StopReason.DONE, version: int = 1,
) -> Episode:  # fmt: skip
    """Two turns; one call answered by `source`, one refused by the validator. `answers`: y, n or u an item."""
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
        id=id, task_id=task_id, group_id="g", seed=3, prompt_set="abc123", generations=(*acts, *dreams), messages=messages,
        observations=(
            Observation(content={"status": "cancelled"}, source=source),
            Observation(content={"error": "no such tool"}, source=Source.VALIDATOR, error=True, failure=FailureReason.UNKNOWN_TOOL),
        ),
        verdicts=tuple(Verdict(item_id=i, turn=t, answer=letters[a]) for (t, i), a in zip(keys, answers)),
        turn_rewards=(1.0, 1.0), reward=reward, unscored_reason=None if reward is not None else "judge_timeout", stop=stop,
        counters={"act": 4, "rehearse": len(dreams), "tokens_act": 20, "tokens_rehearse": 5, "failure/unknown_tool": 1}, seconds=0.5,
    )  # fmt: skip


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
    for mode in ("parallel", "sequential"):
        for n, wins in ((0, (1, 0, 1, 0)), (2, (1, 1, 1, 0))):
            _evaluation(tmp_path / f"results/tts/{mode}-{n}", "envace-1", wins, trials=1)
            attempt = Attempt(index=0, episode=make_episode(), feedback={}, feedback_ok=True, tokens=40)
            _lines(
                tmp_path / f"results/tts/{mode}-{n}/attempts.jsonl",
                [
                    {
                        "task": "desk-held-0",
                        "trial": 0,
                        "memory": {"text": "Look it up first."},
                        "attempt": to_json(attempt),
                    }
                ]
                * n,
            )
    for policy, exact in (("start", 0.25), ("envace-1", 0.5)):
        _write(
            tmp_path / f"results/fidelity/{policy}/scores.json",
            {
                "scores": {
                    "up_to_turn/exact": exact,
                    "up_to_turn/valid": 0.9,
                    "up_to_turn/tool/cancel_order/exact": exact,
                    "none/exact": 0.1,
                },
                "seconds": 2.0,
            },
        )
        _lines(
            tmp_path / f"results/fidelity/{policy}/calls.jsonl",
            [
                {
                    "call": {"name": "cancel_order", "arguments": {"order": "#kite"}},
                    "few_shot": "up_to_turn",
                    "truth": {"a": 1},
                    "rehearsed": {"a": 2},
                    "exact": False,
                }
            ],
        )
    return tmp_path


def _train(folder: Path) -> None:
    steps = [
        {"step": k, "train/reward": 0.2 * k, "act/reward": 0.2 * k, "rehearse/reward": 0.15 * k, "act/rows": 8, "rehearse/rows": 6, "act/adv_std": 0.3,
         "rehearse/adv_std": 0.2, "act/tokens": 300, "rehearse/tokens": 200, "train/unscored": 0.0, "train/episodes": {1: 1, 2: 0, 3: 4}[k], "seconds/step": 4.0 + k, "stop/done": 3, "stop/error_budget": 1,
         "failure/bad_json": 2}
        for k in (1, 2, 3)
    ]  # fmt: skip
    _lines(folder / "metrics.jsonl", steps)
    # step 1 fails in rehearsal, step 3 succeeds in three of four: an item not met ends the fourth
    episodes = [(1, make_episode(id="s1", answers="nny", reward=0.0, version=0))]
    episodes += [
        (3, make_episode(id=f"s3-{k}", answers="yny" if k else "nyy", reward=0.5 + 0.1 * k, version=2))
        for k in range(4)
    ]
    _lines(folder / "episodes.jsonl", [{"step": step, **to_json(e)} for step, e in episodes])
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
        benchmark="desk", subset="held", metric="success", score=mean, low=max(0, mean - 0.3), high=min(1, mean + 0.3), n_tasks=len(wins), n_trials=trials,
        n_scored=len(samples), floors={"do_nothing": 0.0, "random": 0.02}, policy=policy,
    )  # fmt: skip
    _write(folder / "scores.json", {"scores": [to_json(score)], "seconds": 12.0, "versions": {}})
    _lines(folder / "samples.jsonl", samples)
    _lines(folder / "episodes.jsonl", episodes)


def _write(path: Path, data: dict) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(data))


def _lines(path: Path, items: list[dict]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(i) + "\n" for i in items))
