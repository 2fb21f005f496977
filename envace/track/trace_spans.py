"""One episode as an MLflow trace.

Flows in: an `Episode` and the run it belongs to. Flows out: MLflow's `TraceInfo` and spans, ready to be sent.
Invariant: ids depend on the run and the episode alone, so writing twice makes one trace; every text is
redacted before it is cut, and nothing is longer than its limit.

Reward and verdicts are feedback. Recorded times: the episode's length, each generation, the seconds of its
judge. What took the rest (an executable world, a server asked for a call, a generation stored without its
time) shares what is left by tokens, and says so (`timing`). What was rehearsed at the same time begins at the
same time.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

from mlflow.entities import (
    Assessment,
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
from envace.track.trace_limits import Limits
from envace.track.trace_steps import Step, first_request, last_reply, parted, root_of, steps_of
from envace.types import Answer, Episode, Verdict

MOST_SPANS = 400  # of one trace; an episode that has more shows its first ones
SHORTEST_NS = 1000
LONGEST_TAG, LONGEST_PREVIEW = 250, 1000


def trace_of(
    episode: Episode, *, run_id: str, experiment: str, limits: Limits, tags: Mapping[str, str], ended_ns: int
) -> tuple[TraceInfo, list[Span]]:
    """The trace of an episode that has ended by `ended_ns`, under the run `run_id`."""
    steps = list(steps_of(episode))
    shown = steps[:MOST_SPANS]
    times = _times(shown, episode.seconds)
    seconds = max(episode.seconds, max((at + length for at, length in times), default=0) / 1e9)
    begun = ended_ns - int(seconds * 1e9)
    ids, root = Ids(f"{run_id}/{episode.id}"), root_of(episode, len(steps) - len(shown))
    spans = [_span(root, 0, ids, limits, begun, ended_ns)]
    for k, (step, (at, length)) in enumerate(zip(shown, times, strict=True), 1):
        spans.append(_span(step, k, ids, limits, begun + at, begun + at + length))
    judged = {step.turn: ids.span_text(k) for k, step in enumerate(shown, 1) if step.turn is not None}
    session = limits.text(f"{run_id[:8]}/{episode.group_id}", LONGEST_TAG)
    info = TraceInfo(
        trace_id=ids.trace_text,
        trace_location=TraceLocation.from_experiment_id(experiment),
        request_time=begun // 1_000_000,
        execution_duration=int(seconds * 1000),
        state=TraceState.ERROR if root.failures else TraceState.OK,
        request_preview=limits.text(first_request(episode), LONGEST_PREVIEW),
        response_preview=limits.text(last_reply(episode), LONGEST_PREVIEW),
        trace_metadata={TraceMetadataKey.SOURCE_RUN: run_id, TraceMetadataKey.TRACE_SESSION: session},
        tags={k: limits.text(str(v), LONGEST_TAG) for k, v in (_tags(episode) | dict(tags)).items()},
        assessments=_feedback(episode, ids, judged, limits),
    )
    return info, spans


class Ids:
    """Numbers of a trace and its spans, from the text that names the episode."""

    def __init__(self, name: str):
        self.name, self.trace = name, _number(name, 16)
        self.trace_text = f"tr-{self.trace:032x}"

    def span(self, k: int) -> int:
        """Of the k-th span; 0 is the root."""
        return _number(f"{self.name}/{k}", 8)

    def span_text(self, k: int) -> str:
        """As feedback names it."""
        return f"{self.span(k):016x}"

    def context(self, k: int) -> SpanContext:
        """As OpenTelemetry names a span."""
        return SpanContext(trace_id=self.trace, span_id=self.span(k), is_remote=False)

    def feedback(self, name: str) -> str:
        """Of one feedback."""
        return f"a-{_number(f'{self.name}/{name}', 16):032x}"


def _number(text: str, size: int) -> int:
    return int.from_bytes(hashlib.sha256(text.encode("utf-8", "replace")).digest()[:size], "big") or 1


def _tags(e: Episode) -> dict[str, str]:
    tags = {TraceTagKey.TRACE_NAME: e.task_id, "envace.task": e.task_id, "envace.group": e.group_id}
    tags |= {"envace.episode": e.id, "envace.stop": e.stop.value, "envace.outcome": outcome(e.stop)}
    if e.reward is not None:
        tags["envace.reward"] = f"{e.reward:.6g}"
    if e.unscored_reason is not None:
        tags["envace.unscored"] = e.unscored_reason
    return tags


def _feedback(e: Episode, ids: Ids, judged: Mapping[int, str], limits: Limits) -> list[Assessment]:
    """The reward, or why there is none, on the whole; each verdict on its JUDGE span."""
    lost = None if e.reward is not None else AssessmentError("unscored", limits.text(str(e.unscored_reason)))
    source = AssessmentSource("CODE", "envace")
    found: list[Assessment] = [
        Feedback("reward", e.reward, error=lost, source=source, trace_id=ids.trace_text)
    ]
    found += [_verdict_feedback(v, ids, judged.get(v.turn), limits) for v in e.verdicts]
    for feedback in found:
        feedback.assessment_id = ids.feedback(f"{feedback.span_id}/{feedback.name}")
    return found


def _verdict_feedback(v: Verdict, ids: Ids, span: str | None, limits: Limits) -> Feedback:
    by_model = bool(v.endpoint or v.requests or v.cached)
    unscored = v.answer is Answer.UNSCORED
    error = AssessmentError(*map(limits.text, parted(v.reason or "no reason"))) if unscored else None
    return Feedback(
        name=limits.text(f"turn {v.turn} {v.item_id}", 200),
        value=None if unscored else v.answer is Answer.YES,
        error=error,
        rationale=limits.text(v.reason) or None,
        source=AssessmentSource("LLM_JUDGE" if by_model else "CODE", limits.text(v.endpoint, 200) or "judge"),
        trace_id=ids.trace_text,
        span_id=span,
    )


def _times(steps: Sequence[Step], seconds: float) -> list[tuple[int, int]]:
    """(begin, length) of each step in nanoseconds: recorded lengths as they are, the others share the rest by
    their tokens; one after the other, or beside the one before."""
    groups = _at_once(steps)
    rest = max(0.0, seconds - sum(max(s.seconds or 0.0 for s in group) for group in groups))
    total = sum(max(1, s.tokens) for s in steps if s.seconds is None)
    found, at = [], 0
    for group in groups:
        own = [rest * max(1, s.tokens) / total if s.seconds is None else s.seconds for s in group]
        lengths = [max(SHORTEST_NS, int(length * 1e9)) for length in own]
        found += [(at, length) for length in lengths]
        at += max(lengths)
    return found


def _at_once(steps: Sequence[Step]) -> list[list[Step]]:
    """Steps that begin together. One whose time is not known stands alone: nobody knows what it was beside
    of.
    """
    groups: list[list[Step]] = []
    for step in steps:
        timed = step.seconds is not None and groups and groups[-1][-1].seconds is not None
        if step.beside and timed:
            groups[-1].append(step)
        else:
            groups.append([step])
    return groups


def _span(step: Step, k: int, ids: Ids, limits: Limits, begun: int, ended: int) -> Span:
    attributes = {"timing": "by tokens" if step.seconds is None else "recorded", **step.attributes}
    attributes |= {SpanAttributeKey.REQUEST_ID: ids.trace_text, SpanAttributeKey.SPAN_TYPE: step.kind}
    attributes |= {SpanAttributeKey.INPUTS: step.inputs, SpanAttributeKey.OUTPUTS: step.outputs}
    failures = [(limits.text(name), limits.text(detail)) for name, detail in step.failures]
    described = "; ".join(": ".join(filter(None, pair)) for pair in failures)
    span = ReadableSpan(
        name=limits.text(step.name, LONGEST_TAG),
        context=ids.context(k),
        parent=ids.context(0) if k else None,
        start_time=begun,
        end_time=ended,
        resource=Resource.get_empty(),
        attributes={key: limits.json(value) for key, value in attributes.items() if value is not None},
        status=Status(StatusCode.ERROR, described) if failures else Status(StatusCode.OK),
        events=[Event(name, {"detail": detail}, timestamp=ended) for name, detail in failures],
    )
    return Span(span)
