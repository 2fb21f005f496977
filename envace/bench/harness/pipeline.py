"""One evaluation of one policy on one benchmark, from the pinned harness to score records.

Invariant: build, plan, probe, run, scrub, parse, complete, summarise, in this order; no harness starts before
every role answers. A job is done when all its samples were seen and none failed for a reason that is not the
agent's; only then is it not run again, unless what ended is complete enough for `min_complete`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Unpack

from envace.bench.harness import resume
from envace.bench.harness.build import build
from envace.bench.harness.run import run_job
from envace.bench.harness.spec import Adapter, EvalRequest, HarnessEnv, HarnessJob, RawRun, Say
from envace.bench.summary import Identity, complete_enough, complete_plan, lost
from envace.errors import StageFailed, UserError
from envace.io.redact import Redactor
from envace.serving.checks import probe
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
    **identity: Unpack[Identity],
) -> tuple[list[ScoreRecord], list[SampleRecord], list[RawRun]]:
    """Evaluate, going on where an interrupted run of the same request stopped.

    root: the `.harness` folder. `request.options["parallel"]` jobs run beside each other (1). `identity`
    (policy, policy_hash, variant, versions, data_hash) stands in every score. Raises UserError with one
    sentence.
    """
    env, name = build(adapter.spec(request.options), root, say), adapter.name
    request = replace(request, roles=request.roles.only(adapter.asks))
    jobs = adapter.plan(env, request)
    if not any(job.planned for job in jobs):
        raise UserError(f"{name}: nothing to evaluate; name at least one subset")
    marks = resume.Marks.of(adapter, env, request, identity)
    runs = {job.name: run for job in jobs if (run := resume.done(job, request.out, marks))}
    if runs:
        say(f"{name}: {len(runs)} of {len(jobs)} jobs are done already")
    # a job that owes no samples has no share of the whole: it is run until it succeeds
    left = {
        job.name: run
        for job in jobs
        if job.planned
        and job.name not in runs
        and (run := resume.done(job, request.out, marks, resume.ENDED))
    }
    if left and all(job.name in runs or job.name in left for job in jobs if job.planned):
        both = runs | left
        samples = samples_of(adapter, env, request, [both[j.name] for j in jobs if j.name in both])
        if complete_enough(samples, min_complete):
            gone = len(lost(samples))
            say(f"{name}: {gone} of {len(samples)} samples have no score; taken as they are")
            runs = both
    if owed := [job for job in jobs if job.name not in runs]:
        check_roles(name, request, owed, probe_s, say)
    for job in owed:
        resume.begin(job, request.out, marks)
    runs |= _run(owed, env, request, say)
    ordered = [runs[job.name] for job in jobs]
    samples = samples_of(adapter, env, request, ordered)
    for run in ordered:
        resume.settle(run, samples, marks)
    how = {"bootstrap": bootstrap, "min_complete": min_complete}
    return adapter.summarise(env, request, samples, **how, **identity), samples, ordered


def check_roles(
    name: str, request: EvalRequest, jobs: Sequence[HarnessJob], probe_s: float, say: Say
) -> None:
    """Ask the server of every role that a job reaches for its models; warn of a user or judge that is the
    agent itself, since it knows its own ways and the two wait for each other's requests. Raises
    EnvironmentUnready for a server that does not answer.
    """
    reached, asked, agent = {a.rstrip("/") for job in jobs for a in job.reaches}, set(), request.roles.agent
    roles = {r: e for r, e in request.roles.filled().items() if e.base_url.rstrip("/") in reached}
    for role, e in roles.items():
        if role != "agent" and (e.base_url.rstrip("/"), e.model) == (agent.base_url.rstrip("/"), agent.model):
            say(
                f"{name}: warning: the {role} is the agent's own model at the agent's own address; its "
                f"scores favour the agent. Name another server by bench.{role}"
            )
    for role, e in roles.items():
        if (e.base_url, e.model, e.key_env) not in asked:
            asked.add((e.base_url, e.model, e.key_env))
            say(f"{name}: asking the {role}'s endpoint for its models")
            probe(e, probe_s)


def _run(jobs: Sequence[HarnessJob], env: HarnessEnv, request: EvalRequest, say: Say) -> dict[str, RawRun]:
    """Run jobs beside each other. An error or an interruption ends all of them before it is passed on."""
    stop, at_once = threading.Event(), max(1, int(request.options.get("parallel", 1)))
    waiting, running, runs = list(jobs), set[Future[RawRun]](), dict[str, RawRun]()
    began, total = time.monotonic(), len(jobs)
    with ThreadPoolExecutor(at_once, "job") as pool:
        try:
            while waiting or running:
                while waiting and len(running) < at_once:
                    running.add(pool.submit(run_job, waiting.pop(0), env, request.out, say=say, stop=stop))
                ended, running = wait(running, timeout=0.5, return_when=FIRST_COMPLETED)
                runs |= {run.job.name: run for run in (future.result() for future in ended)}
                if ended and waiting:
                    left = (time.monotonic() - began) / len(runs) * (total - len(runs))
                    say(f"{env.spec.name}: {len(runs)} of {total} jobs have ended, about {left:.0f} s left")
        finally:
            stop.set()  # the pool's end waits for the jobs
    return runs


def samples_of(
    adapter: Adapter, env: HarnessEnv, request: EvalRequest, runs: Sequence[RawRun]
) -> list[SampleRecord]:
    """One record for each planned sample, without keys; a failed process is named where its sample is
    missing. Raises StageFailed for files that do not fit the plan.
    """
    try:
        full = complete_plan(
            adapter.parse(env, request, runs), [key for run in runs for key in run.job.planned]
        )
    except ValueError as e:
        raise StageFailed(f"{adapter.name}: the files under {request.out} do not fit the plan: {e}") from e
    redact = Redactor([request.options, *map(to_json, request.roles.filled().values())])
    causes = {key: run.reason for run in runs for key in run.job.planned if run.reason}
    clean = []
    for sample in full:
        cause = causes.get((sample.task, sample.trial))
        if cause and sample.status is SampleStatus.MISSING:
            sample = replace(sample, error=f"{sample.error}: {cause}")
        clean.append(from_json(SampleRecord, redact.data(to_json(sample)) | {"task": sample.task}))
    return clean
