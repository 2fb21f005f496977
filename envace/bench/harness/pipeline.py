"""One evaluation of one policy on one benchmark, from the pinned harness to score records.

Flows in: an adapter and a request. Flows out: score records, sample records (one for each that was planned) and
what every job left.
Invariant: build, plan, probe, run, scrub, parse, complete, summarise, in this order; no harness starts before every
role answers. A job is done when all its samples were seen and none failed for a reason that is not the agent's;
only then is it not run again.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from envace.bench.harness import resume
from envace.bench.harness.build import build
from envace.bench.harness.probe import probe
from envace.bench.harness.run import run_job
from envace.bench.harness.scrub import Scrubber
from envace.bench.harness.spec import Adapter, EvalRequest, HarnessEnv, Job, RawRun, Say
from envace.bench.summary import complete_plan
from envace.errors import StageFailed, UserError
from envace.track.redact import Redactor
from envace.types import SampleRecord, SampleStatus, ScoreRecord, from_json, replace, to_json


def evaluate(
    adapter: Adapter,
    request: EvalRequest,
    root: Path,
    *,
    say: Say = print,
    bootstrap: int = 2000,
    min_complete: float = 1.0,
    probe_s: float = 30.0,
    **identity: Any,
) -> tuple[list[ScoreRecord], list[SampleRecord], list[RawRun]]:
    """Evaluate, going on where an interrupted run of the same request stopped.

    root: the `.harness` folder. `request.options["parallel"]` jobs run beside each other (1). `identity` (policy,
    policy_hash, variant, versions, data_hash) stands in every score. Raises UserError with one sentence.
    """
    env = build(adapter.spec(request.options), root, say)
    jobs = adapter.plan(env, request)
    _check(adapter, jobs)
    marks = {job.name: resume.job_hash(job, env, request, identity) for job in jobs}
    runs = {job.name: run for job in jobs if (run := resume.done(job, request.out, marks[job.name]))}
    owed = [job for job in jobs if job.name not in runs]
    if runs:
        say(f"{adapter.name}: {len(runs)} of {len(jobs)} jobs are done already")
    if owed:
        _probe_all(adapter, request, probe_s, say)
    for job in owed:
        resume.begin(job, request.out, marks[job.name])
    runs |= _run_all(owed, env, request, say)
    ordered = [runs[job.name] for job in jobs]
    samples = _samples(adapter, env, request, ordered)
    for run in ordered:
        resume.settle(run, samples, marks[run.job.name])
    scores = adapter.summarise(
        env, request, samples, bootstrap=bootstrap, min_complete=min_complete, **identity
    )
    return scores, samples, ordered


def _check(adapter: Adapter, jobs: Sequence[Job]) -> None:
    """An adapter's own mistakes, before hours are spent on them."""
    names, planned = [j.name for j in jobs], [p for j in jobs for p in j.planned]
    for what, seen in (("job", names), ("sample", planned)):
        if twice := {x for x in seen if seen.count(x) > 1} if len(set(seen)) < len(seen) else set():
            raise ValueError(f"{adapter.name} plans {what} {sorted(twice)[0]} twice")
    if not planned:
        raise UserError(f"{adapter.name}: nothing to evaluate; name at least one subset")


def _probe_all(adapter: Adapter, request: EvalRequest, probe_s: float, say: Say) -> None:
    asked = []
    for role, endpoint in resume.roles(request):
        if (who := (endpoint.base_url, endpoint.model, endpoint.key_env)) not in asked:
            asked.append(who)
            say(f"{adapter.name}: asking the {role}'s endpoint for its models")
            probe(endpoint, probe_s)


def _run_all(jobs: Sequence[Job], env: HarnessEnv, request: EvalRequest, say: Say) -> dict[str, RawRun]:
    """Run jobs beside each other. An error or an interruption ends all of them before it is passed on."""
    stop, at_once = threading.Event(), max(1, int(request.options.get("parallel", 1)))
    waiting, running, runs = list(jobs), set[Future[RawRun]](), dict[str, RawRun]()
    with _sigterm_interrupts(), ThreadPoolExecutor(at_once, "job") as pool:
        try:
            while waiting or running:
                while waiting and len(running) < at_once:
                    running.add(pool.submit(run_job, waiting.pop(0), env, request.out, say=say, stop=stop))
                ended, running = wait(running, timeout=0.5, return_when=FIRST_COMPLETED)
                for future in ended:
                    runs[future.result().job.name] = future.result()
        finally:
            stop.set()  # the pool's end waits for the jobs
    return runs


@contextmanager
def _sigterm_interrupts() -> Iterator[None]:
    """SIGTERM as an exception, so that children are ended on the way out. The main thread's business only."""
    if (
        threading.current_thread() is not threading.main_thread()
        or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
    ):
        yield
        return

    def leave(*_: object) -> None:
        raise SystemExit(143)

    signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _samples(
    adapter: Adapter, env: HarnessEnv, request: EvalRequest, runs: Sequence[RawRun]
) -> list[SampleRecord]:
    """One record for each planned sample, without keys; a failed process is named where its sample is missing."""
    planned = [key for run in runs for key in run.job.planned]
    try:
        full = complete_plan(adapter.parse(env, request, runs), planned)
    except ValueError as e:
        raise StageFailed(f"{adapter.name}: the files under {request.out} do not fit the plan: {e}") from e
    keys = [os.environ.get(e.key_env, "") for _, e in resume.roles(request) if e.key_env]
    redact, scrub = Redactor(), Scrubber(keys)
    causes = {key: run.reason for run in runs for key in run.job.planned if run.reason}
    return [_clean(_named(s, causes), lambda text: redact.text(scrub.text(text))) for s in full]


def _named(sample: SampleRecord, causes: dict[tuple[str, int], str]) -> SampleRecord:
    cause = causes.get((sample.task, sample.trial))
    missing = sample.status is SampleStatus.MISSING
    return replace(sample, error=f"{sample.error}: {cause}") if missing and cause else sample


def _clean(sample: SampleRecord, text: Any) -> SampleRecord:
    def walk(value: Any) -> Any:
        if isinstance(value, str):
            return text(value)
        return {k: walk(v) for k, v in value.items()} if isinstance(value, dict) else value

    return from_json(SampleRecord, {k: v if k == "task" else walk(v) for k, v in to_json(sample).items()})
