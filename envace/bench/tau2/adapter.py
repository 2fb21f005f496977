"""tau²-Bench as an adapter: which harness, which processes, what their files say, what it is worth.

Flows in: an `EvalRequest`. Flows out: jobs, sample records, score records (`envace.bench.harness.spec.Adapter`).
Invariant: nothing here starts a process or imports tau². Scores of different revisions, of upstream and fork,
of different tasks, users and judges carry it in `harness`, `data_hash` and `versions`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from envace.bench.harness.spec import EvalRequest, HarnessEnv, HarnessSpec, Job, RawRun
from envace.bench.labels import labels
from envace.bench.tau2 import jobs, sources
from envace.bench.tau2.averages import AVERAGED, Domain, Scoring, average_scores, domain_scores
from envace.bench.tau2.parse import parse_folder
from envace.bench.tau2.sources import Options
from envace.bench.tau2.tasks import SUBSETS, UNSPLIT, TaskInfo, chosen, data_hash, unavailable
from envace.types import JSON, SampleRecord, ScoreRecord


class Tau2:
    """The benchmark `tau2`, from upstream's repository or from the package fork."""

    name = "tau2"
    subsets = SUBSETS
    default = AVERAGED

    def spec(self, options: dict[str, JSON]) -> HarnessSpec:
        return sources.spec(Options.of(options))

    def plan(self, env: HarnessEnv, request: EvalRequest) -> list[Job]:
        o = Options.of(request.options)
        jobs.check_room(request.roles.agent)
        owed = _owed(env, request, o)
        played = [jobs.play_job(env, request, o, subset, tasks) for subset, tasks in owed.items()]
        return [*played, jobs.floor_job(env, request, o, owed)] if o.floor and owed else played

    def parse(self, env: HarnessEnv, request: EvalRequest, runs: Sequence[RawRun]) -> list[SampleRecord]:
        played = [run for run in runs if run.job.planned]  # the floor owes none
        found = [
            parse_folder((run.folder / jobs.RESULTS).parent, run.job.name, run.job.planned) for run in played
        ]
        return [record for records in found for record in records]

    def summarise(
        self,
        env: HarnessEnv,
        request: EvalRequest,
        samples: Sequence[SampleRecord],
        *,
        bootstrap: int = 2000,
        min_complete: float = 1.0,
        skipped: tuple[str, ...] = (),
        **identity: Any,
    ) -> list[ScoreRecord]:
        o = Options.of(request.options)
        owed = _owed(env, request, o)
        how = Scoring(
            seed=request.seed,
            bootstrap=bootstrap,
            min_complete=min_complete,
            skipped=(*skipped, *_skipped(request, o)),
            identity={"harness": env.identity, "variant": request.variant, **identity},
        )
        domains = {name: _domain(env, request, o, name, tasks, samples) for name, tasks in owed.items()}
        scores = [record for d in domains.values() for record in domain_scores(d, how)]
        return [*scores, *average_scores(domains, _absent(request, o), how)]


def _owed(env: HarnessEnv, request: EvalRequest, o: Options) -> dict[str, list[TaskInfo]]:
    """Subset -> its chosen tasks, without those that cannot be had. Raises UserError for an unknown subset."""
    have = [subset for subset in dict.fromkeys(request.subsets) if not unavailable(o, subset)]
    return {subset: chosen(env, o, subset, request.limit, request.seed) for subset in have}


def _skipped(request: EvalRequest, o: Options) -> list[str]:
    return [reason for subset in request.subsets if (reason := unavailable(o, subset))]


def _absent(request: EvalRequest, o: Options) -> dict[str, str]:
    """Why a domain of the averages is not among the scores."""
    return {name: unavailable(o, name) or f"{name}: not asked for" for name in AVERAGED}


def _domain(
    env: HarnessEnv,
    request: EvalRequest,
    o: Options,
    name: str,
    tasks: Sequence[TaskInfo],
    samples: Sequence[SampleRecord],
) -> Domain:
    data = data_hash(env, o, name)
    shared = labels(request, data, user=True, judge=any(t.judged for t in tasks))
    return Domain(
        name=name,
        samples=[s for s in samples if s.task.split("/", 1)[0] == name],
        trials=request.trials,
        floor=_floor(request, name),
        data_hash=data,
        versions=shared | _labels(env, request, o, name, tasks),
    )


def _labels(
    env: HarnessEnv, request: EvalRequest, o: Options, name: str, tasks: Sequence[TaskInfo]
) -> dict[str, str]:
    """What a tau² score cannot be read without, beyond what all benchmarks say."""
    own = {
        "tau2": env.spec.label or env.spec.version,
        "tau2_source": o.source,
        "tau2_split": o.split,
        "tau2_basis": "; ".join(sorted({"+".join(t.basis) for t in tasks})),
    }
    if name in UNSPLIT:
        own["tau2_retrieval"] = o.retrieval
    if o.floor and _floor(request, name) is None:
        own["tau2_floor"] = "could not be played, see the log of the job floor"
    return own


def _floor(request: EvalRequest, name: str) -> float | None:
    """Reward of the agent that does nothing on the same tasks, or None where it was not played.

    It has said nothing that a judge could find right, so a task with sentences to judge counts 0.
    """
    folder = (jobs.floor_folder(request, name) / jobs.RESULTS).parent
    played = parse_folder(folder, name)
    return sum(s.reward or 0.0 for s in played) / len(played) if played else None  # unjudged counts 0
