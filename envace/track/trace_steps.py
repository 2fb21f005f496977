"""What of an episode a trace shows, step by step; each becomes a span.

Flows in: an `Episode`, whole or as training keeps it. Flows out: `Step`s in the order in which things
happened.
Invariant: every message, generation, observation and verdict of the episode is in some step; a failure that
has a name is in `failures` of the step it happened in.

episode (AGENT)       the whole, from the first message to the stop
  ACT (CHAT_MODEL)    what was said since the last one -> the message with its calls
  REHEARSE get_order, environment get_order, ... (TOOL)    one call -> its response, by who answered
  JUDGE turn 0 (EVALUATOR)   the verdicts of a turn and what they cost
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import takewhile

from envace.rollout.pool import outcome
from envace.types import (
    JSON,
    Answer,
    Episode,
    Generation,
    Message,
    Observation,
    Role,
    Source,
    ToolCall,
    Verdict,
)

AGENT, CHAT_MODEL, TOOL, EVALUATOR = "AGENT", "CHAT_MODEL", "TOOL", "EVALUATOR"  # MLflow's kinds of spans
USAGE = "mlflow.chat.tokenUsage"  # what MLflow sums over a trace
OF_EPISODE = ("stop", "stop_detail", "reward", "turn_rewards", "unscored_reason", "attempt", "seed")
OF_GENERATION = ("step", "call_index", "weight_version", "agreement")


@dataclass(slots=True, kw_only=True)
class Step:
    """A span to be: what is in it, and its share of the time."""

    name: str
    kind: str
    inputs: JSON
    outputs: JSON
    attributes: dict[str, JSON] = field(default_factory=dict)
    failures: list[tuple[str, str]] = field(default_factory=list)
    """(name, detail) of each."""
    seconds: float | None = None
    """Recorded; None shares what is left."""
    beside: bool = False
    """Begins with the step before it: calls of one message that were rehearsed at the same time."""
    tokens: int = 0
    turn: int | None = None
    """Of a JUDGE."""

    def with_generation(self, g: Generation) -> Step:
        """With the generation's counts, and its words where they could not be read."""
        self.tokens, self.seconds = len(g.output_ids), g.seconds
        self.attributes |= _picked(g, OF_GENERATION) | _picked(g.sampling, ("temperature", "seed"))
        self.attributes |= {"tokens_out": len(g.output_ids), "finish": g.finish}
        if g.prompt_ids:
            read, written = len(g.prompt_ids), len(g.output_ids)
            usage = {"input_tokens": read, "output_tokens": written, "total_tokens": read + written}
            self.attributes |= {"tokens_in": read, USAGE: usage}
        if g.failure:
            self.failures.append((g.failure.value, ""))
            self.attributes["written"] = g.text
        return self


def root_of(e: Episode, left_out: int) -> Step:
    """The episode as a whole; `left_out` of its steps are not shown."""
    failures = [] if outcome(e.stop) == "finished" else [(e.stop.value, e.stop_detail)]
    if e.unscored_reason is not None:
        failures.append(("unscored", e.unscored_reason))
    attributes = _picked(e, (*OF_EPISODE, "prompt_set", "counters")) | {
        "real_calls": len(e.real_calls),
        "timing": "length recorded",
    }
    if left_out:
        attributes["spans_left_out"] = left_out
    first = [_chat(m) for m in takewhile(lambda m: m.role != "assistant", e.messages)]
    return Step(
        name="episode",
        kind=AGENT,
        inputs={"task": e.task_id, "messages": first},
        outputs={"reply": last_reply(e), "stop": e.stop, "reward": e.reward},
        attributes=attributes,
        failures=failures,
    )


