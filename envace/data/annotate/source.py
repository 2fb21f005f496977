"""The raw rows to annotate: a file or folder that is named, else `data.*` of the parameters, fetched as for
staging.

Flows in: a path or parameters. Flows out: `AnnotateSource`, the files and what is known of where they come
from. Invariant: a source of the parameters is verified and held against its last use exactly as staging does
it."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from envace.config import Params
from envace.data.fetch import fetch, place
from envace.data.progress import Say
from envace.data.readers import READERS
from envace.data.source_files import UNSTATED, SourceFile
from envace.errors import DataError, ParamsError
from envace.io.files import sha256
from envace.types import JSON


@dataclass(frozen=True)
class AnnotateSource:
    """`AnnotateSource([(Path("raw/a.jsonl"), "a.jsonl")], {"kind": "local", "uri": "raw", ...})`"""

    files: list[tuple[Path, str]] = field(default_factory=list)
    """Path, name in messages."""
    about: dict[str, JSON] = field(default_factory=dict)
    """Kind, uri, revision, licence, files."""

    @property
    def label(self) -> str:
        """`hub owner/name at 74e2...`"""
        revision = f" at {self.about['revision']}" if self.about.get("revision") else ""
        return f"{self.about['kind']} {self.about['uri']}{revision}"

    @property
    def licence(self) -> str:
        """Of the whole source; empty where none is known."""
        return "" if self.about["licence"] == UNSTATED else str(self.about["licence"])


def source_at(path: Path) -> AnnotateSource:
    """A file or folder of this machine. Raises DataError where it holds no rows."""
    if path.is_file() and path.suffix in READERS:
        files = [(path, path.name)]
    else:
        found = sorted(
            f for f in path.rglob("*") if f.suffix in READERS and f.is_file() and not f.name.startswith(".")
        )
        files = [(f, f.relative_to(path).as_posix()) for f in found]
    if not files:
        raise DataError(f"{path} holds no rows; name a file or folder of {', '.join(sorted(READERS))}")
    known = [asdict(SourceFile(name, f.stat().st_size, sha256(f))) for f, name in files]
    return AnnotateSource(
        files, {"kind": "local", "uri": str(path), "revision": "", "licence": UNSTATED, "files": known}
    )


def source_of(params: Params, say: Say) -> AnnotateSource:
    """`data.source` of the parameters, fetched. Raises DataError, EnvironmentUnready and ParamsError."""
    if params.data.source == "desk":
        raise ParamsError(
            "data.source is desk, whose rows have checklists; name a file or folder of raw rows, or the "
            "source of them "
            "under data (hub, s3 or local) in --params"
        )
    fetched = fetch(params, place(params), say)
    about = replace(fetched, licence=params.data.licence or fetched.licence).about()
    return AnnotateSource([(fetched.folder / f.name, f.name) for f in fetched.files], about)
