"""Files and folders that are either whole or absent.

Flows in: a target path, and text, records or whatever a caller writes. Flows out: the file or folder, put in
place by renames. Invariant: nobody ever reads something half-written under the target's name."""

from __future__ import annotations

import csv
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from envace.errors import EnvironmentUnready
from envace.types import JSON, to_json

T = TypeVar("T")


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary path beside `path`; on a clean exit it takes the place of `path`, else it is removed.

    Raises EnvironmentUnready when the folder cannot be written.
    """
    with unwritable(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".part", dir=path.parent)
        os.close(handle)
    part = Path(name)
    try:
        with unwritable(path):
            yield part
            part.chmod(0o644)
            os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


@contextmanager
def unwritable(path: Path | str) -> Iterator[None]:
    """Turn the operating system's refusal into EnvironmentUnready: `cannot write a.json: No space left on
    device; check ...`."""
    try:
        yield
    except OSError as e:
        raise EnvironmentUnready(
            f"cannot write {path}: {e.strerror or e}; check its permissions and the free space"
        ) from e


@contextmanager
def publish(out: Path) -> Iterator[Path]:
    """A scratch folder beside `out`; its contents move into `out` when the block ends well.

    Raises EnvironmentUnready when the folder cannot be written.
    """
    scratch = out.parent / f".{out.name}.part"
    with unwritable(out):
        shutil.rmtree(scratch, ignore_errors=True)
        check_writable(out)
        scratch.mkdir(parents=True)
    try:
        yield scratch
        with unwritable(out):
            for item in sorted(scratch.iterdir()):
                target = out / item.name
                if target.is_dir() and not target.is_symlink():
                    shutil.rmtree(target)
                os.replace(item, target)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def check_writable(folder: Path) -> None:
    """Make a folder. Raises PermissionError now rather than after the work when it cannot be written."""
    folder.mkdir(parents=True, exist_ok=True)
    if not os.access(folder, os.W_OK | os.X_OK):
        raise PermissionError(13, "Permission denied", str(folder))


def sha256(path: Path) -> str:
    """Hex digest of a file's bytes."""
    with path.open("rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()


def git_blob(data: bytes) -> str:
    """Git's name of a file's content."""
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()


def plain(record: JSON) -> JSON:
    """A record, or nested containers of records, as JSON data."""
    if hasattr(record, "__dataclass_fields__"):
        return to_json(record)
    if isinstance(record, Mapping):
        return {str(k): plain(v) for k, v in record.items()}
    if isinstance(record, (list, tuple)):
        return [plain(v) for v in record]
    return record


def write_text(path: Path, text: str) -> None:
    """Put a UTF-8 text file in place."""
    with replacing(path) as part:
        part.write_text(text, encoding="utf-8")


def write_json(path: Path, data: JSON) -> None:
    """Put records or JSON data in place, one key a line."""
    write_text(path, json.dumps(plain(data), indent=1, ensure_ascii=False) + "\n")


def write_jsonl(path: Path, records: Iterable[JSON]) -> None:
    """Put a file in place with one JSON object a line."""
    write_text(path, "".join(json.dumps(plain(r), ensure_ascii=False) + "\n" for r in records))


def append_jsonl(path: Path, record: JSON) -> None:
    """One more JSON line, on a line of its own also behind a stump that a killed writer left."""
    with path.open("ab+") as f:
        f.seek(max(f.seek(0, os.SEEK_END) - 1, 0))
        torn = f.read(1) not in (b"", b"\n")
        f.write(b"\n" * torn + json.dumps(record).encode() + b"\n")


def read_jsonl(path: Path) -> tuple[list[JSON], int]:
    """The values of a file's lines, and how many lines hold none since their writer was killed."""
    found, torn = [], 0
    with path.open(encoding="utf-8", errors="replace") as lines:
        for line in filter(str.strip, lines):
            try:
                found.append(json.loads(line))
            except ValueError:
                torn += 1
    return found, torn


def read_state(path: Path, kind: type[T], cure: str = "delete it and run the same command again") -> T | None:
    """What a state file holds, None where there is none. Raises EnvironmentUnready naming a damaged one."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as e:
        raise EnvironmentUnready(f"{path} cannot be read ({e}); {cure}") from None
    if not isinstance(data, kind):
        raise EnvironmentUnready(f"{path} is damaged (it holds no {kind.__name__}); {cure}")
    return data


def write_csv(path: Path, rows: list[dict[str, JSON]], columns: tuple[str, ...]) -> None:
    """A table with a header; other keys are left out, absent ones are empty."""
    with replacing(path) as part, part.open("w", newline="", encoding="utf-8") as handle:
        writer = csv.DictWriter(handle, columns, restval="", extrasaction="ignore")
        writer.writeheader()
        writer.writerows(rows)
