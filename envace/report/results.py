"""What the report knows: everything read, as records.

Invariant: what was absent or unreadable is empty here and named in `missing` or `problems`."""

from __future__ import annotations

from dataclasses import dataclass, field

from envace.bench.fidelity.scores import Score
from envace.report.manifest import Manifest
from envace.types import JSON, Episode, PolicyRef, SampleRecord, ScoreRecord, Task


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainRun:
    name: str
    """`<arm>-<seed>`"""
    steps: tuple[dict[str, JSON], ...] = ()
    """One an optimizer step, as in metrics.jsonl."""
    info: dict[str, JSON] = field(default_factory=dict)
    """train.json"""
    shown: Episode | None = None
    """The episode the report shows."""
    shown_step: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalRun:
    """Of one evaluation, of one test-time-scaling point, or of one step of a training (`name` says which)."""

    name: str
    policy: str
    benchmark: str = "desk"
    mode: str = ""
    """plain | parallel | sequential"""
    n: int = 0
    """Private rehearsals; of a point on the curve of training: its step."""
    scores: tuple[ScoreRecord, ...] = ()
    samples: tuple[SampleRecord, ...] = ()
    episodes: tuple[Episode, ...] = ()
    """Of the headline's two policies only."""
    info: dict[str, JSON] = field(default_factory=dict)
    """scores.json without its scores."""
    rehearsal: dict[str, float] = field(default_factory=dict)
    """What private rehearsals came to."""
    memories: dict[str, str] = field(default_factory=dict)
    """Task -> what its first committed run was told."""

    @property
    def finished(self) -> bool:
        return bool(self.scores or self.samples)


@dataclass(frozen=True, slots=True, kw_only=True)
class FidelityRun:
    policy: str
    scores: dict[str, Score] = field(default_factory=dict)
    """As `envace.bench.fidelity` names them."""
    calls: tuple[dict[str, JSON], ...] = ()
    plays: tuple[dict[str, JSON], ...] = ()
    """A (task, trial) in rehearsal and in the true world."""
    info: dict[str, JSON] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Results:
    train: tuple[TrainRun, ...] = ()
    evals: tuple[EvalRun, ...] = ()
    tts: tuple[EvalRun, ...] = ()
    bench: tuple[EvalRun, ...] = ()
    """Upstream benchmarks."""
    dynamics: tuple[EvalRun, ...] = ()
    """Kept steps of trainings; `policy` is the training."""
    fidelity: tuple[FidelityRun, ...] = ()
    cards: dict[str, PolicyRef] = field(default_factory=dict)
    manifest: Manifest | None = None
    tasks: dict[str, Task] = field(default_factory=dict)
    example: Task | None = None
    """The held-out task that explains the world."""
    stage_seconds: dict[str, float] = field(default_factory=dict)
    """Last run of each stage on this machine."""
    missing: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
