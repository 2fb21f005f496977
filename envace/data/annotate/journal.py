"""What the model has answered so far, one JSON line a call, never rewritten.

Flows in: records of finished calls. Flows out: the records of a call, looked up by its key. Invariant: a
record is on disk before anybody acts on it; a line cut off by a kill is dropped at the next start; one
process at a time writes. Records hold what the model wrote, not what was made of it.

A record: key, row (hash of the sample), call, model, prompt (version), reply (text or null), finish, fault,
read, written (tokens or null), usd (or null), requests, seconds, structured."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from envace.errors import DataError, EnvironmentUnready
from envace.types import JSON

CallRecord = dict[str, JSON]
NAME, LOCK = "journal.jsonl", ".lock"
SYNC_S = 1.0  # a power cut costs at most what came in since


def call_key(row: str, call: str, model: str, prompt: str) -> str:
    """The same for the same content, call, model and prompt, wherever the row stands."""
    return hashlib.sha256(json.dumps([row, call, model, prompt]).encode()).hexdigest()[:24]


class Journal:
    """`with Journal.open(folder) as journal`: records by key; the last of a key counts."""

    def __init__(self, path: Path):
        self.path = path
        self._file = path.open("a+b")
        self._places: dict[str, tuple[int, ...]] = {}  # key -> where its records start
        self._synced = time.monotonic()
        self._scan()

    @classmethod
    @contextmanager
    def open(cls, folder: Path) -> Iterator[Journal]:
        """Lock the folder and read its journal. Raises EnvironmentUnready, and DataError on a damaged
        line."""
        with _locked(folder):
            try:
                journal = cls(folder / NAME)
            except OSError as e:
                raise EnvironmentUnready(f"cannot write {folder / NAME}: {e.strerror or e}") from e
            try:
                yield journal
            finally:
                journal.close()

    def get(self, key: str) -> CallRecord | None:
        """The record that counts, or None."""
        places = self._places.get(key)
        return self._read(places[-1]) if places else None

    def all(self, key: str) -> list[CallRecord]:
        """Every record of a key, oldest first."""
        return [self._read(place) for place in self._places.get(key, ())]

    def add(self, record: CallRecord) -> None:
        """Append; the record outlives this process from here on."""
        start = self._file.seek(0, os.SEEK_END)
        with self._writing():
            self._file.write(json.dumps(record, sort_keys=True).encode("ascii") + b"\n")
            self._file.flush()
            if time.monotonic() - self._synced > SYNC_S:
                os.fsync(self._file.fileno())
                self._synced = time.monotonic()
        self._note(record["key"], start)

    def __iter__(self) -> Iterator[CallRecord]:
        """Every record, oldest first."""
        with self.path.open("rb") as f:
            yield from map(json.loads, f)

    def close(self) -> None:
        """Everything to the disk."""
        with self._writing():
            os.fsync(self._file.fileno())
            self._file.close()

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as e:
            raise EnvironmentUnready(
                f"cannot write {self.path}: {e.strerror or e}; free some space and run the same command again"
            ) from e

    def _note(self, key: str, start: int) -> None:
        self._places[key] = (*self._places.get(key, ()), start)

    def _read(self, place: int) -> CallRecord:
        self._file.seek(place)
        return json.loads(self._file.readline())

    def _scan(self) -> None:
        start = self._file.seek(0)
        for k, line in enumerate(self._file, 1):
            if not line.endswith(b"\n"):
                self._file.truncate(start)  # the writer was killed in the middle of it
                return
            try:
                self._note(json.loads(line)["key"], start)
            except (ValueError, KeyError, TypeError):
                raise DataError(
                    f"{self.path}:{k} is damaged; delete that line, its call will be made again"
                ) from None
            start += len(line)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    lock = FileLock(folder / LOCK, timeout=0)
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
        yield
    finally:
        lock.release()
