"""Which jobs of an evaluation are done, and what an unfinished one may find in its folder.

Flows in: jobs and the hash of what their outcome depends on. Flows out: `begun.json` and `done.json` (or
`ended.json`) in a job's folder, read back by a later evaluation. Invariant: a job counts as done only under
the very same hash, and only when each of its samples was seen and none failed for a reason that is not the
agent's; else it has only ended, and whoever asks for less may take it so. Files that no evaluation left are
never touched."""

from __future__ import annotations

import hashlib
import inspect
import json
import re
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

from envace.bench.harness.build import versions
from envace.bench.harness.spec import Adapter, EvalRequest, HarnessEnv, HarnessJob, RawRun
from envace.errors import UserError
from envace.io.addresses import is_loopback, origin
from envace.io.files import write_text
from envace.types import JSON, Endpoint, SampleRecord, SampleStatus, replace, to_json

ENVACE = Path(__file__).resolve().parents[2]
BEGUN, DONE, ENDED = "begun.json", "done.json", "ended.json"
SETTLED = {SampleStatus.SCORED, SampleStatus.AGENT_FAILURE}


class Marks:
    """The hash of each job's outcome: how many run beside each other and how long they may take do not count.

    Taken from a second plan in which such numbers are fixed, because adapters write them into files of their
    own. A third one, of a single trial, is what a job that holds all trials has in common with itself at
    fewer."""

    def __init__(self, adapter: Adapter, env: HarnessEnv, request: EvalRequest, identity: dict[str, JSON]):
        code = code_hash(code_files(Path(inspect.getfile(type(adapter))).parent))

        def of(**fixed: JSON) -> dict[str, str]:
            asked = replace(request, concurrency=1, deadline_s=1.0, **fixed)
            return {job.name: job_hash(job, env, asked, identity, code) for job in adapter.plan(env, asked)}

        self.whole, self.stem = of(), of(trials=1)

    def of(self, job: HarnessJob) -> dict[str, JSON]:
        """As begun.json has it."""
        return {
            "hash": self.whole[job.name],
            "stem": self.stem.get(job.name, ""),
            "samples": len(job.planned),
        }


def code_files(own: Path) -> list[Path]:
    """Files of this project that shape what a harness leaves: the benchmark's `own` folder, and what serves
    and reads the answers."""
    served = [*(ENVACE / "serving").glob("*.py"), *(ENVACE / "chat").glob("*.py")]
    shared = [ENVACE / "bench/harness/answers.py", *(ENVACE / "io").glob("chat_*.py")]
    return sorted({*(p for p in own.iterdir() if p.is_file()), *served, *shared})


def code_hash(files: Sequence[Path]) -> str:
    """Hash of the files' names and content, wherever the project lies."""
    sums = [(p.parent.name, p.name, hashlib.sha256(p.read_bytes()).hexdigest()) for p in files]
    return hashlib.sha256(json.dumps(sorted(sums)).encode()).hexdigest()


def job_hash(
    job: HarnessJob, env: HarnessEnv, request: EvalRequest, identity: dict[str, JSON], code: str
) -> str:
    """What a job's outcome depends on; `code` is the hash of the code that runs it. The free port a local
    server was given does not count, provided that `policy_hash` says what it serves."""
    own = {k: v for k, v in asdict(job).items() if k not in ("deadline_s", "name")}
    asked = {role: {**to_json(e), "base_url": ""} for role, e in roles(request)}
    whose = {k: identity.get(k) for k in ("policy", "policy_hash", "variant")}
    text = json.dumps([env.spec.ref, versions(env), code, own, asked, whose], sort_keys=True, default=str)
    # by role, as adapters list them: in the order of addresses, a number would depend on the port
    for i, address in enumerate(job.reaches if identity.get("policy_hash") else ()):
        if is_loopback(address):
            text = re.sub(re.escape(origin(address)) + r"(?!\d)", f"<local {i}>", text)
    return hashlib.sha256(text.encode()).hexdigest()


def roles(request: EvalRequest) -> Iterator[tuple[str, Endpoint]]:
    """Every role that is filled."""
    for role in ("agent", "user", "judge"):
        if (endpoint := getattr(request.roles, role)) is not None:
            yield role, endpoint


def done(job: HarnessJob, out: Path, marks: Marks, file: str = DONE) -> RawRun | None:
    """What a finished run of this very job left; with `ENDED`, one that left some samples without a score."""
    folder = out.resolve() / job.name
    try:
        said = json.loads((folder / file).read_text())
        if said["hash"] != marks.whole[job.name]:
            return None
        return RawRun(
            job=job,
            folder=folder,
            code=said["code"],
            seconds=said["seconds"],
            log=folder / "log.txt",
            isolated=said["isolated"],
            reason=said["reason"],
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None


def begin(job: HarnessJob, out: Path, marks: Marks) -> None:
    """A folder for the job: what an interrupted run, or one of fewer trials, left when the harness can go on
    from there, else empty.

    Raises UserError for a folder that holds files of somebody else.
    """
    folder = out.resolve() / job.name
    begun = folder / BEGUN
    if folder.is_dir() and any(folder.iterdir()):
        if not begun.is_file():
            raise UserError(
                f"{folder} holds files that no evaluation left: remove it, or write to another folder"
            )
        if not (job.goes_on and _continues(json.loads(begun.read_text() or "{}"), marks.of(job))):
            shutil.rmtree(folder)
    for file in (DONE, ENDED):
        (folder / file).unlink(missing_ok=True)
    write_text(begun, json.dumps(marks.of(job)))


def _continues(earlier: dict[str, JSON], now: dict[str, JSON]) -> bool:
    """The same job, or the same but for more trials."""
    if earlier.get("hash") == now["hash"]:
        return True
    return bool(now["stem"]) and earlier.get("stem") == now["stem"] and earlier["samples"] < now["samples"]


def settle(run: RawRun, samples: Sequence[SampleRecord], marks: Marks) -> None:
    """Mark a job done when nothing of it needs another run, else ended. One that owes no samples is judged by
    its exit status."""
    owed = set(run.job.planned)
    settled = all(s.status in SETTLED for s in samples if (s.task, s.trial) in owed)
    settled = settled if owed else run.code == 0
    said = {
        "hash": marks.whole[run.job.name],
        "code": run.code,
        "seconds": run.seconds,
        "isolated": run.isolated,
        "reason": run.reason,
    }
    mark, other = (DONE, ENDED) if settled else (ENDED, DONE)
    (run.folder / other).unlink(missing_ok=True)
    write_text(run.folder / mark, json.dumps(said))


def lost(samples: Sequence[SampleRecord]) -> list[SampleRecord]:
    """Those without a score."""
    return [s for s in samples if s.status not in SETTLED]
