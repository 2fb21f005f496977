"""Where rows come from: the generators of the desk and of the files world, a folder, an S3 prefix, a hub data set.

Flows in: parameters. Flows out: `Raw` rows with the place each was read at, and what the manifest says about
the source.
Invariant: every row of a source comes out, readable or not; a source that cannot be read at all is one DataError.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from envace.data.atomic import sha256
from envace.data.check import Fault, Reject
from envace.data.schema import row_from_task
from envace.data.store import iter_rows
from envace.errors import DataError
from envace.params import Params
from envace.types import Task

ENDINGS = (".jsonl", ".parquet")


@dataclass(frozen=True, slots=True)
class Raw:
    """One row as read: `Raw("a.jsonl:3", {...})`, or what kept it from being read."""

    where: str  # file and line (from 1) or row (from 0)
    row: Any
    fault: Fault | None = None
    split: str = ""  # train | held | ... where the source decides it


@dataclass(frozen=True, slots=True)
class Origin:
    """An opened source."""

    rows: Iterator[Raw]
    about: dict[str, Any] = field(default_factory=dict)  # kind, uri, revision, licence, files
    splits: tuple[str, ...] = ()  # those the source deals its rows to; empty where rows bring none


@contextmanager
def open_source(params: Params) -> Iterator[Origin]:
    """The rows of `data.source`; downloads live as long as the context."""
    with OPENERS[params.data.source](params) as origin:
        yield origin


@contextmanager
def _desk(params: Params) -> Iterator[Origin]:
    about = {"kind": "desk", "uri": "", "revision": "", "licence": "Apache-2.0 (generated)", "files": []}
    dealt = _desk_splits(params)
    yield Origin(_desk_rows(dealt), about, tuple(dealt))


def _desk_splits(params: Params) -> dict[str, Callable[[], list[Task]]]:
    """Split -> what makes its tasks. A split of no tasks is left out."""
    from envace.desk.tasks import generate as desk
    from envace.files.tasks import generate as files

    p = params.desk
    makers = {
        name: (n, partial(desk, p.seed, name, n))
        for name, n in (("train", p.train_tasks), ("held", p.held_tasks), ("unseen", p.unseen_tasks))
    }
    makers["files"] = (p.files_tasks, partial(files, p.seed, p.files_tasks))
    return {name: make for name, (n, make) in makers.items() if n}


def _desk_rows(dealt: dict[str, Callable[[], list[Task]]]) -> Iterator[Raw]:
    for split, make in dealt.items():
        for k, task in enumerate(make()):
            yield Raw(f"{task.source}/{split}:{k}", row_from_task(task), split=split)


@contextmanager
def _local(params: Params) -> Iterator[Origin]:
    yield _folder(Path(params.data.uri), "local", params, params.data.uri)


def _folder(folder: Path, kind: str, params: Params, named: str) -> Origin:
    if not folder.is_dir():
        raise DataError(f"data.uri {named!r} is not a folder")
    files = sorted(
        f for f in folder.rglob("*") if f.suffix in ENDINGS and f.is_file() and not f.name.startswith(".")
    )
    if not files:
        raise DataError(f"data.uri {named!r} holds no *.jsonl or *.parquet file")
    names = {f: f.relative_to(folder).as_posix() for f in files}
    about = {
        "kind": kind, "uri": params.data.uri, "revision": params.data.revision, "licence": "as the source states",
        "files": [{"name": names[f], "bytes": f.stat().st_size, "sha256": sha256(f)} for f in files],
    }  # fmt: skip
    return Origin((raw for f in files for raw in READERS[f.suffix](f, names[f])), about)


def _parquet(path: Path, name: str) -> Iterator[Raw]:
    for k, row in enumerate(iter_rows(path)):
        yield Raw(f"{name}:{k}", row)


def _jsonl(path: Path, name: str) -> Iterator[Raw]:
    try:
        with path.open("rb") as f:
            for k, line in enumerate(f, 1):
                if line.strip():
                    yield _line(line, f"{name}:{k}")
    except OSError as e:
        raise DataError(f"{path} cannot be read: {e.strerror or e}") from e


def _line(line: bytes, where: str) -> Raw:
    try:
        row = json.loads(line.decode("utf-8"), parse_constant=_refuse)
    except (ValueError, RecursionError) as e:
        return Raw(where, None, Fault(Reject.BAD_JSON, "row", f"is not JSON: {e}"))
    if not isinstance(row, dict):
        return Raw(where, None, Fault(Reject.BAD_JSON, "row", "is not a JSON object"))
    return Raw(where, row)


def _refuse(word: str) -> None:
    raise ValueError(f"{word} is not JSON")


@contextmanager
def _s3(params: Params) -> Iterator[Origin]:
    with tempfile.TemporaryDirectory(prefix="envace-s3-") as folder:
        _download_s3(params.data.uri, Path(folder))
        yield _folder(Path(folder), "s3", params, params.data.uri)


def _download_s3(uri: str, folder: Path) -> None:
    """Copy the data files under an s3:// prefix; `AWS_ENDPOINT_URL` names another server than Amazon's."""
    import s3fs

    prefix = uri.removeprefix("s3://").rstrip("/")
    try:
        store = s3fs.S3FileSystem(
            endpoint_url=os.environ.get("AWS_ENDPOINT_URL") or None, skip_instance_cache=True
        )
        for key in store.find(prefix):
            if key.endswith(ENDINGS):
                target = folder / key.removeprefix(prefix).lstrip("/")
                target.parent.mkdir(parents=True, exist_ok=True)
                store.get_file(key, str(target))
    except ImportError as e:
        raise DataError(f"data.source 's3' needs s3fs: {e}") from e
    except _s3_errors() as e:
        raise DataError(f"data.uri {uri!r} cannot be read: {e}") from e


def _s3_errors() -> tuple[type[Exception], ...]:
    from botocore.exceptions import BotoCoreError, ClientError

    return OSError, ValueError, BotoCoreError, ClientError


@contextmanager
def _hub(params: Params) -> Iterator[Origin]:
    import httpx
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    patterns = [f"*{ending}" for ending in ENDINGS]
    try:
        folder = snapshot_download(
            params.data.uri, repo_type="dataset", revision=params.data.revision, allow_patterns=patterns
        )
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, httpx.HTTPError, OSError) as e:
        raise DataError(
            f"data.uri {params.data.uri!r} at {params.data.revision} cannot be fetched from the hub: {e}"
        ) from e
    yield _folder(Path(folder), "hub", params, params.data.uri)


OPENERS: dict[str, Callable[[Params], Any]] = {"desk": _desk, "local": _local, "s3": _s3, "hub": _hub}
READERS: dict[str, Callable[[Path, str], Iterator[Raw]]] = {".parquet": _parquet, ".jsonl": _jsonl}
