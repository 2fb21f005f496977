"""Which jobs of an evaluation are done, and what an unfinished one may find in its folder.

A job's folder holds `begun.json`, `done.json` or `ended.json`, and `again.json` with the samples that have no
score, a judge's failure in a dialogue that was kept included: the driver plays those again.
Invariant: a job counts as done only under the very same hash, and only when each of its samples was seen and
none failed for a reason that is not the agent's. Files that no evaluation left are never touched.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import re
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from envace.bench.harness.build import ready
from envace.bench.harness.spec import Adapter, EvalRequest, HarnessEnv, HarnessJob, RawRun
from envace.bench.summary import Identity, lost
from envace.errors import UserError
from envace.io.addresses import is_loopback, origin
from envace.io.files import sha256, write_text
from envace.types import JSON, SampleRecord, replace, to_json

ENVACE = Path(__file__).resolve().parents[2]
BEGUN, DONE, ENDED = "begun.json", "done.json", "ended.json"
AGAIN = "again.json"


@dataclass(frozen=True, slots=True)
class Marks:
    """Job -> the hash of its outcome; the `stem` is that of the same job with a single trial, which a job
    that holds all trials has in common with itself at fewer.
    """

    whole: dict[str, str]
    stem: dict[str, str]

    @classmethod
    def of(cls, adapter: Adapter, env: HarnessEnv, request: EvalRequest, identity: Identity) -> Marks:
        """How many run beside each other and how long they may take do not count: they are fixed in a plan
        made for this, because adapters write them into files of their own.
        """
        files = code_files(Path(inspect.getfile(type(adapter))).parent)
        code = sorted([p.parent.name, p.name, sha256(p)] for p in files)  # wherever the project lies
        alike = replace(request, concurrency=1, deadline_s=1.0)
        whole, stem = (
            {job.name: _hash(job, env, asked, identity, code) for job in adapter.plan(env, asked)}
            for asked in (alike, replace(alike, trials=1))
        )
        return cls(whole, stem)


def code_files(own: Path) -> list[Path]:
    """Files of this project that shape what a harness leaves: those of the benchmark's `own` folder, and what
    serves and reads the answers.
    """
    served = [*(ENVACE / "serving").glob("*.py"), *(ENVACE / "chat").glob("*.py")]
    shared = [ENVACE / "bench/harness/answers.py", *(ENVACE / "io").glob("chat_*.py")]
    return sorted({*(p for p in own.iterdir() if p.is_file()), *served, *shared})


def _hash(job: HarnessJob, env: HarnessEnv, request: EvalRequest, identity: Identity, code: JSON) -> str:
    """What a job's outcome depends on. The free port a local server was given does not count, provided that
    `policy_hash` says what it serves.
    """
    own = {k: v for k, v in asdict(job).items() if k not in ("deadline_s", "name", "tally")}
    asked = {role: {**to_json(e), "base_url": ""} for role, e in request.roles.filled().items()}
    whose = [identity.get("policy"), identity.get("policy_hash"), identity.get("variant")]
    made = [env.spec.ref, ready(env)["versions"], code, own, asked, whose]
    text = json.dumps(made, sort_keys=True, default=str)
    # by role, as adapters list them: in the order of addresses, a number would depend on the port
    for i, address in enumerate(job.reaches if identity.get("policy_hash") else ()):
        if is_loopback(address):
            text = re.sub(re.escape(origin(address)) + r"(?!\d)", f"<local {i}>", text)
    return hashlib.sha256(text.encode()).hexdigest()


def done(job: HarnessJob, out: Path, marks: Marks, file: str = DONE) -> RawRun | None:
    """What a finished run of this very job left; with `ENDED`, one that left some samples without a score."""
    folder = out.resolve() / job.name
    try:
        said = json.loads((folder / file).read_text())
        if said.pop("hash") != marks.whole[job.name]:
            return None
        return RawRun(job=job, folder=folder, log=folder / "log.txt", **said)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def begin(job: HarnessJob, out: Path, marks: Marks) -> None:
    """A folder for the job: what an interrupted run, or one of fewer trials, left when the harness can go on
    from there, else empty. Raises UserError for a folder that holds files of somebody else.
    """
    folder = out.resolve() / job.name
    now = {"hash": marks.whole[job.name], "stem": marks.stem.get(job.name, ""), "samples": len(job.planned)}
    if folder.is_dir() and any(folder.iterdir()):
        if not (folder / BEGUN).is_file():
            raise UserError(
                f"{folder} holds files that no evaluation left: remove it, or write to another folder"
            )
        earlier = json.loads((folder / BEGUN).read_text() or "{}")
        same = earlier.get("hash") == now["hash"]
        fewer = now["stem"] and earlier.get("stem") == now["stem"] and earlier["samples"] < now["samples"]
        if not (job.goes_on and (same or fewer)):
            shutil.rmtree(folder)
    for file in (DONE, ENDED):
        (folder / file).unlink(missing_ok=True)
    write_text(folder / BEGUN, json.dumps(now))


def settle(run: RawRun, samples: Sequence[SampleRecord], marks: Marks) -> None:
    """Mark a job done when nothing of it needs another run, else ended. One that owes no samples is judged by
    its exit status.
    """
    owed = set(run.job.planned)
    gone = lost(s for s in samples if (s.task, s.trial) in owed)
    settled = not gone if owed else run.code == 0
    said = {name: getattr(run, name) for name in ("code", "seconds", "isolated", "reason")}
    mark, other = (DONE, ENDED) if settled else (ENDED, DONE)
    (run.folder / other).unlink(missing_ok=True)
    write_text(run.folder / AGAIN, json.dumps([[s.task, s.trial] for s in gone]))
    write_text(run.folder / mark, json.dumps({"hash": marks.whole[run.job.name], **said}))
