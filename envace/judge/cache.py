"""Answers that were given before, by the hash of what was asked.

Only complete yes/no answers are kept, and nothing of what a server wrote; a line is written whole or counts
for nothing, so several processes share one file and a killed one harms no other. `answers.jsonl` below the
caller's folder holds one line an answer: {"key": <sha256>, "answers": {"C0": true}}.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from envace.errors import EnvironmentUnready
from envace.judge.llm_requests import PROMPT_VERSION
from envace.types import JSON, Answer, Item


class SharedLines:
    """A file of JSON lines that several processes append to and read on from. Raises EnvironmentUnready."""

    def __init__(self, path: Path):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = open(path, "a+b", buffering=0)  # held for the process's life
        except OSError as e:
            raise EnvironmentUnready(
                f"{path} cannot be written ({e.strerror}); judge.cache needs a folder of yours"
            ) from None
        self._at, self.damaged = 0, 0

    def append(self, record: Mapping[str, JSON]) -> None:
        """One line, whole. Raises OSError, as when the disk is full."""
        line = json.dumps(record, separators=(",", ":")).encode("ascii") + b"\n"
        fcntl.flock(self._file, fcntl.LOCK_EX)
        try:
            size = self._file.seek(0, os.SEEK_END)
            torn = size and os.pread(self._file.fileno(), 1, size - 1) != b"\n"
            self._file.write(b"\n" + line if torn else line)
        finally:
            fcntl.flock(self._file, fcntl.LOCK_UN)

    def news(self) -> list[JSON]:
        """The lines that came since the last call; a damaged one is counted and left out."""
        size = os.fstat(self._file.fileno()).st_size
        if size <= self._at:
            return []
        whole, _, _ = os.pread(self._file.fileno(), size - self._at, self._at).rpartition(b"\n")
        self._at += len(whole) + 1 if whole else 0
        records = []
        for line in filter(None, whole.split(b"\n")):
            try:
                records.append(json.loads(line))
            except (ValueError, RecursionError):
                self.damaged += 1
        return records


class AnswerCache:
    """`AnswerCache(folder)`; `get` looks at what other processes have added since."""

    def __init__(self, folder: Path):
        self._lines = SharedLines(folder / "answers.jsonl")
        self._known: dict[str, dict[str, bool]] = {}

    def get(self, key: str, items: Sequence[Item]) -> dict[str, Answer] | None:
        """The answers to all items, or None."""
        for record in self._lines.news() if key not in self._known else ():
            if isinstance(record, dict) and isinstance(record.get("answers"), dict):
                self._known[str(record.get("key"))] = record["answers"]
        answers = self._known.get(key, {})
        if not all(isinstance(answers.get(item.id), bool) for item in items):
            return None
        return {item.id: Answer.YES if answers[item.id] else Answer.NO for item in items}

    def put(self, key: str, answers: Mapping[str, Answer]) -> None:
        """Keep the answers to all items of a question, or nothing where one is unscored. Raises OSError."""
        if Answer.UNSCORED not in answers.values():
            self._known[key] = {id_: answer is Answer.YES for id_, answer in answers.items()}
            self._lines.append({"key": key, "answers": self._known[key]})


def content_key(request: Mapping[str, JSON]) -> str:
    """The hash of a request (model, sampling, transcript, items) and of the prompts' version."""
    return hashlib.sha256(f"{PROMPT_VERSION}\0{json.dumps(request)}".encode("ascii")).hexdigest()
