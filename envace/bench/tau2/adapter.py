"""tau²-Bench as an adapter: which harness, which processes, what their files say, what it is worth.

Invariant: nothing here starts a process or imports tau². Scores of different revisions, of upstream and fork,
of different tasks, users and judges carry it in `harness`, `data_hash` and `versions`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Unpack

from envace.bench.harness.planning import check_room
from envace.bench.harness.spec import EvalRequest, HarnessEnv, HarnessJob, HarnessSpec, RawRun
from envace.bench.labels import identity_of, labels
from envace.bench.summary import Identity
from envace.bench.tau2 import jobs, tasks
from envace.bench.tau2.parse import parse_folder
from envace.bench.tau2.scores import Tau2Domain, average_scores, domain_scores
from envace.bench.tau2.tasks import Tau2Options, Tau2Task
from envace.types import JSON, SampleRecord, ScoreRecord


class Tau2:
    """The benchmark `tau2`, from upstream's repository or from the package fork."""

    name = "tau2"
    subsets = tasks.SUBSETS
    default = tasks.AVERAGED

    def spec(self, options: dict[str, JSON]) -> HarnessSpec:
        return tasks.spec(Tau2Options.of(options))

    def plan(self, env: HarnessEnv, request: EvalRequest) -> list[HarnessJob]:
        o = Tau2Options.of(request.options)
        check_room("tau2", request.roles.agent)
        owed = tasks.owed(env, request, o)
        played = [jobs.play_job(env, request, o, subset, own) for subset, own in owed.items()]
        return [*played, jobs.floor_job(env, request, o, owed)] if o.floor and owed else played

    def parse(self, env: HarnessEnv, request: EvalRequest, runs: Sequence[RawRun]) -> list[SampleRecord]:
        return [
            record
            for run in runs
            if run.job.planned  # the floor owes none
            for record in parse_folder((run.folder / jobs.RESULTS).parent, run.job.name, run.job.planned)
        ]

    def summarise(
        self,
        env: HarnessEnv,
        request: EvalRequest,
        samples: Sequence[SampleRecord],
        *,
        bootstrap: int = 2000,
        min_complete: float = 1.0,
        **identity: Unpack[Identity],
    ) -> list[ScoreRecord]:
        o = Tau2Options.of(request.options)
        reasons = [reason for subset in request.subsets if (reason := tasks.unavailable(o, subset))]
        said: Identity = {**identity, "skipped": (*identity.get("skipped", ()), *reasons)}
        how = {"bootstrap": bootstrap, "min_complete": min_complete}
        domains = []
        for name, own in tasks.owed(env, request, o).items():
            data = tasks.data_hash(env, o, name)
            versions = labels(request, data, user=True, judge=any(t.judged for t in own))
            versions |= _labels(env, request, o, name, own)
            domains.append(
                Tau2Domain(
                    name=name,
                    samples=[s for s in samples if s.task.split("/", 1)[0] == name],
                    trials=request.trials,
                    floor=floor(request, name),
                    identity=identity_of(env, request, data, said, versions),
                )
            )
        absent = {name: tasks.unavailable(o, name) or f"{name}: not asked for" for name in tasks.AVERAGED}
        scores = [record for d in domains for record in domain_scores(d, **how)]
        return [*scores, *average_scores(domains, absent, **how)]


def _labels(
    env: HarnessEnv, request: EvalRequest, o: Tau2Options, name: str, owed: Sequence[Tau2Task]
) -> dict[str, str]:
    """What a tau² score cannot be read without, beyond what all benchmarks say."""
    own = {
        "tau2": env.spec.label or env.spec.version,
        "tau2_source": o.source,
        "tau2_split": o.split,
        "tau2_basis": "; ".join(sorted({"+".join(t.basis) for t in owed})),
    }
    if name == tasks.UNSPLIT:
        own["tau2_retrieval"] = o.retrieval
    if o.floor and floor(request, name) is None:
        own["tau2_floor"] = "could not be played, see the log of the job floor"
    return own


def floor(request: EvalRequest, name: str) -> float | None:
    """Reward of the agent that does nothing on the same tasks, or None where it was not played.

    It has said nothing that a judge could find right, so a task with sentences to judge counts 0.
    """
    played = parse_folder((jobs.floor_folder(request, name) / jobs.RESULTS).parent, name)
    return sum(s.reward or 0.0 for s in played) / len(played) if played else None  # unjudged counts 0
