"""Writing outputs whole.

Flows in: records and a target folder. Flows out: files under their final names.
Invariant: everything is written into a hidden sibling folder first and renamed at the end, so that nothing
half-written is ever found under a final name.
"""

from __future__ import annotations

import csv
import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from envace.errors import EnvironmentUnready
from envace.types import to_json


@contextmanager
def publish(out: Path) -> Iterator[Path]:
    """A scratch folder beside `out`; its contents move into `out` when the block ends well.

    Raises EnvironmentUnready when the folder cannot be written.
    """
    scratch = out.parent / f".{out.name}.part"
    with writable(out):
        shutil.rmtree(scratch, ignore_errors=True)
        out.mkdir(parents=True, exist_ok=True)
        check_writable(out)
        scratch.mkdir(parents=True)
    try:
        yield scratch
        with writable(out):
            for item in sorted(scratch.iterdir()):
                target = out / item.name
                if target.is_dir() and not target.is_symlink():
                    shutil.rmtree(target)
                os.replace(item, target)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


@contextmanager
def writable(out: Path) -> Iterator[None]:
    """Turn the operating system's refusal into one sentence."""
    try:
        yield
    except OSError as e:
        raise EnvironmentUnready(
            f"cannot write to {out}: {e.strerror or e}; check its permissions and the free space"
        ) from e


def check_writable(folder: Path) -> None:
    """Raises PermissionError now rather than after the work."""
    if not os.access(folder, os.W_OK | os.X_OK):
        raise PermissionError(13, "Permission denied", str(folder))


def plain(record: Any) -> Any:
    """A record, or nested containers of records, as JSON data."""
    if hasattr(record, "__dataclass_fields__"):
        return to_json(record)
    if isinstance(record, Mapping):
        return {str(k): plain(v) for k, v in record.items()}
    if isinstance(record, (list, tuple)):
        return [plain(v) for v in record]
    return record


def write_json(path: Path, data: Any) -> None:
    path.write_text(json.dumps(plain(data), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def write_jsonl(path: Path, records: Iterable[Any]) -> int:
    """One JSON object a line; returns the number of lines."""
    lines = [json.dumps(plain(record), ensure_ascii=False) + "\n" for record in records]
    with path.open("w", encoding="utf-8") as handle:
        handle.writelines(lines)
    return len(lines)


def write_csv(path: Path, rows: list[dict[str, Any]], columns: tuple[str, ...]) -> None:
    with path.open("w", newline="", encoding="utf-8") as handle:
        writer = csv.DictWriter(handle, columns, restval="", extrasaction="ignore")
        writer.writeheader()
        writer.writerows(rows)
