"""What of an episode a trace shows, span by span.

Flows in: an `Episode`, whole or as training keeps it. Flows out: `Piece`s in the order in which things happened.
Invariant: every message, generation, observation and verdict of the episode is in some piece; a failure that has a
name is in `failures` of the piece it happened in.

episode (AGENT)       the whole, from the first message to the stop
  ACT (CHAT_MODEL)    what was said since the last one -> the message with its calls
  REHEARSE get_order, environment get_order, ... (TOOL)    one call -> its response, by who answered
  JUDGE turn 0 (EVALUATOR)   the verdicts of a turn and what they cost
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from envace.rollout.pool import outcome
from envace.types import Answer, Episode, Generation, Message, Observation, Role, Source, ToolCall, Verdict

WHO = {Source.REHEARSAL: "REHEARSE"}  # others by their own name
AGENT, CHAT_MODEL, TOOL, EVALUATOR = "AGENT", "CHAT_MODEL", "TOOL", "EVALUATOR"  # MLflow's kinds of spans
USAGE = "mlflow.chat.tokenUsage"  # what MLflow sums over a trace


@dataclass(slots=True, kw_only=True)
class Piece:
    """A span to be: what is in it, and its share of the time."""

    name: str
    kind: str
    inputs: Any
    outputs: Any
    attributes: dict[str, Any] = field(default_factory=dict)
    failures: list[tuple[str, str]] = field(default_factory=list)  # (name, detail)
    seconds: float | None = None  # recorded; None shares what is left
    beside: bool = False  # begins with the piece before it: calls of one message rehearsed at the same time
    tokens: int = 0
    turn: int | None = None  # of a JUDGE


def root_of(e: Episode, left_out: int) -> Piece:
    failures = []
    if outcome(e.stop) != "finished":
        failures.append((e.stop.value, e.stop_detail))
    if e.unscored_reason is not None:
        failures.append(("unscored", e.unscored_reason))
    attributes = {
        "stop": e.stop.value, "stop_detail": e.stop_detail, "reward": e.reward, "turn_rewards": list(e.turn_rewards),
        "unscored_reason": e.unscored_reason, "attempt": e.attempt, "seed": e.seed, "prompt_set": e.prompt_set,
        "counters": dict(e.counters), "real_calls": len(e.real_calls), "timing": "length recorded",
    }  # fmt: skip
    if left_out:
        attributes["spans_left_out"] = left_out
    first = [_chat(m) for m in e.messages[: _first_answer(e)]]
    return Piece(
        name="episode", kind=AGENT, inputs={"task": e.task_id, "messages": first},
        outputs={"reply": said(e), "stop": e.stop.value, "reward": e.reward},
        attributes=attributes, failures=failures,
    )  # fmt: skip


def pieces_of(e: Episode) -> Iterator[Piece]:
    """Everything that happened, in order."""
    acts = iter([g for g in e.generations if g.role is Role.ACT])
    rehearsed = {(g.step, g.call_index): g for g in e.generations if g.role is Role.REHEARSE}
    observed = iter(e.observations)
    heard: list[Message] = []
    judged = {v.turn: [w for w in e.verdicts if w.turn == v.turn] for v in e.verdicts}
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
    for generation in (*acts, *rehearsed.values()):  # of a message that was never said
        yield _unsaid(generation)
    for turn in sorted(judged):
        yield _judge(turn, judged[turn])


def _first_answer(e: Episode) -> int:
    return next((k for k, m in enumerate(e.messages) if m.role == "assistant"), len(e.messages))


def _act(g: Generation | None, message: Message, heard: Sequence[Message]) -> Piece:
    piece = Piece(
        name="ACT", kind=CHAT_MODEL, inputs={"messages": [_chat(m) for m in heard]},
        outputs=_chat(message), attributes={"turn": message.turn},
    )  # fmt: skip
    return _generated(piece, g) if g else piece


def _answer(
    call: ToolCall | None, message: Message, seen: Observation, g: Generation | None
) -> Iterator[Piece]:
    """Who answered a call; and before it what REHEARSE wrote, where a true source then answered in its place."""
    name = message.name or (call.name if call else "")
    if g and seen.source is not Source.REHEARSAL:
        wrote = Piece(name=f"REHEARSE {name}", kind=TOOL, inputs=_arguments(call), outputs=g.text)
        wrote.beside = g.call_index > 0
        yield _generated(wrote, g)
        g = None
    piece = Piece(
        name=f"{WHO.get(seen.source, seen.source.value)} {name}".rstrip(), kind=TOOL,
        inputs=_arguments(call), outputs=seen.content,
        attributes={"tool": name, "turn": message.turn, "source": seen.source.value, "refused": seen.error},
    )  # fmt: skip
    if g:
        piece = _generated(piece, g)
        piece.beside = g.call_index > 0
    if seen.failure:
        piece.failures = [(seen.failure.value, "")]
    yield piece


def _arguments(call: ToolCall | None) -> dict[str, Any]:
    return call.arguments if call else {}


def _unsaid(g: Generation) -> Piece:
    piece = Piece(name=g.role.value.upper(), kind=CHAT_MODEL, inputs={}, outputs=g.text)
    return _generated(piece, g)


def _generated(piece: Piece, g: Generation) -> Piece:
    """With the generation's counts, and its words where they could not be read."""
    piece.tokens, piece.seconds = len(g.output_ids), g.seconds
    piece.attributes |= {
        "step": g.step, "call_index": g.call_index, "tokens_out": len(g.output_ids), "finish": g.finish.value,
        "weight_version": g.weight_version, "temperature": g.sampling.temperature, "seed": g.sampling.seed,
        "agreement": g.agreement,
    }  # fmt: skip
    if g.prompt_ids:
        read, written = len(g.prompt_ids), len(g.output_ids)
        usage = {"input_tokens": read, "output_tokens": written, "total_tokens": read + written}
        piece.attributes |= {"tokens_in": read, USAGE: usage}
    if g.failure:
        piece.failures.append((g.failure.value, ""))
        piece.attributes["written"] = g.text
    return piece


