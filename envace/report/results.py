"""What the report knows: everything read, as records.

Flows in: nothing. Flows out: frozen records, made by `envace.report.load`.
Invariant: what was absent or unreadable is empty here and named in `missing` or `problems`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from envace.bench.fidelity.scores import Score
from envace.types import JSON, Episode, PolicyRef, SampleRecord, ScoreRecord, Task


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainRun:
    name: str  # <arm>-<seed>
    steps: tuple[dict[str, JSON], ...] = ()  # one a optimizer step, as in metrics.jsonl
    info: dict[str, JSON] = field(default_factory=dict)  # train.json
    shown: Episode | None = None  # the episode the report shows
    shown_step: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalRun:
    """Of one evaluation, of one test-time-scaling point, or of one step of a training (`name` says which)."""

    name: str
    policy: str
    benchmark: str = "desk"
    mode: str = ""  # plain | parallel | sequential
    n: int = 0  # private rehearsals; of a point on the curve of training: its step
    scores: tuple[ScoreRecord, ...] = ()
    samples: tuple[SampleRecord, ...] = ()
    episodes: tuple[Episode, ...] = ()  # of the headline's two policies only
    info: dict[str, JSON] = field(default_factory=dict)  # scores.json without its scores
    rehearsal: dict[str, float] = field(default_factory=dict)  # what private rehearsals came to
    memories: dict[str, str] = field(default_factory=dict)  # task -> what its first committed run was told

    @property
    def finished(self) -> bool:
        return bool(self.scores or self.samples)


@dataclass(frozen=True, slots=True, kw_only=True)
class FidelityRun:
    policy: str
    scores: dict[str, Score] = field(default_factory=dict)  # as `envace.bench.fidelity` names them
    calls: tuple[dict[str, JSON], ...] = ()
    plays: tuple[dict[str, JSON], ...] = ()  # a (task, trial) in rehearsal and in the true world
    info: dict[str, JSON] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedFile:
    """A file of the source, or one that staging made."""

    name: str
    rows: int | None = None
    bytes: int | None = None
    sha256: str = ""
    version: str = ""  # as its store names it


@dataclass(frozen=True, slots=True, kw_only=True)
class Histogram:
    edges: tuple[float, ...]  # lower edge of each bin, increasing; the last bin is open
    counts: tuple[int, ...]  # [len(edges)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Staged:
    """What the manifest of the staged rows says, as far as it could be read."""

    format: int | None = None
    kind: str = ""  # desk | local | s3 | hub
    uri: str = ""
    revision: str = ""
    licence: str = ""
    files: tuple[StagedFile, ...] = ()  # of the source
    outputs: tuple[StagedFile, ...] = ()
    totals: dict[str, int] = field(default_factory=dict)  # read, kept, rejected, more_variants
    steps: dict[str, int] = field(default_factory=dict)  # rows left after each
    reasons: dict[str, int] = field(default_factory=dict)  # rows by the first reason against them
    hits: dict[str, int] = field(default_factory=dict)  # rows by every reason that holds
    forms: dict[str, int] = field(default_factory=dict)
    tags: dict[str, int] = field(default_factory=dict)
    licences: dict[str, int] = field(default_factory=dict)  # kept rows by licence
    sources: dict[str, int] = field(default_factory=dict)  # kept rows by the file they came from
    sizes: dict[str, Histogram] = field(default_factory=dict)
    params: dict[str, JSON] = field(default_factory=dict)  # dotted
    prompt_length: str = ""  # how it was counted


@dataclass(frozen=True, slots=True, kw_only=True)
class Results:
    train: tuple[TrainRun, ...] = ()
    evals: tuple[EvalRun, ...] = ()
    tts: tuple[EvalRun, ...] = ()
    bench: tuple[EvalRun, ...] = ()  # upstream benchmarks
    dynamics: tuple[EvalRun, ...] = ()  # kept steps of trainings; `policy` is the training
    fidelity: tuple[FidelityRun, ...] = ()
    cards: dict[str, PolicyRef] = field(default_factory=dict)
    manifest: dict[str, JSON] = field(default_factory=dict)
    staged: Staged | None = None  # the manifest, read
    tasks: dict[str, Task] = field(default_factory=dict)
    example: Task | None = None  # the held-out task that explains the world
    stage_seconds: dict[str, float] = field(default_factory=dict)  # last run of each stage on this machine
    missing: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
