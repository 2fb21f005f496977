"""What the model has answered so far, one JSON line a call, never rewritten.

A record is on disk before anybody acts on it, and one process at a time writes. A line that was cut off or
damaged is left out and counted: its call is made again. Records hold what the model wrote, not what was made
of it: key, row (hash of the sample), call, model, prompt (version), reply (text or null), finish, fault,
read, written (tokens or null), usd (or null), requests, seconds, structured."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from envace.errors import EnvironmentUnready
from envace.types import JSON

CallRecord = dict[str, JSON]
NAME, LOCK = "journal.jsonl", ".lock"
SYNC_S = 1.0
"""A power cut costs at most what came in since."""


def call_key(row: str, call: str, model: str, prompt: str) -> str:
    """The same for the same content, call, model and prompt, wherever the row stands."""
    return hashlib.sha256(json.dumps([row, call, model, prompt]).encode()).hexdigest()[:24]


@contextmanager
def open_journal(folder: Path) -> Iterator[Journal]:
    """The journal of a folder, locked. Raises EnvironmentUnready."""
    path, lock = folder / NAME, FileLock(folder / LOCK, timeout=0)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except Timeout:
        raise EnvironmentUnready(
            f"another process is annotating into {folder}; wait for it or choose another --out"
        ) from None
    except OSError as e:
        raise EnvironmentUnready(f"cannot write to {folder}: {e.strerror or e}") from e
    try:
        with _writing(path):
            journal = Journal(path)
        try:
            yield journal
        finally:
            with _writing(path):
                journal.close()
    finally:
        lock.release()


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as e:
        raise EnvironmentUnready(
            f"cannot write {path}: {e.strerror or e}; free some space and run the same command again"
        ) from e


class Journal:
    """Records by row; the last one of a key counts."""

    def __init__(self, path: Path):
        self.path, self._file, self._synced = path, path.open("a+b"), time.monotonic()
        self._rows: dict[str, list[CallRecord]] = defaultdict(list)
        self._last: dict[str, CallRecord] = {}
        self.skipped = 0
        """Lines that cannot be read."""
        self._file.seek(0)
        line = b"\n"
        for line in self._file:
            try:
                self._keep(json.loads(line))
            except (ValueError, KeyError, TypeError):
                self.skipped += 1
        if not line.endswith(b"\n"):
            self._file.write(b"\n")  # the writer was killed in the middle of it

    def _keep(self, record: CallRecord) -> None:
        self._last[record["key"]] = record
        self._rows[record.get("row", "")].append(record)

    def get(self, key: str) -> CallRecord | None:
        """The record that counts, or None."""
        return self._last.get(key)

    def of_row(self, row: str) -> list[CallRecord]:
        """Every record of a row, oldest first."""
        return self._rows.get(row, [])

    def add(self, record: CallRecord) -> None:
        """Append; the record outlives this process from here on. Raises EnvironmentUnready."""
        with _writing(self.path):
            self._file.write(json.dumps(record, sort_keys=True).encode("ascii") + b"\n")
            self._file.flush()
            if time.monotonic() - self._synced > SYNC_S:
                os.fsync(self._file.fileno())
                self._synced = time.monotonic()
        self._keep(record)

    def close(self) -> None:
        """Everything to the disk."""
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