def _judge(turn: int, verdicts: Sequence[Verdict]) -> Piece:
    answers = {
        v.item_id: {
            k: x
            for k, x in (("answer", v.answer.value), ("reason", v.reason), ("step", v.step))
            if x not in ("", None)
        }
        for v in verdicts
    }
    endpoints = sorted({v.endpoint for v in verdicts if v.endpoint})
    attributes = {
        "turn": turn, "tokens": sum(v.cost_tokens for v in verdicts), "cost": sum(v.cost for v in verdicts),
        "requests": sum(v.requests for v in verdicts), "retries": sum(v.retries for v in verdicts),
        "cached": sum(v.cached for v in verdicts), "endpoints": endpoints,
    }  # fmt: skip
    lost = sorted({v.reason or "no reason" for v in verdicts if v.answer is Answer.UNSCORED})
    return Piece(
        name=f"JUDGE turn {turn}", kind=EVALUATOR, inputs={"items": [v.item_id for v in verdicts]},
        outputs=answers, attributes=attributes, failures=[parted(reason) for reason in lost],
        seconds=sum(v.seconds for v in verdicts), turn=turn,
    )  # fmt: skip


def parted(reason: str) -> tuple[str, str]:
    name, _, detail = reason.partition(":")
    return name.strip(), detail.strip()


def _chat(m: Message) -> dict[str, Any]:
    """A message as chat models and MLflow's pages know it."""
    calls = [
        {"type": "function", "function": {"name": c.name, "arguments": json.dumps(c.arguments)}}
        for c in m.calls
    ]
    parts = {
        "role": m.role,
        "content": m.content,
        "thinking": m.thinking,
        "name": m.name,
        "tool_calls": calls,
    }
    return {k: v for k, v in parts.items() if v or k in ("role", "content")}


def asked(e: Episode) -> str:
    return next((m.content for m in e.messages if m.role == "user"), "")


def said(e: Episode) -> str:
    """ACT's last words to the user."""
    return next((m.content for m in reversed(e.messages) if m.role == "assistant" and not m.calls), "")
