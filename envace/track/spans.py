"""One episode as an MLflow trace.

Flows in: an `Episode` and the run it belongs to. Flows out: MLflow's `TraceInfo` and spans, ready to be sent.
Invariant: ids depend on the run and the episode alone, so writing twice makes one trace; every text is redacted
before it is cut, and nothing is longer than its limit.

Reward and verdicts are feedback. Recorded times: the episode's length, each generation, the seconds of its judge. What
took the rest (an executable world, a server asked for a call, a generation stored without its time) shares what is left
by tokens, and says so (`timing`). What was rehearsed at the same time begins at the same time.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

from mlflow.entities import (
    AssessmentError,
    AssessmentSource,
    Feedback,
    Span,
    TraceInfo,
    TraceLocation,
    TraceState,
)
from mlflow.tracing.constant import SpanAttributeKey, TraceMetadataKey, TraceTagKey
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.trace import SpanContext, Status, StatusCode

from envace.rollout.pool import outcome
from envace.track.cut import Cutter
from envace.track.pieces import Piece, asked, parted, pieces_of, root_of, said
from envace.types import Answer, Episode, Verdict

MOST_SPANS = 400  # of one trace; an episode that has more shows its first ones
SHORTEST_NS = 1000
LONGEST_TAG, LONGEST_PREVIEW = 250, 1000


def trace_of(
    episode: Episode,
    *,
    run_id: str,
    experiment: str,
    cutter: Cutter,
    tags: Mapping[str, str],
    ended_ns: int,
) -> tuple[TraceInfo, list[Span]]:
    """The trace of an episode that has ended by `ended_ns`, under the run `run_id`."""
    pieces = list(pieces_of(episode))
    shown = pieces[:MOST_SPANS]
    lengths = _lengths(shown, episode.seconds)
    begins = _begins(shown, lengths)
    seconds = max(episode.seconds, max((b + n for b, n in zip(begins, lengths)), default=0) / 1e9)
    ids = Ids(f"{run_id}/{episode.id}")
    begun = ended_ns - int(seconds * 1e9)
    root = root_of(episode, len(pieces) - len(shown))
    spans = [_span(root, 0, ids, cutter, begun, ended_ns)]
    for k, (piece, at, length) in enumerate(zip(shown, begins, lengths, strict=True), 1):
        spans.append(_span(piece, k, ids, cutter, begun + at, begun + at + length))
    judged = {p.turn: ids.span_text(k) for k, p in enumerate(shown, 1) if p.turn is not None}
    info = TraceInfo(
        trace_id=ids.trace_text, trace_location=TraceLocation.from_experiment_id(experiment),
        request_time=begun // 1_000_000, execution_duration=int(seconds * 1000),
        state=TraceState.ERROR if root.failures else TraceState.OK,
        request_preview=cutter.text(asked(episode), LONGEST_PREVIEW),
        response_preview=cutter.text(said(episode), LONGEST_PREVIEW),
        trace_metadata={
            TraceMetadataKey.SOURCE_RUN: run_id,
            TraceMetadataKey.TRACE_SESSION: cutter.text(f"{run_id[:8]}/{episode.group_id}", LONGEST_TAG),
        },
        tags={k: cutter.text(str(v), LONGEST_TAG) for k, v in (_tags(episode) | dict(tags)).items()},
        assessments=_feedback(episode, ids, judged, cutter),
    )  # fmt: skip
    return info, spans


class Ids:
    """Numbers of a trace and its spans, from the text that names the episode."""

    def __init__(self, name: str):
        self.name = name
        self.trace = _number(name, 16)
        self.trace_text = f"tr-{self.trace:032x}"

    def span(self, k: int) -> int:
        return _number(f"{self.name}/{k}", 8)

    def span_text(self, k: int) -> str:
        return f"{self.span(k):016x}"

    def feedback(self, name: str) -> str:
        return f"a-{_number(f'{self.name}/{name}', 16):032x}"


def _number(text: str, size: int) -> int:
    return int.from_bytes(hashlib.sha256(text.encode("utf-8", "replace")).digest()[:size], "big") or 1


def _tags(e: Episode) -> dict[str, str]:
    scored = {"envace.reward": f"{e.reward:.6g}"} if e.reward is not None else {}
    if e.unscored_reason is not None:
        scored["envace.unscored"] = e.unscored_reason
    return {
        TraceTagKey.TRACE_NAME: e.task_id, "envace.task": e.task_id, "envace.group": e.group_id,
        "envace.episode": e.id, "envace.stop": e.stop.value, "envace.outcome": outcome(e.stop), **scored,
    }  # fmt: skip


def _feedback(e: Episode, ids: Ids, judged: Mapping[int | None, str], cutter: Cutter) -> list[Feedback]:
    """The reward, or why there is none, on the whole; each verdict on its JUDGE span."""
    lost = None if e.reward is not None else AssessmentError("unscored", cutter.text(str(e.unscored_reason)))
    code = AssessmentSource("CODE", "envace")
    found = [Feedback("reward", e.reward, error=lost, source=code, trace_id=ids.trace_text)]
    for v in e.verdicts:
        found.append(_verdict_feedback(v, ids, judged.get(v.turn), cutter))
    for feedback in found:
        feedback.assessment_id = ids.feedback(f"{feedback.span_id}/{feedback.name}")
    return found


def _verdict_feedback(v: Verdict, ids: Ids, span: str | None, cutter: Cutter) -> Feedback:
    model = bool(v.endpoint or v.requests or v.cached)
    source = AssessmentSource("LLM_JUDGE" if model else "CODE", cutter.text(v.endpoint, 200) or "judge")
    unscored = v.answer is Answer.UNSCORED
    return Feedback(
        name=cutter.text(f"turn {v.turn} {v.item_id}", 200),
        value=None if unscored else v.answer is Answer.YES,
        error=AssessmentError(*map(cutter.text, parted(v.reason or "no reason"))) if unscored else None,
        rationale=cutter.text(v.reason) or None, source=source, trace_id=ids.trace_text, span_id=span,
    )  # fmt: skip


def _lengths(pieces: Sequence[Piece], seconds: float) -> list[int]:
    """Nanoseconds of each piece: recorded ones as they are, the others share the rest by their tokens."""
    rest = max(0.0, seconds - sum(max(p.seconds or 0.0 for p in group) for group in _at_once(pieces)))
    total = sum(max(1, p.tokens) for p in pieces if p.seconds is None)
    lengths = []
    for p in pieces:
        own = rest * max(1, p.tokens) / total if p.seconds is None else p.seconds
        lengths.append(max(SHORTEST_NS, int(own * 1e9)))
    return lengths


def _begins(pieces: Sequence[Piece], lengths: Sequence[int]) -> list[int]:
    """Nanoseconds from the first: one after the other, or beside the one before."""
    found, at = [], 0
    for group in _at_once(pieces):
        here = lengths[len(found) : len(found) + len(group)]
        found += [at] * len(group)
        at += max(here)
    return found


def _at_once(pieces: Sequence[Piece]) -> list[list[Piece]]:
    """Pieces that begin together. One whose time is not known stands alone: nobody knows what it was beside of."""
    groups: list[list[Piece]] = []
    for piece in pieces:
        together = (
            piece.beside and piece.seconds is not None and groups and groups[-1][-1].seconds is not None
        )
        groups[-1:] = [[*groups[-1], piece]] if together else [*groups[-1:], [piece]]
    return groups


def _span(piece: Piece, k: int, ids: Ids, cutter: Cutter, begun: int, ended: int) -> Span:
    attributes = {"timing": "by tokens" if piece.seconds is None else "recorded", **piece.attributes}
    attributes |= {
        SpanAttributeKey.REQUEST_ID: ids.trace_text, SpanAttributeKey.SPAN_TYPE: piece.kind,
        SpanAttributeKey.INPUTS: piece.inputs, SpanAttributeKey.OUTPUTS: piece.outputs,
    }  # fmt: skip
    failures = [(cutter.text(name), cutter.text(detail)) for name, detail in piece.failures]
    described = "; ".join(": ".join(filter(None, pair)) for pair in failures)
    return Span(ReadableSpan(
        name=cutter.text(piece.name, LONGEST_TAG), context=_context(ids, k), parent=_context(ids, 0) if k else None,
        start_time=begun, end_time=ended, resource=Resource.get_empty(),
        attributes={key: cutter.json(value) for key, value in attributes.items() if value is not None},
        status=Status(StatusCode.ERROR, described) if failures else Status(StatusCode.OK),
        events=[Event(name, {"detail": detail}, timestamp=ended) for name, detail in failures],
    ))  # fmt: skip


def _context(ids: Ids, k: int) -> SpanContext:
    return SpanContext(trace_id=ids.trace, span_id=ids.span(k), is_remote=False)
