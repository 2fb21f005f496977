"""What the model has answered so far, one JSON line a call, never rewritten.

A record is on disk before anybody acts on it; a line cut off by a kill is dropped at the next start; one
process at a time writes. Records hold what the model wrote, not what was made of it: key, row (hash of the
sample), call, model, prompt (version), reply (text or null), finish, fault, read, written (tokens or null),
usd (or null), requests, seconds, structured."""

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

from envace.errors import DataError, EnvironmentUnready
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
    """The journal of a folder, locked. Raises EnvironmentUnready, and DataError on a damaged line."""
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
    """Records by key, read from disk when asked for; the last of a key counts."""

    def __init__(self, path: Path):
        self.path, self._file, self._synced = path, path.open("a+b"), time.monotonic()
        self._places: dict[str, list[int]] = defaultdict(list)
        """Key -> where its records start."""
        start = self._file.seek(0)
        for k, line in enumerate(self._file, 1):
            if not line.endswith(b"\n"):
                self._file.truncate(start)  # the writer was killed in the middle of it
                return
            try:
                self._places[json.loads(line)["key"]].append(start)
            except (ValueError, KeyError, TypeError):
                raise DataError(
                    f"{path}:{k} is damaged; delete that line, its call will be made again"
                ) from None
            start += len(line)

    def get(self, key: str) -> CallRecord | None:
        """The record that counts, or None."""
        records = self.all(key)
        return records[-1] if records else None

    def all(self, key: str) -> list[CallRecord]:
        """Every record of a key, oldest first."""
        found = []
        for place in self._places.get(key, ()):
            self._file.seek(place)
            found.append(json.loads(self._file.readline()))
        return found

    def add(self, record: CallRecord) -> None:
        """Append; the record outlives this process from here on. Raises EnvironmentUnready."""
        with _writing(self.path):
            start = self._file.seek(0, os.SEEK_END)
            self._file.write(json.dumps(record, sort_keys=True).encode("ascii") + b"\n")
            self._file.flush()
            if time.monotonic() - self._synced > SYNC_S:
                os.fsync(self._file.fileno())
                self._synced = time.monotonic()
        self._places[record["key"]].append(start)

    def close(self) -> None:
        """Everything to the disk."""
        os.fsync(self._file.fileno())
        self._file.close()