def steps_of(e: Episode) -> Iterator[Step]:
    """Everything that happened, in order."""
    acts = iter([g for g in e.generations if g.role is Role.ACT])
    rehearsed = {(g.step, g.call_index): g for g in e.generations if g.role is Role.REHEARSE}
    observed = iter(e.observations)
    judged = {v.turn: [w for w in e.verdicts if w.turn == v.turn] for v in e.verdicts}
    heard: list[Message] = []
    calls: tuple[ToolCall, ...] = ()
    step = index = 0
    for message in e.messages:
        for turn in sorted(t for t in judged if t < message.turn):
            yield _judge(turn, judged.pop(turn))
        if message.role == "assistant":
            act = next(acts, None)
            step, calls, index = act.step if act else step + 1, message.calls, 0
            yield _act(act, message, heard)
            heard = []
            continue
        if message.role == "tool" and (seen := next(observed, None)) is not None:
            call = calls[index] if index < len(calls) else None
            yield from _answer(call, message, seen, rehearsed.pop((step, index), None))
            index += 1
        heard.append(message)
    for g in (*acts, *rehearsed.values()):  # of a message that was never said
        yield Step(name=g.role.value.upper(), kind=CHAT_MODEL, inputs={}, outputs=g.text).with_generation(g)
    for turn in sorted(judged):
        yield _judge(turn, judged[turn])


def _act(g: Generation | None, message: Message, heard: Sequence[Message]) -> Step:
    inputs, turn = {"messages": [_chat(m) for m in heard]}, {"turn": message.turn}
    step = Step(name="ACT", kind=CHAT_MODEL, inputs=inputs, outputs=_chat(message), attributes=turn)
    return step.with_generation(g) if g else step


def _answer(
    call: ToolCall | None, message: Message, seen: Observation, g: Generation | None
) -> Iterator[Step]:
    """Who answered a call; before it what REHEARSE wrote, where a true source then answered in its place."""
    name, arguments = message.name or (call.name if call else ""), call.arguments if call else {}
    beside = g is not None and g.call_index > 0
    if g and seen.source is not Source.REHEARSAL:
        wrote = Step(name=f"REHEARSE {name}", kind=TOOL, inputs=arguments, outputs=g.text, beside=beside)
        yield wrote.with_generation(g)
        g, beside = None, False
    who = "REHEARSE" if seen.source is Source.REHEARSAL else seen.source.value
    about = {"tool": name, "turn": message.turn, "source": seen.source, "refused": seen.error}
    step = Step(
        name=f"{who} {name}".rstrip(),
        kind=TOOL,
        inputs=arguments,
        outputs=seen.content,
        attributes=about,
        beside=beside,
    )
    if g:
        step = step.with_generation(g)
    if seen.failure:
        step.failures = [(seen.failure.value, "")]
    yield step


def _judge(turn: int, verdicts: Sequence[Verdict]) -> Step:
    answers = {
        v.item_id: {k: x for k, x in _picked(v, ("answer", "reason", "step")).items() if x not in ("", None)}
        for v in verdicts
    }
    sums = {
        "tokens": "cost_tokens",
        "cost": "cost",
        "requests": "requests",
        "retries": "retries",
        "cached": "cached",
    }
    attributes = {shown: sum(getattr(v, name) for v in verdicts) for shown, name in sums.items()}
    attributes |= {"turn": turn, "endpoints": sorted({v.endpoint for v in verdicts if v.endpoint})}
    lost = sorted({v.reason or "no reason" for v in verdicts if v.answer is Answer.UNSCORED})
    return Step(
        name=f"JUDGE turn {turn}",
        kind=EVALUATOR,
        inputs={"items": [v.item_id for v in verdicts]},
        outputs=answers,
        attributes=attributes,
        failures=[parted(reason) for reason in lost],
        seconds=sum(v.seconds for v in verdicts),
        turn=turn,
    )


def _picked(record: JSON, names: Sequence[str]) -> dict[str, JSON]:
    return {name: getattr(record, name) for name in names}


def parted(reason: str) -> tuple[str, str]:
    """A reason as its name and what follows the colon."""
    name, _, detail = reason.partition(":")
    return name.strip(), detail.strip()


def _chat(m: Message) -> dict[str, JSON]:
    """A message as chat models and MLflow's pages know it."""
    calls = [
        {"type": "function", "function": {"name": c.name, "arguments": json.dumps(c.arguments)}}
        for c in m.calls
    ]
    parts = _picked(m, ("role", "content", "thinking", "name")) | {"tool_calls": calls}
    return {k: v for k, v in parts.items() if v or k in ("role", "content")}


def first_request(e: Episode) -> str:
    """The user's first words."""
    return next((m.content for m in e.messages if m.role == "user"), "")


def last_reply(e: Episode) -> str:
    """ACT's last words to the user."""
    return next((m.content for m in reversed(e.messages) if m.role == "assistant" and not m.calls), "")
