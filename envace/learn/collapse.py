"""Whether REHEARSE still tells worlds apart: what it reported in a step beside what was true.

Flows in: the step's episodes and their tasks. Flows out: `collapse/...` metrics.
Invariant: measured, never rewarded: what is known of the true world reaches no prompt, verdict or reward.

A policy paid for its own rehearsals can make them easy: report one convenient state and act for that one.
Then rehearsed success rises, true success does not, and the responses lose their variety. Over all rehearsed
responses of a step that kept the response contract (broken ones are counted under failure/...):

rehearsed_state_entropy  bits a reported field carries (`state_entropy`), over the look-ups
true_state_entropy       the same over the true answers to the same calls
refusal_share            share that report an error
true_refusal_share       share of the known true answers that are an error
grounded_share           of responses to calls that match a record (of this turn or an earlier one): share
                         that equal such a record
known_share              share for which the true answer is known

The true answer is that of the task's executable world, in which the calls of the episode are replayed in
order; without such a world, the record of the same call. A look-up is a call whose true answer is known, is
no refusal and leaves the world as it was. A metric over nothing is absent.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from envace.chat.contract import is_error
from envace.chat.text import canonical
from envace.chat.transcript import Replies, answered, leaves, matches
from envace.types import JSON, Episode, Source, Task, ToolCall
from envace.worlds import registry as worlds

UNKNOWN = object()


@dataclass(frozen=True, slots=True, kw_only=True)
class Response:
    """One rehearsed response beside the truth."""

    call: ToolCall
    said: JSON
    true: JSON
    """UNKNOWN when neither a world nor a record answers the call."""
    lookup: bool
    records: tuple[JSON, ...]
    """Results of matching records that the turn may be held to."""


def collapse_metrics(episodes: Iterable[Episode], tasks: Mapping[str, Task]) -> dict[str, float]:
    """Metrics of a step, from episodes and the tasks they were played on (by id)."""
    found = [r for e in episodes for r in rehearsed(e, tasks[e.task_id])]
    looked, known = [r for r in found if r.lookup], [r for r in found if r.true is not UNKNOWN]
    shares = {
        "refusal_share": [is_error(r.said) for r in found],
        "true_refusal_share": [is_error(r.true) for r in known],
        "grounded_share": [
            any(canonical(r.said) == canonical(x) for x in r.records) for r in found if r.records
        ],
        "known_share": [r.true is not UNKNOWN for r in found],
    }
    values = {name: float(np.mean(holds)) for name, holds in shares.items() if holds}
    entropies = {
        "rehearsed_state_entropy": state_entropy((r.call, r.said) for r in looked if not is_error(r.said)),
        "true_state_entropy": state_entropy((r.call, r.true) for r in looked),
    }
    values |= {name: bits for name, bits in entropies.items() if bits is not None}
    return {f"collapse/{name}": value for name, value in values.items()}


def state_entropy(responses: Iterable[tuple[ToolCall, JSON]]) -> float | None:
    """Bits that a reported value carries once it is known which field it is: sum over fields of the field's
    share of all values times the field's entropy. None without any value.

    A field is a tool's name and a path in its responses. Values that repeat an argument of the call are left
    out: they say nothing about the world.
    """
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for call, content in responses:
        told = {canonical(value) for value in call.named.values()}
        for path, value in leaves(content):
            if value not in told:
                counts[f"{call.name} {path}"][value] += 1
    total = sum(values.total() for values in counts.values())
    if not total:
        return None
    return sum(values.total() / total * entropy_bits(values.values()) for values in counts.values())


def entropy_bits(counts: Iterable[int]) -> float:
    """Shannon entropy of observed frequencies: [3, 1] is 0.811."""
    count = np.array([c for c in counts if c], np.float64)
    share = count / count.sum()
    return float(-(share * np.log2(share)).sum()) + 0.0  # -0.0 of a single value becomes 0.0


def rehearsed(episode: Episode, task: Task) -> list[Response]:
    """The rehearsed responses of an episode that kept the contract, in order. What the validator answered
    reaches no world. Without a world the recorded reply of the call is the truth."""
    world, replies = worlds.make_world(task) if worlds.kind_of(task) else None, Replies(task.records)
    found = []
    for e, observation in answered(episode.messages, episode.observations):
        if observation.source is Source.VALIDATOR:
            continue
        if world is not None:
            before = canonical(world.state())
            true = world.call(e.call).content
            still = canonical(world.state()) == before
        else:
            record = replies.next(e.call, e.turn)
            true, still = (UNKNOWN, False) if record is None else (record.result, True)
        if observation.source is Source.REHEARSAL and observation.failure is None:
            past = (r.result for r in task.records if r.turn <= e.turn and matches(r, e.call))
            found.append(
                Response(
                    call=e.call,
                    said=observation.content,
                    true=true,
                    lookup=still and not is_error(true),
                    records=tuple(past),
                )
            )
    return found
