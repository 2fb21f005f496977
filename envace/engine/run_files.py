"""The files that the processes of one training run share, all in its work folder.

`run.json` (named by ENVACE_RUN_FILE) says what is trained; written whole before verl starts, never changed
while it runs, holds no key. `progress.jsonl` has a line for each event, `metrics.jsonl` one for each step,
`episodes/` a file for each step, and the time of `heartbeat` says "still working".
Invariant: one writer for each file except `heartbeat`, which anybody may touch; a torn line is left out
by the reader, and a step that is repeated after a resume replaces its earlier record.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path

from envace.config import Params, parse, to_dict
from envace.io.files import append_jsonl, write_text
from envace.types import JSON

ENV_NAME = "ENVACE_RUN_FILE"


@dataclass(frozen=True, kw_only=True)
class RunFile:
    params: Params
    arm: str
    seed: int
    tasks_file: str
    """Parquet of training rows."""
    start: str
    """Folder of the start weights."""
    work: str
    """Checkpoints, episodes, metrics, log of this run."""

    def write(self, path: Path) -> None:
        data = vars(self) | {"params": to_dict(self.params)}
        write_text(path, json.dumps(data, indent=1))

    @classmethod
    def read(cls, path: str | Path) -> RunFile:
        data = json.loads(Path(path).read_text(encoding="utf-8"))
        return cls(**{**data, "params": parse(data["params"], str(path))})


@lru_cache(maxsize=1)
def current() -> RunFile:
    """The run this process belongs to. Raises KeyError outside a training run."""
    return RunFile.read(os.environ[ENV_NAME])


@dataclass(frozen=True, kw_only=True)
class Progress:
    """One event: `Progress(phase="step", step=3, steps=470, metrics={"train/reward": 0.4}, eta_s=812.0)`."""

    phase: str
    """`template`, `ready`, `rollout`, `step` or `done`."""
    step: int
    """Optimizer steps finished."""
    steps: int
    """Demanded."""
    metrics: dict[str, float] = field(default_factory=dict)
    eta_s: float | None = None
    time: float = 0.0
    warning: str = ""
    """What a person should do something about."""
    note: str = ""
    """template: what was found."""


def line(event: Progress) -> str:
    """One line of progress for a terminal; empty for an event that is told nobody."""
    at, m = f"step {event.step} of {event.steps}", event.metrics
    if event.phase != "step":
        done, ready = f"done at step {event.step}", f"trainer ready at {at}"
        return {"template": event.note, "ready": ready, "done": done}.get(event.phase, "")
    rewards = {role: m[f"{role}/reward"] for role in ("act", "rehearse") if f"{role}/reward" in m}
    parts = [at, *(f"{role} reward {reward:.3f}" for role, reward in rewards.items())]
    parts += [f"rows {m.get('act/rows', 0):.0f}+{m.get('rehearse/rows', 0):.0f}"]
    parts += [f"{m.get('seconds/step', 0):.1f} s"]
    parts += [f"{event.eta_s:.0f} s left"] if event.eta_s else []
    return "; ".join(filter(None, [", ".join(parts), event.warning]))


def emit(work: Path, event: Progress) -> None:
    """Append an event, which is a sign of life, too."""
    append_jsonl(work / "progress.jsonl", {**asdict(event), "time": time.time()})
    beat(work)


def beat(work: Path) -> None:
    (work / "heartbeat").touch()


def last_beat(work: Path) -> float:
    """Time of the last sign of life, 0 when there was none."""
    paths = (work / "heartbeat", work / "progress.jsonl")
    return max((p.stat().st_mtime for p in paths if p.exists()), default=0.0)


def write_episodes(work: Path, step: int, episodes: list[dict[str, JSON]]) -> None:
    """Save the episodes of one step, whole or not at all."""
    lines = (json.dumps(e, ensure_ascii=False) + "\n" for e in episodes)
    write_text(work / "episodes" / f"step_{step:06d}.jsonl", "".join(lines))


def read_steps(work: Path, last: int | None = None) -> list[dict[str, JSON]]:
    """Metrics in step order up to `last`; of a step repeated after a resume the last record counts."""
    by_step = {record["step"]: record for record, _ in follow(work / "metrics.jsonl")}
    return [by_step[k] for k in sorted(by_step) if last is None or k <= last]


def follow(path: Path, offset: int = 0) -> Iterator[tuple[dict[str, JSON], int]]:
    """Complete lines from a byte offset on, each with the offset behind it."""
    if not path.exists():
        return
    with path.open("rb") as f:
        f.seek(offset)
        for text in f:
            if not text.endswith(b"\n"):
                return
            offset += len(text)
            with suppress(ValueError):  # the stump a killed writer left
                yield json.loads(text), offset
