"""What a start policy scores on the desk: success, fidelity, and the share of usable texts of each form.

Flows in: a policy folder, parameters. Flows out: the content of `measured.json`, intervals and floors
included.
Invariant: tasks of the splits "held" and "unseen" only, which the warm start never trains on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from envace.bench.committed import floor_policies, floor_scores
from envace.bench.fidelity.measure import measure as rehearse_calls
from envace.bench.fidelity.scores import score, summarise
from envace.bench.worlds import evaluate
from envace.config import Params
from envace.judge import RuleJudge
from envace.policy.local import LocalPolicy
from envace.rollout.prompts import load_prompt_set
from envace.tts.rehearse import rehearse
from envace.types import JSON, FailureReason, Generation, Role, Source
from envace.worlds.desk.tasks import generate

TASKS, TRIALS = 150, 2
"""Measured of each split."""
FORMS_TASKS = 40
"""Privately rehearsed, evaluated and condensed."""
CALLS = 300
"""Rehearsed and held against the true response."""
RECORDED = "up_to_turn/recorded/exact"
READ = (None, FailureReason.UNKNOWN_TOOL, FailureReason.SCHEMA_VIOLATION)
"""The call was read, whatever the validator then thought of it."""


async def measure(folder: Path, params: Params) -> dict[str, JSON]:
    policy = LocalPolicy(folder, concurrency=params.engine.concurrency, seed=params.seed)
    found: dict[str, JSON] = {"tasks": TASKS, "trials": TRIALS}
    for split in ("held", "unseen"):
        found[split] = await _success(policy, split, params)
    found["fidelity_recorded_exact"] = await _fidelity(policy, params)
    found["forms"] = await _forms(policy, params)
    return found


async def _success(policy: LocalPolicy, split: str, params: Params) -> dict[str, JSON]:
    tasks = generate(params.desk.seed, split, TASKS)
    samples, episodes = await evaluate(
        policy,
        tasks,
        trials=TRIALS,
        seed=params.eval.seed,
        params=params.rollout,
        method=params.resolved_method(),
        renderer=policy.renderer,
        judge=RuleJudge(),
        temperature=1.0,
        concurrency=params.engine.concurrency,
    )
    values = [(s.task, float(s.reward)) for s in samples if s.reward is not None]
    floors = await floor_scores(tasks, params.eval.seed, floor_policies(tasks, params.eval.seed))
    return {
        "success": asdict(score(values, params.report.bootstrap, params.seed)),
        "well_formed_calls": well_formed([g for e in episodes for g in e.generations]),
        "floors": {name: round(s["success"], 4) for name, s in floors.items()},
    }


def well_formed(generations: Sequence[Generation]) -> float:
    """Share of the texts with a tool-call block that can be read."""
    wrote = [g for g in generations if g.role is Role.ACT and "<tool_call>" in g.text]
    return sum(g.failure in READ for g in wrote) / len(wrote) if wrote else 0.0


async def _fidelity(policy: LocalPolicy, params: Params) -> dict[str, JSON]:
    rows = await rehearse_calls(
        policy,
        generate(params.desk.seed, "held", TASKS),
        renderer=policy.renderer,
        method=params.resolved_method(),
        params=params.rollout,
        limit=CALLS,
        seed=params.eval.seed,
        temperature=1.0,
    )
    return asdict(summarise(rows, bootstrap=params.report.bootstrap)[RECORDED])


async def _forms(policy: LocalPolicy, params: Params) -> dict[str, float]:
    """Share of usable self-evaluations and condensations, and of rehearsed responses that keep the
    contract."""
    shared = {"policy": policy, "renderer": policy.renderer, "budget": params.tts, "params": params.rollout}
    shared |= {"method": params.resolved_method(), "prompt_set": load_prompt_set(params.rollout.prompt_set)}
    tasks = generate(params.desk.seed, "held", FORMS_TASKS)
    done = await asyncio.gather(
        *(rehearse(task, mode="parallel", n=2, seed=k, **shared) for k, task in enumerate(tasks))
    )
    tries = [attempt for attempts, _ in done for attempt in attempts]
    answers = [o for a in tries for o in a.episode.observations if o.source is Source.REHEARSAL]
    return {
        "self_evaluation": sum(a.feedback_ok for a in tries) / len(tries),
        "condensation": sum(not memory.fallback for _, memory in done) / len(done),
        "rehearsal": sum(o.failure is None for o in answers) / max(1, len(answers)),
    }
