"""What was asked for, what was fetched, and `source.json`, which remembers it.

Flows in: the `data` section of the parameters; a store's listing. Flows out: records, and the difference
between a listing and what was fetched earlier. Invariant: `source.json` says `complete` only of a folder that
held every listed file with its checksum."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TypeVar

from envace.config import Params
from envace.data.progress import Say
from envace.data.stores import Remote
from envace.errors import DataError, ParamsError
from envace.io.files import sha256, unwritable, write_text
from envace.types import JSON

T = TypeVar("T")
U = TypeVar("U")
ENDINGS = (".json", ".jsonl", ".parquet")
FORMAT = 1  # of source.json
NAMED = 5  # files a message names at most
NEEDED = ("train", "held")  # splits that data.splits must name the files of
UNSTATED = "as the source states"  # the licence of a source that names none


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the parameters ask for."""

    kind: str
    uri: str
    revision: str
    patterns: tuple[str, ...]
    """As the hub's: * crosses slashes, a trailing slash means everything below."""
    sums: dict[str, str]
    """File name -> sha256."""
    accept_changed: bool

    @classmethod
    def of(cls, params: Params) -> Wanted:
        d = params.data
        sums = {name: value.lower() for name, value in d.sha256.items()}
        return cls(d.source, d.uri, d.revision, tuple(d.patterns), sums, d.accept_changed)

    @property
    def key(self) -> str:
        """Names the folder: another source, address, revision or choice of files is another folder."""
        text = json.dumps([self.kind, self.uri, self.revision, sorted(self.patterns)])
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def matches(self, name: str) -> bool:
        """Whether a file is of a known ending, not hidden, and named by a pattern."""
        hidden = any(part.startswith(".") for part in name.split("/"))
        patterns = (p + "*" if p.endswith("/") else p for p in self.patterns)
        return name.endswith(ENDINGS) and not hidden and any(fnmatchcase(name, p) for p in patterns)

    def check_names(self, chosen: Iterable[str], all_names: Iterable[str]) -> None:
        """Raises DataError when nothing was chosen, a name cannot be a path here, or data.sha256 names
        another."""
        chosen = list(chosen)
        if not chosen:
            raise DataError(
                f"data.uri {self.uri!r} holds no file that data.patterns {list(self.patterns)} name and that "
                f"ends in {', '.join(ENDINGS)} (it holds {listing(all_names)}); correct one of the two"
            )
        if bad := [n for n in chosen if "" in n.split("/") or "\0" in n]:
            raise DataError(
                f"data.uri {self.uri!r} has a file named {bad[0]!r}, which cannot be a path here; leave it "
                "out with data.patterns or rename it there"
            )
        if unknown := [n for n in self.sums if n not in chosen]:
            raise DataError(
                f"data.sha256 names {unknown[0]!r}, which is not among the source's files "
                f"({listing(chosen)}); correct it"
            )

    def check_sums(self, files: Iterable[SourceFile]) -> None:
        """Raises DataError when data.sha256 expects another checksum of a file."""
        for f in files:
            if (expected := self.sums.get(f.name, f.sha256)) != f.sha256:
                raise DataError(
                    f"{f.name} of data.uri {self.uri!r} has sha256 {f.sha256}, data.sha256 expects "
                    f"{expected}; correct the one that is wrong"
                )


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A file that is here: `SourceFile("data/a.parquet", 1234, "ab12...", etag="9f8e")`."""

    name: str
    bytes: int
    sha256: str
    etag: str = ""
    version: str = ""
    verified: str = ""
    """The checksums its store states, which its bytes were held to: "md5 crc32"."""

    def is_of(self, remote: Remote) -> bool:
        """Whether the store still lists this version."""
        return (self.bytes, self.etag, self.version) == (remote.bytes, remote.etag, remote.version)

    @classmethod
    def arrived(cls, remote: Remote, sha256: str) -> SourceFile:
        """Of what a store lists, held to its checksums."""
        sums = " ".join(sorted(remote.sums))
        return cls(remote.name, remote.bytes, sha256, remote.etag, remote.version, sums)

    def intact(self, folder: Path) -> bool:
        """Whether its bytes are on disk."""
        path = folder / self.name
        return path.is_file() and path.stat().st_size == self.bytes and sha256(path) == self.sha256


@dataclass(frozen=True, slots=True)
class Fetched:
    """A source's files on this machine."""

    kind: str
    uri: str
    revision: str
    licence: str
    folder: Path
    files: tuple[SourceFile, ...]
    """By name."""

    def about(self) -> dict[str, JSON]:
        """What a manifest says of the source."""
        about = {k: getattr(self, k) for k in ("kind", "uri", "revision", "licence")}
        return about | {"files": [asdict(f) for f in self.files]}


