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
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from envace.chat.contract import is_error
from envace.chat.text import canonical
from envace.chat.transcript import answered, latest_record, leaves, matches
from envace.types import JSON, Episode, Source, Task, ToolCall
from envace.worlds import registry as worlds

Pair = tuple[ToolCall, JSON]  # a call and the content of its response
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
    recorded = [r for r in found if r.records]
    values = {
        "rehearsed_state_entropy": state_entropy([(r.call, r.said) for r in looked if not is_error(r.said)]),
        "true_state_entropy": state_entropy([(r.call, r.true) for r in looked]),
        "refusal_share": _share(is_error(r.said) for r in found),
        "true_refusal_share": _share(is_error(r.true) for r in known),
        "grounded_share": _share(any(_equal(r.said, x) for x in r.records) for r in recorded),
        "known_share": _share(r.true is not UNKNOWN for r in found),
    }
    return {f"collapse/{name}": value for name, value in values.items() if value is not None}


# --- entropy --------------------------------------------------------------------------------------


def state_entropy(pairs: Iterable[Pair]) -> float | None:
    """Bits that a reported value carries once it is known which field it is: sum over fields of the field's
    share of all values times the field's entropy. None without any value.

    A field is a tool's name and a path in its responses. Values that repeat an argument of the call are left
    out: they say nothing about the world.
    """
    counts = field_counts(pairs)
    total = sum(sum(values.values()) for values in counts.values())
    if not total:
        return None
    return sum(sum(values.values()) / total * entropy_bits(values.values()) for values in counts.values())


def field_counts(pairs: Iterable[Pair]) -> dict[str, Counter[str]]:
    """`{"get_order status": Counter({'"pending"': 3})}`: how often each value was reported for each field."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for call, content in pairs:
        told = {canonical(value) for value in call.named.values()}
        for path, value in leaves(content):
            if value not in told:
                counts[f"{call.name} {path}"][value] += 1
    return dict(counts)


def entropy_bits(counts: Iterable[int]) -> float:
    """Shannon entropy of observed frequencies: [3, 1] is 0.811."""
    count = np.array([c for c in counts if c], np.float64)
    share = count / count.sum()
    return float(-(share * np.log2(share)).sum()) + 0.0  # -0.0 of a single value becomes 0.0


# --- what was said and what is true ---------------------------------------------------------------


def rehearsed(episode: Episode, task: Task) -> list[Response]:
    """The rehearsed responses of an episode that kept the contract, in order."""
    pairs = answered(episode.messages, episode.observations)
    shown = [(e, o) for e, o in pairs if o.source is not Source.VALIDATOR]  # the others reach no world
    if worlds.kind_of(task):
        truths = _replayed(task, [e.call for e, _ in shown])
    else:
        truths = [_recorded(task, e.call, e.turn) for e, _ in shown]
    return [
        Response(
            call=e.call,
            said=observation.content,
            true=true,
            lookup=still and not is_error(true),
            records=tuple(r.result for r in task.records if r.turn <= e.turn and matches(r, e.call)),
        )
        for (e, observation), (true, still) in zip(shown, truths)
        if observation.source is Source.REHEARSAL and observation.failure is None
    ]


def _replayed(task: Task, calls: Sequence[ToolCall]) -> list[tuple[JSON, bool]]:
    """(true answer, whether the state stayed as it was) of each call in turn."""
    world = worlds.make_world(task)
    states, answers = [canonical(world.state())], []
    for call in calls:
        answers.append(world.call(call).content)
        states.append(canonical(world.state()))
    return [(answer, a == b) for answer, a, b in zip(answers, states, states[1:])]


def _recorded(task: Task, call: ToolCall, turn: int) -> tuple[JSON, bool]:
    """The latest record of the call up to this turn, else its first one."""
    record = latest_record(task.records, call, turn)
    return (UNKNOWN, False) if record is None else (record.result, True)


def _equal(a: JSON, b: JSON) -> bool:
    return canonical(a) == canonical(b)


def _share(holds: Iterable[bool]) -> float | None:
    values = list(holds)
    return float(np.mean(values)) if values else None
