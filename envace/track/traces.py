"""Episodes of a stage as MLflow traces: a sample, and what failed.

Flows in: the episodes a stage leaves, in memory or as lines of a file. Flows out: traces under the stage's
run, and `TraceCounts` that say how many.
Invariant: every episode stays where DVC keeps it; a trace is a picture of it. Whatever goes wrong in making
or sending one costs that picture alone, is counted and named, and never ends the stage; a store that does not
answer is left after `FAULTS_TO_STOP` faults in a row or at the deadline (`DEADLINE_S`, longer for very many
traces).

The sample takes whole groups, chosen by the hash of their id, so that the tries of one prompt stand side by
side.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from envace.errors import innermost
from envace.rollout.pool import outcome
from envace.track.run_log import RunLog
from envace.track.trace_limits import Limits
from envace.types import Episode, StopReason, from_json, replace

if TYPE_CHECKING:
    from mlflow.entities import Span, TraceInfo

DEADLINE_S = 120.0  # of all traces of a stage; SECONDS_EACH for each where that is more
SECONDS_EACH = 0.25
FAULTS_TO_STOP = 3
LONGEST_CAUSE = 200
RANK = {"failed": 0, "cancelled": 1, "truncated": 2}  # which failures are shown first


class EpisodeHead(msgspec.Struct):
    """What the choice needs to know of an episode."""

    id: str
    group_id: str
    stop: StopReason
    unscored_reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """An episode that may be shown, and how to get it."""

    head: EpisodeHead
    load: Callable[[], Episode]
    tags: Mapping[str, str] = field(default_factory=dict)

    @property
    def failed(self) -> bool:
        """It did not come to its end, or has no reward."""
        return outcome(self.head.stop) != "finished" or self.head.unscored_reason is not None


@dataclass(slots=True, kw_only=True)
class TraceCounts:
    """`TraceCounts(episodes=384, failed=9, chosen=25, chosen_failed=9, written=25)`"""

    episodes: int = 0
    unreadable: int = 0  # lines that hold no episode
    failed: int = 0
    chosen: int = 0
    chosen_failed: int = 0
    written: int = 0
    cause: str = ""  # of the first that was lost
    seconds: float = 0.0

    @property
    def lost(self) -> int:
        return self.chosen - self.written

    @property
    def left_out(self) -> int:
        """Failures above the limit."""
        return self.failed - self.chosen_failed

    def metrics(self) -> dict[str, float]:
        """For metrics."""
        names = ("written", "failed", "left_out", "lost", "unreadable", "seconds")
        return {name: float(getattr(self, name)) for name in names}

    def sentence(self) -> str:
        """For the terminal."""
        text = (
            f"traces: {self.written} of {self.episodes} episodes in MLflow, with {self.chosen_failed} of "
            f"{self.failed} that failed, {self.seconds:.1f} s"
        )
        if self.left_out:
            text += f"; {self.left_out} more failed than mlflow.failed_traces shows"
        if self.unreadable:
            text += f"; {self.unreadable} lines hold no episode"
        if self.lost:
            text = f"warning: {text}; {self.lost} not written: {self.cause}"
        return text


def of_episodes(episodes: Iterable[Episode], tags: Mapping[str, str]) -> Iterator[Candidate]:
    """Episodes in memory."""
    for e in episodes:
        head = EpisodeHead(e.id, e.group_id, e.stop, e.unscored_reason)
        yield Candidate(head=head, load=partial(replace, e), tags=tags)


def of_file(path: Path, tags: Mapping[str, str]) -> Iterator[Candidate | None]:
    """Episodes of a .jsonl file; None for a line that holds none. Only chosen ones are read whole."""
    decoder, at = msgspec.json.Decoder(EpisodeHead), 0
    with path.open("rb") as lines:
        for line in lines:
            try:
                head = decoder.decode(line)
            except msgspec.DecodeError:
                yield None
            else:
                yield Candidate(head=head, load=partial(_read, path, at, len(line)), tags=tags)
            at += len(line)


def choose(candidates: Sequence[Candidate], sample: int, failed: int) -> list[Candidate]:
    """The sample, then failures that are not in it, the gravest first; at most `failed` failures in all, -1
    for all of them.
    """
    by_hash = sorted(candidates, key=lambda c: (_hash(c.head.group_id), _hash(c.head.id)))
    chosen = by_hash[:sample]
    room = max(0, failed - sum(c.failed for c in chosen)) if failed >= 0 else len(candidates)
    rest = [c for c in by_hash[sample:] if c.failed]
    rest.sort(key=lambda c: RANK.get(outcome(c.head.stop), 0))  # an unscored one is as grave as a failed one
    return chosen + rest[:room]


def log_traces(
    log: RunLog,
    candidates: Iterable[Candidate | None],
    *,
    sample: int,
    failed: int,
    tags: Mapping[str, str],
    deadline_s: float | None = None,
) -> TraceCounts:
    """Write the chosen episodes under the run of `log`. Raises nothing that MLflow or an episode is to blame
    for.
    """
    began = time.monotonic()
    found = list(candidates)
    readable = [c for c in found if c is not None]
    chosen = choose(readable, sample, failed)
    counts = TraceCounts(
        episodes=len(readable),
        unreadable=len(found) - len(readable),
        failed=sum(c.failed for c in readable),
        chosen=len(chosen),
        chosen_failed=sum(c.failed for c in chosen),
    )
    if chosen and log.degraded:
        counts.cause = "MLflow went away earlier"
    elif chosen:
        _write(log, chosen, tags, counts, deadline_s or max(DEADLINE_S, SECONDS_EACH * len(chosen)))
    counts.seconds = time.monotonic() - began
    return counts


def _write(
    log: RunLog, chosen: Sequence[Candidate], tags: Mapping[str, str], counts: TraceCounts, deadline_s: float
) -> None:
    """On a thread of its own, which a stage leaves behind at the deadline."""
    over = threading.Event()
    worker = threading.Thread(
        target=_work, args=(log, chosen, tags, counts, over), name="traces", daemon=True
    )
    worker.start()
    worker.join(deadline_s)
    over.set()
    if worker.is_alive():
        counts.cause = (
            counts.cause or f"{'not done' if counts.written else 'no answer'} within {deadline_s:g} s"
        )


def _work(
    log: RunLog,
    chosen: Sequence[Candidate],
    tags: Mapping[str, str],
    counts: TraceCounts,
    over: threading.Event,
) -> None:
    from envace.track.trace_spans import trace_of  # late: MLflow's tracing is heavy

    limits, faults, experiment = Limits(log.redactor), 0, ""
    for candidate in chosen:
        if over.is_set() or faults >= FAULTS_TO_STOP:
            return
        try:
            experiment = experiment or log.client.get_run(log.run_id).info.experiment_id
            episode, all_tags = candidate.load(), {**tags, **candidate.tags}
            where = {"run_id": log.run_id, "experiment": experiment}
            trace = trace_of(episode, **where, limits=limits, tags=all_tags, ended_ns=time.time_ns())
            send(log.client.tracking_uri, *trace)
        except Exception as e:  # the documented boundary: a picture that fails must not cost what it shows
            faults += 1
            counts.cause = counts.cause or _named(e, log)
        else:
            faults, counts.written = 0, counts.written + 1


def send(uri: str, info: TraceInfo, spans: Sequence[Span]) -> None:
    """One finished trace, in this thread. Raises what the store raises.

    MLflow's public functions write to a global run and experiment from a queue of their own, which drops what
    fails; this is the call below them, kept in one place.
    """
    from mlflow.tracing.client import TracingClient

    client = TracingClient(uri)
    client.start_trace(info)
    client.log_spans(info.experiment_id or "", list(spans))


def _named(error: Exception, log: RunLog) -> str:
    cause = innermost(error)
    text = log.redactor.text(str(cause)).strip().partition("\n")[0][:LONGEST_CAUSE]
    return f"{type(cause).__name__}: {text}" if text else type(cause).__name__


def _read(path: Path, at: int, size: int) -> Episode:
    with path.open("rb") as file:
        file.seek(at)
        return from_json(Episode, msgspec.json.decode(file.read(size)))


def _hash(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "replace")).digest()