@dataclass
class SourceRecord:
    """The fetch folder and its `source.json`."""

    folder: Path
    complete: bool = False
    licence: str = ""
    files: dict[str, SourceFile] = field(default_factory=dict)

    @classmethod
    def read(cls, folder: Path) -> SourceRecord:
        """Raises DataError when the file is there but damaged."""
        path = folder / "source.json"
        if not path.is_file():
            return cls(folder)
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
            files = {f["name"]: SourceFile(**f) for f in data["files"]}
            return cls(folder, data["complete"], data["licence"], files)
        except (OSError, ValueError, KeyError, TypeError) as e:
            raise DataError(f"{path} cannot be read ({e}); delete {folder} and run again") from e

    @property
    def here(self) -> Path:
        """Where fetched files lie."""
        return self.folder / "files"

    def write(self, want: Wanted) -> None:
        about = self.fetched(want).about() | {"patterns": list(want.patterns)}
        text = json.dumps({"format": FORMAT, "complete": self.complete, **about}, indent=2)
        write_text(self.folder / "source.json", text + "\n")

    def fetched(self, want: Wanted) -> Fetched:
        files = tuple(self.files[name] for name in sorted(self.files))
        folder = Path(want.uri) if want.kind == "local" else self.here
        return Fetched(want.kind, want.uri, want.revision, self.licence, folder, files)

    def settle(self, want: Wanted, changes: list[str], say: Say) -> None:
        """Say that a complete source changed. Raises DataError unless `data.accept_changed` takes it."""
        if not (self.complete and changes):
            return
        what = f"data.uri {want.uri!r} is not what was fetched from it before: {'; '.join(changes)}"
        if not want.accept_changed:
            raise DataError(
                f"{what}; set data.revision or data.uri to what you mean, or data.accept_changed: true"
            )
        say(f"{what}; data.accept_changed takes it as it is now")


def differences(before: Mapping[str, T], now: Mapping[str, U], same: Callable[[T, U], bool]) -> list[str]:
    """What differs between two listings of a source: `["changed a.jsonl", "removed b.jsonl"]`."""
    both = before.keys() & now.keys()
    kinds = {
        "changed": [n for n in both if not same(before[n], now[n])],
        "added": now.keys() - both,
        "removed": before.keys() - both,
    }
    return [f"{kind} {listing(names)}" for kind, names in kinds.items() if names]


def listing(names: Iterable[str]) -> str:
    """A few names for a message: `a, b, c, d, e and 3 more`."""
    names = sorted(names)
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return (", ".join(names[:NAMED]) + more) or "none"


def link_files(source: Path, target: Path, names: Iterable[str]) -> None:
    """Put files into another folder, too; copied only where the disk cannot link."""
    for name in names:
        to = target / name
        with unwritable(to):
            to.parent.mkdir(parents=True, exist_ok=True)
            to.unlink(missing_ok=True)
            try:
                os.link(source / name, to)
            except OSError:
                shutil.copyfile(source / name, to)


def read_splits(given: Mapping[str, str], source: str) -> None:
    """Raises ParamsError unless both splits are named, or none."""
    if given and source == "desk":
        raise ParamsError(
            "data.splits deals files to splits, but data.source 'desk' has none: leave it empty"
        )
    if given and set(given) != set(NEEDED):
        raise ParamsError(
            f"data.splits names {', '.join(sorted(given))}; it must name the files of "
            f"{' and '.join(NEEDED)}, or nothing"
        )


def split_of_files(given: Mapping[str, str], names: Sequence[str]) -> dict[str, str]:
    """The split of each file; empty where none are named. `*` crosses slashes, as in data.patterns.

    Raises DataError naming the files that no pattern or more than one names, or the pattern that names none.
    """
    if not given:
        return {}
    found = {n: [s for s, pattern in given.items() if fnmatchcase(n, pattern)] for n in names}
    for words, wrong in (
        ("no pattern of data.splits names", [n for n in found if not found[n]]),
        ("more than one pattern of data.splits names", [n for n in found if len(found[n]) > 1]),
    ):
        if wrong:
            raise DataError(
                f"{words} {listing(wrong)}; leave files out with data.patterns, or correct data.splits"
            )
    if idle := [s for s in given if not any(s in splits for splits in found.values())]:
        raise DataError(
            f"data.splits.{idle[0]} is {given[idle[0]]!r}, which names no file of the source "
            f"({listing(names)})"
        )
    return {n: splits[0] for n, splits in found.items()}
