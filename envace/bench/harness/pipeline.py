"""One evaluation of one policy on one benchmark, from the pinned harness to score records.

Flows in: an adapter and a request. Flows out: score records, sample records (one for each that was planned)
and what every job left. Invariant: build, plan, probe, run, scrub, parse, complete, summarise, in this order;
no harness starts before every role answers. A job is done when all its samples were seen and none failed for
a reason that is not the agent's; only then is it not run again, unless what ended is complete enough for
`min_complete`."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from pathlib import Path
from typing import Unpack

from envace.bench.harness import resume
from envace.bench.harness.build import build
from envace.bench.harness.run import run_job
from envace.bench.harness.spec import Adapter, EvalRequest, HarnessEnv, HarnessJob, RawRun, Say
from envace.bench.summary import Identity, complete_enough, complete_plan
from envace.errors import StageFailed, UserError
from envace.io.redact import Redactor
from envace.serving.checks import probe
from envace.types import JSON, SampleRecord, SampleStatus, ScoreRecord, from_json, replace, to_json


def evaluate(
    adapter: Adapter,
    request: EvalRequest,
    root: Path,
    *,
    say: Say = print,
    bootstrap: int = 2000,
    min_complete: float = 1.0,
    probe_s: float = 30.0,
    **identity: Unpack[Identity],
) -> tuple[list[ScoreRecord], list[SampleRecord], list[RawRun]]:
    """Evaluate, going on where an interrupted run of the same request stopped.

    root: the `.harness` folder. `request.options["parallel"]` jobs run beside each other (1). `identity`
    (policy, policy_hash, variant, versions, data_hash) stands in every score. Raises UserError with one
    sentence."""
    env = build(adapter.spec(request.options), root, say)
    jobs = adapter.plan(env, request)
    _check(adapter, jobs)
    marks = resume.Marks(adapter, env, request, identity)
    runs = _finished(adapter, env, request, jobs, marks, min_complete, say)
    owed = [job for job in jobs if job.name not in runs]
    if owed:
        _probe_all(adapter, request, probe_s, say)
    for job in owed:
        resume.begin(job, request.out, marks)
    runs |= _run_all(owed, env, request, say)
    ordered = [runs[job.name] for job in jobs]
    samples = _samples(adapter, env, request, ordered)
    for run in ordered:
        resume.settle(run, samples, marks)
    scores = adapter.summarise(
        env, request, samples, bootstrap=bootstrap, min_complete=min_complete, **identity
    )
    return scores, samples, ordered


def _finished(
    adapter: Adapter,
    env: HarnessEnv,
    request: EvalRequest,
    jobs: Sequence[HarnessJob],
    marks: resume.Marks,
    min_complete: float,
    say: Say,
) -> dict[str, RawRun]:
    """Jobs that are not run again: those that are done, and all that ended where the whole is complete
    enough.

    One that owes no samples has no share of the whole: it is run until it succeeds.
    """
    runs = {job.name: run for job in jobs if (run := resume.done(job, request.out, marks))}
    if runs:
        say(f"{adapter.name}: {len(runs)} of {len(jobs)} jobs are done already")
    ended = {
        job.name: run
        for job in jobs
        if job.planned
        and job.name not in runs
        and (run := resume.done(job, request.out, marks, resume.ENDED))
    }
    both = runs | ended
    if not ended or any(job.name not in both for job in jobs if job.planned):
        return runs
    samples = _samples(adapter, env, request, [both[job.name] for job in jobs if job.name in both])
    if not complete_enough(samples, min_complete):
        return runs
    say(
        f"{adapter.name}: {len(resume.lost(samples))} of {len(samples)} samples have no score; taken as they "
        "are"
    )
    return both


def _check(adapter: Adapter, jobs: Sequence[HarnessJob]) -> None:
    """An adapter's own mistakes, before hours are spent on them."""
    names, planned = [j.name for j in jobs], [p for j in jobs for p in j.planned]
    for what, seen in (("job", names), ("sample", planned)):
        if twice := {x for x in seen if seen.count(x) > 1} if len(set(seen)) < len(seen) else set():
            raise ValueError(f"{adapter.name} plans {what} {sorted(twice)[0]} twice")
    if not planned:
        raise UserError(f"{adapter.name}: nothing to evaluate; name at least one subset")


def _warn_shared(adapter: Adapter, request: EvalRequest, say: Say) -> None:
    """A user or judge that is the agent itself knows its ways, and the two wait for each other's requests."""
    agent = request.roles.agent
    for role, e in resume.roles(request):
        if role != "agent" and (e.base_url.rstrip("/"), e.model) == (agent.base_url.rstrip("/"), agent.model):
            say(
                f"{adapter.name}: warning: the {role} is the agent's own model at the agent's own address; "
                "its scores "
                f"favour the agent. Name another server by bench.{role}"
            )


def _probe_all(adapter: Adapter, request: EvalRequest, probe_s: float, say: Say) -> None:
    _warn_shared(adapter, request, say)
    asked = []
    for role, endpoint in resume.roles(request):
        if (who := (endpoint.base_url, endpoint.model, endpoint.key_env)) not in asked:
            asked.append(who)
            say(f"{adapter.name}: asking the {role}'s endpoint for its models")
            probe(endpoint, probe_s)


def _run_all(
    jobs: Sequence[HarnessJob], env: HarnessEnv, request: EvalRequest, say: Say
) -> dict[str, RawRun]:
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
    """One record for each planned sample, without keys; a failed process is named where its sample is
    missing."""
    planned = [key for run in runs for key in run.job.planned]
    try:
        full = complete_plan(adapter.parse(env, request, runs), planned)
    except ValueError as e:
        raise StageFailed(f"{adapter.name}: the files under {request.out} do not fit the plan: {e}") from e
    redact = Redactor([request.options, *(to_json(e) for _, e in resume.roles(request))])
    causes = {key: run.reason for run in runs for key in run.job.planned if run.reason}
    return [_clean(_named(s, causes), redact.text) for s in full]


def _named(sample: SampleRecord, causes: dict[tuple[str, int], str]) -> SampleRecord:
    cause = causes.get((sample.task, sample.trial))
    missing = sample.status is SampleStatus.MISSING
    return replace(sample, error=f"{sample.error}: {cause}") if missing and cause else sample


def _clean(sample: SampleRecord, text: Callable[[str], str]) -> SampleRecord:
    def walk(value: JSON) -> JSON:
        if isinstance(value, str):
            return text(value)
        return {k: walk(v) for k, v in value.items()} if isinstance(value, dict) else value

    return from_json(SampleRecord, {k: v if k == "task" else walk(v) for k, v in to_json(sample).items()})
