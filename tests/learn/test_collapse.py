"""Measures of collapse, on transcripts small enough to count by hand."""

import json
import math

import pytest

from envace.chat.transcript import leaves
from envace.learn.collapse import collapse_metrics, entropy_bits, rehearsed, state_entropy
from envace.types import (
    Episode,
    FailureReason,
    Message,
    Observation,
    Record,
    Source,
    StopReason,
    Task,
    ToolCall,
)
from envace.worlds import registry as worlds


def look(key: str) -> ToolCall:
    return ToolCall(name="look", arguments={"id": key})


def put(key: str) -> ToolCall:
    return ToolCall(name="put", arguments={"id": key})


class Shelf:
    """`look` reports what a place holds, `put` fills an empty one."""

    def __init__(self, places):
        self.places = dict(places)

    @classmethod
    def from_task(cls, task):
        return cls(task.world["places"])

    def call(self, call):
        key = call.arguments.get("id")
        if key not in self.places or (call.name == "put" and self.places[key] != "empty"):
            return Observation(content={"error": "no"}, source=Source.ENVIRONMENT, error=True)
        if call.name == "put":
            self.places[key] = "full"
        return Observation(content={"id": key, "holds": self.places[key]}, source=Source.ENVIRONMENT)

    def state(self):
        return self.places


@pytest.fixture(autouse=True)
def shelf(monkeypatch):
    monkeypatch.setitem(worlds._users, "shelf", Shelf)


def task(world=None, records=()) -> Task:
    return Task(
        id="t",
        prefix=(Message(role="user", content="go"),),
        tools=(),
        checklist=((),),
        source="test",
        world=world,
        records=records,
    )


def episode(*answers: tuple[ToolCall, object], turn: int = 0, **kept) -> Episode:
    messages, observations = [Message(role="user", content="go")], []
    for call, content in answers:
        source = kept.get("source", Source.REHEARSAL)
        observations.append(Observation(content=content, source=source, failure=kept.get("failure")))
        messages.append(Message(role="assistant", content="", calls=(call,), turn=turn))
        messages.append(Message(role="tool", content=json.dumps(content), name=call.name, turn=turn))
    return Episode(
        id="e",
        task_id="t",
        group_id="g",
        seed=0,
        prompt_set="h",
        generations=(),
        messages=tuple(messages),
        observations=tuple(observations),
        reward=1.0,
        stop=StopReason.DONE,
    )


WORLD = {"kind": "shelf", "places": {"a": "empty", "b": "full", "c": "old"}}


def test_entropy_of_frequencies():
    assert entropy_bits([2, 2]) == 1.0 and entropy_bits([5]) == 0.0
    assert entropy_bits([3, 1]) == pytest.approx(0.75 * math.log2(4 / 3) + 0.25 * 2)


def test_leaves_have_paths_and_places_in_a_list_share_one():
    found = list(leaves({"a": {"b": 1}, "l": [{"c": "x"}, {"c": None}], "e": []}))
    assert found == [("a.b", "1"), ("l[].c", '"x"'), ("l[].c", "null"), ("e", "[]")]


def test_values_that_repeat_an_argument_say_nothing_about_the_world():
    told = [(look("a"), {"id": "a", "holds": "full"}), (look("b"), {"id": "b", "holds": "full"})]
    assert state_entropy(told) == 0.0


def test_state_entropy_weighs_each_field_by_its_values():
    pairs = [(look("a"), {"holds": v}) for v in ("x", "x", "y", "y")] + [(put("a"), {"done": True})]
    assert state_entropy(pairs) == pytest.approx(4 / 5 * 1.0 + 1 / 5 * 0.0)
    assert state_entropy([]) is None and state_entropy([(look("a"), {"id": "a"})]) is None


def test_a_policy_that_always_reports_one_state_has_no_entropy_and_the_world_has():
    one = episode(*[(look(k), {"id": k, "holds": "empty"}) for k in "abc"])
    found = collapse_metrics([one], {"t": task(WORLD)})
    assert found["collapse/rehearsed_state_entropy"] == 0.0
    assert found["collapse/true_state_entropy"] == pytest.approx(math.log2(3))
    assert found["collapse/known_share"] == 1.0 and "collapse/grounded_share" not in found


def test_the_world_is_replayed_with_the_episodes_own_calls_and_changes_are_no_lookups():
    said = {"holds": "x"}
    responses = rehearsed(
        episode((look("a"), said), (put("a"), said), (look("a"), said), (put("b"), said)), task(WORLD)
    )
    assert [r.true.get("holds", "error") for r in responses] == ["empty", "full", "full", "error"]
    assert [r.lookup for r in responses] == [True, False, True, False]


def test_refusals_are_counted_beside_the_true_ones():
    two = episode(
        (look("a"), {"error": "no"}), (look("z"), {"id": "z", "holds": "full"}), (look("b"), {"error": "no"})
    )
    found = collapse_metrics([two], {"t": task(WORLD)})
    assert found["collapse/refusal_share"] == pytest.approx(2 / 3)
    assert found["collapse/true_refusal_share"] == pytest.approx(1 / 3)


def test_without_a_world_records_are_the_truth_and_other_calls_stay_unknown():
    records = (
        Record(turn=0, call=look("a"), result={"holds": "full"}),
        Record(turn=1, call=look("a"), result={"holds": "gone"}),
        Record(turn=1, call=look("b"), result={"holds": "old"}),
    )
    said = episode(
        (look("a"), {"holds": "full"}), (look("b"), {"holds": "old"}), (look("z"), {"holds": "new"})
    )
    found = collapse_metrics([said], {"t": task(records=records)})
    assert found["collapse/known_share"] == pytest.approx(2 / 3)
    assert (
        found["collapse/grounded_share"] == 1.0
    )  # only "a" is held to a record: that of "b" is of a later turn
    assert [r.records for r in rehearsed(said, task(records=records))] == [({"holds": "full"},), (), ()]
    later = rehearsed(episode((look("a"), {"holds": "full"}), turn=1), task(records=records))[0]
    assert later.true == {"holds": "gone"} and later.records == ({"holds": "full"}, {"holds": "gone"})


def test_only_rehearsed_responses_that_kept_the_contract_count():
    broken = episode((look("a"), {"error": "x"}), failure=FailureReason.NO_RESULT_TAG)
    true = episode((look("a"), {"holds": "empty"}), source=Source.ENVIRONMENT)
    refused = episode((look("a"), {"error": "x"}), source=Source.VALIDATOR)
    assert collapse_metrics([broken, true, refused], {"t": task(WORLD)}) == {}
