"""Which jobs of an evaluation are done, and what an unfinished one may find in its folder.

Flows in: jobs and the hash of what their outcome depends on. Flows out: `begun.json` and `done.json` in a job's
folder, read back by a later evaluation.
Invariant: a job counts as done only under the very same hash, and only when each of its samples was seen and none
failed for a reason that is not the agent's. Files that no evaluation left are never touched.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from envace.bench.harness.build import versions
from envace.bench.harness.relay import is_loopback, origin
from envace.bench.harness.spec import EvalRequest, HarnessEnv, Job, RawRun
from envace.data.atomic import write_text
from envace.errors import UserError
from envace.types import Endpoint, SampleRecord, SampleStatus, to_json

BEGUN, DONE = "begun.json", "done.json"
SETTLED = {SampleStatus.SCORED, SampleStatus.AGENT_FAILURE}


def job_hash(job: Job, env: HarnessEnv, request: EvalRequest, identity: dict[str, Any]) -> str:
    """What a job's outcome depends on. The free port a local server was given does not count, provided that
    `policy_hash` says what it serves."""
    own = {k: v for k, v in asdict(job).items() if k not in ("deadline_s", "name")}
    asked = {role: {**to_json(e), "base_url": ""} for role, e in roles(request)}
    whose = {k: identity.get(k) for k in ("policy", "policy_hash", "variant")}
    text = json.dumps([env.spec.ref, versions(env), own, asked, whose], sort_keys=True, default=str)
    for i, address in enumerate(sorted(job.reaches) if identity.get("policy_hash") else ()):
        if is_loopback(address):
            text = re.sub(re.escape(origin(address)) + r"(?!\d)", f"<local {i}>", text)
    return hashlib.sha256(text.encode()).hexdigest()


def roles(request: EvalRequest) -> Iterator[tuple[str, Endpoint]]:
    """Every role that is filled."""
    for role in ("agent", "user", "judge"):
        if (endpoint := getattr(request.roles, role)) is not None:
            yield role, endpoint


def done(job: Job, out: Path, mark: str) -> RawRun | None:
    """What a finished run of this very job left."""
    folder = out.resolve() / job.name
    try:
        said = json.loads((folder / DONE).read_text())
        if said["hash"] != mark:
            return None
        return RawRun(job=job, folder=folder, code=said["code"], seconds=said["seconds"], log=folder / "log.txt",
                      isolated=said["isolated"], reason=said["reason"])  # fmt: skip
    except (OSError, ValueError, KeyError, TypeError):
        return None


def begin(job: Job, out: Path, mark: str) -> None:
    """A folder for the job: what an interrupted run left when the harness can go on from there, else empty.

    Raises UserError for a folder that holds files of somebody else.
    """
    folder = out.resolve() / job.name
    begun = folder / BEGUN
    if folder.is_dir() and any(folder.iterdir()):
        if not begun.is_file():
            raise UserError(
                f"{folder} holds files that no evaluation left: remove it, or write to another folder"
            )
        if not (job.goes_on and json.loads(begun.read_text() or "{}").get("hash") == mark):
            shutil.rmtree(folder)
    (folder / DONE).unlink(missing_ok=True)
    write_text(begun, json.dumps({"hash": mark}))


def settle(run: RawRun, samples: Sequence[SampleRecord], mark: str) -> None:
    """Mark a job done when nothing of it needs another run."""
    owed = set(run.job.planned)
    if all(s.status in SETTLED for s in samples if (s.task, s.trial) in owed):
        said = {
            "hash": mark,
            "code": run.code,
            "seconds": run.seconds,
            "isolated": run.isolated,
            "reason": run.reason,
        }
        write_text(run.folder / DONE, json.dumps(said))
