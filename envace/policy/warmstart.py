"""The desk's start policy: rebuilt from nothing but seeds, measured, and kept in `envace/policy/start`.

Flows in: `policy.tiny` of params.yaml. Flows out: the folder that `policy.kind: bundled` starts from, with
`measured.json` beside its card: what it scores, with intervals, and the floors it stands on.
Invariant: the folder is replaced only after the new policy was measured; measuring sees tasks of the splits
"held" and "unseen" only, which the warm start never trains on.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from envace.config import Params, load
from envace.errors import UserError
from envace.policy.card import read_card, write_card
from envace.types import FailureReason, Generation, Role, Source, Task, replace

BUNDLED = Path(__file__).with_name("start")
TASKS, TRIALS = 150, 2  # measured of each split
FORMS_TASKS = 40  # privately rehearsed, evaluated and condensed
RECORDED = "up_to_turn/recorded/exact"
READ = (None, FailureReason.UNKNOWN_TOOL, FailureReason.SCHEMA_VIOLATION)  # the call was read


async def measure(folder: Path, params: Params) -> dict[str, Any]:
    """Scores of a policy folder on the desk: success, fidelity, and the share of usable texts of each form."""
    from envace.policy.local import LocalPolicy

    policy = LocalPolicy(
        folder, concurrency=params.engine.concurrency, enable_thinking=False, seed=params.seed
    )
    found: dict[str, Any] = {"tasks": TASKS, "trials": TRIALS}
    for split in ("held", "unseen"):
        found[split] = await _success(policy, split, params)
    found |= await _fidelity(policy, params)
    found["forms"] = await _forms(policy, params)
    return found


async def _success(policy: Any, split: str, params: Params) -> dict[str, Any]:
    from envace.bench.committed import floor_policies, floor_scores
    from envace.bench.fidelity.scores import score
    from envace.bench.worlds import evaluate
    from envace.judge import RuleJudge
    from envace.worlds.desk.tasks import generate

    tasks = generate(params.desk.seed, split, TASKS)
    samples, episodes = await evaluate(
        policy, tasks, trials=TRIALS, seed=params.eval.seed, params=params.rollout, method=params.resolved_method(),
        renderer=policy.renderer, judge=RuleJudge(), temperature=1.0, concurrency=params.engine.concurrency,
    )  # fmt: skip
    values = [(s.task, float(s.reward)) for s in samples if s.reward is not None]
    floors = floor_scores(tasks, params.eval.seed, floor_policies(tasks, params.eval.seed))
    return {
        "success": asdict(score(values, params.report.bootstrap, params.seed)),
        "well_formed_calls": _well_formed([g for e in episodes for g in e.generations]),
        "floors": {name: round(s["success"], 4) for name, s in floors.items()},
    }


def _well_formed(generations: Sequence[Generation]) -> float:
    """Share of the texts with a tool-call block that can be read, whatever the validator then thinks of the call."""
    wrote = [g for g in generations if g.role is Role.ACT and "<tool_call>" in g.text]
    return sum(g.failure in READ for g in wrote) / len(wrote) if wrote else 0.0


async def _fidelity(policy: Any, params: Params) -> dict[str, Any]:
    from envace.bench.fidelity.measure import measure as rehearse_calls
    from envace.bench.fidelity.scores import summarise
    from envace.worlds.desk.tasks import generate

    tasks = generate(params.desk.seed, "held", TASKS)
    rows = await rehearse_calls(
        policy, tasks, renderer=policy.renderer, method=params.resolved_method(), params=params.rollout, limit=300,
        seed=params.eval.seed, temperature=1.0,
    )  # fmt: skip
    return {"fidelity_recorded_exact": asdict(summarise(rows, bootstrap=params.report.bootstrap)[RECORDED])}


async def _forms(policy: Any, params: Params) -> dict[str, float]:
    """Share of usable self-evaluations and condensations, and of rehearsed responses that keep the contract."""
    from envace.rollout.prompts import load_prompt_set
    from envace.tts.rehearse import rehearse
    from envace.worlds.desk.tasks import generate

    tasks: list[Task] = generate(params.desk.seed, "held", FORMS_TASKS)
    done = await asyncio.gather(*(
        rehearse(
            task, policy=policy, renderer=policy.renderer, budget=params.tts, mode="parallel", n=2,
            method=params.resolved_method(), params=params.rollout, seed=k,
            prompt_set=load_prompt_set(params.rollout.prompt_set),
        )
        for k, task in enumerate(tasks)
    ))  # fmt: skip
    tries = [a for attempts, _ in done for a in attempts]
    answers = [o for a in tries for o in a.episode.observations if o.source is Source.REHEARSAL]
    return {
        "self_evaluation": sum(a.feedback_ok for a in tries) / len(tries),
        "condensation": sum(not memory.fallback for _, memory in done) / len(done),
        "rehearsal": sum(o.failure is None for o in answers) / max(1, len(answers)),
    }


def install(source: Path) -> None:
    """Put a measured folder in place of the bundled one; its card names no place of this machine."""
    ref = replace(read_card(source), uri="envace/policy/start")
    shutil.rmtree(BUNDLED, ignore_errors=True)
    shutil.copytree(source, BUNDLED)
    write_card(BUNDLED, ref)


def main(argv: Sequence[str] | None = None) -> int:
    """Build, measure, install; or measure a folder that is there."""
    parser = argparse.ArgumentParser(prog="python -m envace.policy.warmstart", description=__doc__)
    parser.add_argument("--params", default="params.yaml")
    parser.add_argument("--measure", metavar="FOLDER", type=Path, help="measure this folder, build nothing")
    parser.add_argument(
        "--keep", action="store_true", help="with --measure: install the folder as the bundled start"
    )
    given = parser.parse_args(argv)
    try:
        params = load(given.params)
        with tempfile.TemporaryDirectory() as scratch:
            folder = given.measure or _build(params, Path(scratch) / "start")
            found = asyncio.run(measure(folder, params))
            print(json.dumps(found, indent=1))
            if given.keep or not given.measure:
                text = json.dumps(found, indent=1, sort_keys=True) + "\n"
                (folder / "measured.json").write_text(text, encoding="utf-8")
                install(folder)
    except UserError as e:
        print(f"warmstart: {e}", file=sys.stderr)
        return 1
    return 0


def _build(params: Params, out: Path) -> Path:
    from envace.policy.tiny import build_start

    began = time.monotonic()

    def show(event: dict[str, float]) -> None:
        if event["step"] % 50 == 0:
            print(
                f"update {event['step']:.0f} of {event['steps']:.0f}, answer loss {event['answer_loss']:.3f}, "
                f"{time.monotonic() - began:.0f} s",
                flush=True,
            )

    build_start(params, out, show)
    return out


if __name__ == "__main__":
    sys.exit(main())
