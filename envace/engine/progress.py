"""Signs of life from inside verl: a line per event, and a file whose time says "still working".

Flows in: events of the trainer and the agent loops. Flows out: `progress.jsonl`, `metrics.jsonl`,
`episodes/step_000001.jsonl` and the `heartbeat` file of the run's work folder.
Invariant: one writer per file except `heartbeat`, which anybody may touch; a torn last line is ignored by the
reader, and a step that is repeated after a resume replaces its earlier record.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

from envace.types import JSON


@dataclass(frozen=True, kw_only=True)
class Progress:
    """One event: `Progress(phase="step", step=3, steps=470, metrics={"train/reward": 0.4}, eta_s=812.0)`."""

    phase: str  # template | ready | rollout | step | done
    step: int  # optimizer steps finished
    steps: int  # demanded
    metrics: dict[str, float] = field(default_factory=dict)
    eta_s: float | None = None
    time: float = 0.0
    warning: str = ""  # what a person should do something about
    note: str = ""  # template: what was found


def line(event: Progress) -> str:
    """One line of progress for a terminal."""
    m = event.metrics
    if event.phase != "step":
        return {
            "template": event.note,
            "ready": f"trainer ready at step {event.step} of {event.steps}",
            "done": f"done at step {event.step}",
        }.get(event.phase, "")
    parts = [f"step {event.step} of {event.steps}"]
    parts += [
        f"{name.split('/')[0]} reward {m[name]:.3f}"
        for name in ("act/reward", "rehearse/reward")
        if name in m
    ]
    parts += [
        f"rows {m.get('act/rows', 0):.0f}+{m.get('rehearse/rows', 0):.0f}",
        f"{m.get('seconds/step', 0):.1f} s",
    ]
    said = ", ".join([*parts, f"{event.eta_s:.0f} s left"] if event.eta_s else parts)
    return f"{said}; {event.warning}" if event.warning else said


def emit(work: Path, event: Progress) -> None:
    """Append an event and beat."""
    append(work / "progress.jsonl", {**asdict(event), "time": time.time()})
    beat(work)


def beat(work: Path) -> None:
    (work / "heartbeat").touch()


def last_beat(work: Path) -> float:
    """Time of the last sign of life, 0 when there was none."""
    paths = (work / "heartbeat", work / "progress.jsonl")
    return max((p.stat().st_mtime for p in paths if p.exists()), default=0.0)


def write_episodes(work: Path, step: int, episodes: list[dict[str, JSON]]) -> None:
    """Save the episodes of one step, whole or not at all."""
    folder = work / "episodes"
    folder.mkdir(parents=True, exist_ok=True)
    part = folder / f"step_{step:06d}.part"
    with part.open("w", encoding="utf-8") as f:
        f.writelines(json.dumps(e, ensure_ascii=False) + "\n" for e in episodes)
    os.replace(part, part.with_suffix(".jsonl"))


def read_steps(work: Path, last: int | None = None) -> list[dict[str, JSON]]:
    """Metrics in step order up to `last`; of a step repeated after a resume the last record counts."""
    by_step = {record["step"]: record for record in read_lines(work / "metrics.jsonl")}
    return [by_step[k] for k in sorted(by_step) if last is None or k <= last]


def read_lines(path: Path, offset: int = 0) -> list[dict[str, JSON]]:
    return [record for record, _ in follow(path, offset)]


def follow(path: Path, offset: int = 0) -> Iterator[tuple[dict[str, JSON], int]]:
    """Complete lines from a byte offset on, each with the offset behind it."""
    if not path.exists():
        return
    with path.open("rb") as f:
        f.seek(offset)
        for line in f:
            if not line.endswith(b"\n"):
                return
            offset += len(line)
            yield json.loads(line), offset


def append(path: Path, record: dict[str, JSON]) -> None:
    """One JSON line more."""
    with path.open("a", encoding="utf-8") as f:
        f.write(json.dumps(record) + "\n")
