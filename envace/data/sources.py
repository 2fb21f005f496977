"""Where rows come from: the generators of the desk and of the files world, a folder, an S3 prefix, a hub data
set.

Flows in: parameters. Flows out: `RawRow`s with the place each was read at, and what the manifest says about
the source. Invariant: every row of a source comes out, readable or not; a source that cannot be read at all
is one DataError."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from envace.config import Params
from envace.data.fetch import fetch, place
from envace.data.progress import RowMeter, Say
from envace.data.readers import READERS, RawRow
from envace.data.schema import row_from_task
from envace.data.source_files import split_of_files
from envace.types import JSON, Task


@dataclass(frozen=True, slots=True)
class OpenedSource:
    """An opened source."""

    rows: Iterator[RawRow]
    about: dict[str, JSON] = field(default_factory=dict)
    """kind, uri, revision, licence, files."""
    splits: tuple[str, ...] = ()
    """Those the source deals its rows to; empty where rows bring none."""
    distinct: bool = False
    """The source vouches that no two rows have one dialogue."""


@contextmanager
def open_source(params: Params, state: Path | None = None, say: Say = print) -> Iterator[OpenedSource]:
    """The rows of `data.source`, its files fetched and verified first.

    Fetched files stay below `state` (else ENVACE_STATE, else `.state/`); a local source is remembered there
    only where `state` is given. Raises DataError and EnvironmentUnready."""
    if params.data.source == "desk":
        yield _desk(params)
        return
    folder = None if params.data.source == "local" and state is None else place(params, state)
    fetched = fetch(params, folder, say)
    about = fetched.about() | {"licence": params.data.licence or fetched.licence}
    dealt = split_of_files(params.data.splits, [f.name for f in fetched.files])
    files = [(fetched.folder / f.name, f.name) for f in fetched.files]
    rows = read_files(files, RowMeter(say))
    yield OpenedSource(_dealt(rows, dealt) if dealt else rows, about, tuple(params.data.splits))


def read_files(
    files: Sequence[tuple[Path, str]], meter: Callable[[float], None] | None = None
) -> Iterator[RawRow]:
    """The rows of files, given as path and name; `meter` hears with each row which share of all bytes is
    read."""
    sizes = [path.stat().st_size for path, _ in files]
    total, before = max(sum(sizes), 1), 0
    for (path, name), size in zip(files, sizes):
        for raw in READERS[path.suffix](path, name):
            if meter:
                meter((before + size * raw.read) / total)
            yield raw
        before += size


def _dealt(rows: Iterator[RawRow], dealt: dict[str, str]) -> Iterator[RawRow]:
    """Rows with the split their file is dealt to."""
    for raw in rows:
        split = dealt.get(raw.where.rpartition(":")[0] or raw.where, "")
        yield replace(raw, split=split) if split else raw


def _desk(params: Params) -> OpenedSource:
    about = {"kind": "desk", "uri": "", "revision": "", "licence": "Apache-2.0 (generated)", "files": []}
    dealt = _desk_splits(params)
    return OpenedSource(_desk_rows(dealt), about, tuple(dealt), distinct=True)


def _desk_splits(params: Params) -> dict[str, Callable[[], list[Task]]]:
    """Split -> what makes its tasks. A split of no tasks is left out."""
    from envace.worlds.desk.tasks import generate as desk
    from envace.worlds.files.tasks import generate as files

    p = params.desk
    makers = {
        name: (n, partial(desk, p.seed, name, n))
        for name, n in (
            ("train", p.train_tasks),
            ("held", p.held_tasks),
            ("validation", p.validation_tasks),
            ("unseen", p.unseen_tasks),
        )
    }
    makers["files"] = (p.files_tasks, partial(files, p.seed, p.files_tasks))
    return {name: make for name, (n, make) in makers.items() if n}


def _desk_rows(dealt: dict[str, Callable[[], list[Task]]]) -> Iterator[RawRow]:
    for split, make in dealt.items():
        for k, task in enumerate(make()):
            yield RawRow(f"{task.source}/{split}:{k}", row_from_task(task), split=split)
