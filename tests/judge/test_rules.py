"""The rule language: one hand-made transcript, each kind judged both ways; broken rules are never a no."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envace.errors import DataError
from envace.judge.rules import KINDS, judge_item
from envace.types import Answer, Item, Message, Observation, Record, Source, Task, ToolCall
from envace.worlds import registry as worlds

KITE = {"user": "kite", "prefix": "#"}
LOOK = {"tool": "get_order", "args": {"order_id": KITE}}
STATUS = {"seen": {**LOOK, "path": "status"}}
ROW = {"order_id": "#kite", "status": "pending", "total": 40, "city": "oslo"}
CANCEL = {"tool": "cancel_order", "args": {"order_id": "#kite"}}


def call(name, **arguments):
    return ToolCall(name=name, arguments=arguments)


def said(role, content="", calls=(), turn=0):
    return Message(role=role, content=content, calls=tuple(calls), turn=turn)


def shown(value, turn=0):
    return Message(role="tool", content=json.dumps(value), turn=turn)


GET, DROP = call("get_order", order_id="#kite"), call("cancel_order", order_id="#kite")
TALK = [
    said("user", "cancel order kite"),
    said("assistant", calls=[GET]),
    shown(ROW),
    said("assistant", calls=[DROP]),
    shown({"order_id": "#kite", "status": "cancelled"}),
    said("assistant", "order #kite is cancelled"),
    said("user", "and order dune?", turn=1),
    said("assistant", calls=[call("get_order", order_id="#dune")], turn=1),
    shown({"error": "order not found"}, turn=1),
    said("assistant", "order #dune is not found, #kite was pending, 40 euros", turn=1),
]
RECORDS = (
    Record(turn=0, call=GET, result=ROW),
    Record(turn=1, call=DROP, result={"order_id": "#kite", "status": "cancelled"}),
)


def judge(rule, turn=0, talk=TALK, records=RECORDS, tools=()):
    item = Item(
        id="C0", question="?", pass_condition="!", focus_on="assistant.tool_calls", weight=1.0, rule=rule
    )
    task = Task(
        id="t", prefix=(), tools=tuple(tools), checklist=((item,), (item,)), records=records, source="test"
    )
    return judge_item(item, task, turn, talk)


def holds(rule, turn=0, **more):
    verdict = judge(rule, turn, **more)
    assert verdict.answer is not Answer.UNSCORED, verdict.reason
    return verdict.answer is Answer.YES


def test_called_needs_exactly_these_arguments_in_this_turn():
    assert holds({"kind": "called", **LOOK})
    assert not holds({"kind": "called", **LOOK}, turn=1)
    assert not holds({"kind": "called", "tool": "get_order", "args": {"order_id": "kite"}})
    assert not holds({"kind": "called", "tool": "get_order", "args": {}})
    assert holds(
        {"kind": "called", "tool": "get_order", "args": {"order_id": {"seen": {**LOOK, "path": "order_id"}}}}
    )


def test_only_calls_counts_calls_and_their_order():
    tools = ["cancel_order", "refund_order"]
    assert holds({"kind": "only_calls", "tools": tools, "calls": [CANCEL], "after": LOOK})
    assert not holds({"kind": "only_calls", "tools": tools, "calls": []})
    assert holds({"kind": "only_calls", "tools": tools, "calls": []}, turn=1)
    assert not holds({"kind": "only_calls", "tools": tools, "calls": [CANCEL, CANCEL]})
    blind = [TALK[0], said("assistant", calls=[GET, DROP]), TALK[2], TALK[4], TALK[5]]
    assert holds({"kind": "only_calls", "tools": tools, "calls": [CANCEL]}, talk=blind)
    assert not holds({"kind": "only_calls", "tools": tools, "calls": [CANCEL], "after": LOOK}, talk=blind)


def test_a_retry_after_an_error_counts_once_a_second_success_does_not():
    rule = {"kind": "only_calls", "tools": ["cancel_order"], "calls": [CANCEL], "after": LOOK}
    again = [*TALK[:4], shown({"error": "no result"}), *TALK[3:6]]
    assert holds(rule, talk=again)
    assert not holds(rule, talk=[*TALK[:5], *TALK[3:6]])


def test_says_reads_whole_words_of_the_closing_reply():
    assert holds({"kind": "says", "all": ["cancelled", KITE], "none": ["sorry"]})
    assert not holds({"kind": "says", "all": ["cancel"]})
    assert not holds({"kind": "says", "none": ["CANCELLED"]})
    assert holds({"kind": "says", "all": [40]}, turn=1) and not holds({"kind": "says", "all": [4]}, turn=1)
    assert not holds({"kind": "says"}, talk=TALK[:5])


def test_says_about_takes_the_part_on_one_object():
    among = {"among": ["#dune", "#kite"]}
    assert holds(
        {"kind": "says", "about": "#dune", **among, "all": ["not found"], "none": ["pending"]}, turn=1
    )
    assert holds({"kind": "says", "about": "#kite", **among, "all": [STATUS], "none": ["not found"]}, turn=1)
    assert not holds({"kind": "says", "about": "#iris", "all": ["pending"]}, turn=1)


def test_says_one_of_refuses_a_reply_that_lists_every_word():
    rule = {"kind": "says", "one_of": {"words": ["pending", "shipped"], "is": STATUS}}
    assert holds(rule, talk=[*TALK[:3], said("assistant", "it is pending")])
    assert not holds(rule, talk=[*TALK[:3], said("assistant", "it is pending or shipped")])
    assert not holds(rule, talk=[TALK[0], said("assistant", "it is pending")])


def test_a_value_never_shown_equals_nothing_and_an_empty_one_is_said_by_nobody():
    missing = {"seen": {**LOOK, "path": "colour.deep"}}
    assert not holds({"kind": "says", "all": [missing]})
    assert not holds({"kind": "called", "tool": "get_order", "args": {"order_id": missing}})
    assert not holds(
        {"kind": "says", "all": [STATUS]}, talk=[*TALK[:2], shown({"status": ""}), said("assistant", "ok")]
    )


def test_if_observed_follows_what_was_shown():
    yes, no = {"kind": "all", "rules": []}, {"kind": "any", "rules": []}
    rule = {
        "kind": "if_observed",
        **LOOK,
        "cases": [
            {"where": {"status": "pending", "total": {"above": 80}}, "then": no},
            {"where": {"status": "pending"}, "then": yes},
        ],
        "else": no,
    }
    assert holds(rule)
    assert not holds(rule, talk=[*TALK[:2], shown({**ROW, "total": 95}), *TALK[3:]])
    assert not holds(rule, talk=[*TALK[:2], shown({**ROW, "status": "shipped"}), *TALK[3:]])
    assert not holds({**rule, "else": yes}, talk=[TALK[0], TALK[5]]), "nothing was observed"
    dune = {"tool": "get_order", "args": {"order_id": "#dune"}}
    assert holds(
        {"kind": "if_observed", **dune, "cases": [{"where": {"error": {"present": True}}, "then": yes}]},
        turn=1,
    )
    assert not holds(
        {"kind": "if_observed", **dune, "cases": [{"where": {"error": {"present": False}}, "then": yes}]},
        turn=1,
    )
    assert holds(
        {"kind": "if_observed", **LOOK, "cases": [{"where": {"status": {"not": "shipped"}}, "then": yes}]}
    )


def test_grounded_holds_responses_to_the_records_so_far():
    assert holds({"kind": "grounded"})
    wrong = [*TALK[:2], shown({**ROW, "status": "shipped"}), *TALK[3:]]
    assert not holds({"kind": "grounded"}, talk=wrong)
    later = (Record(turn=1, call=GET, result={"x": 1}),)
    assert holds({"kind": "grounded"}, records=later), "a record of a later turn binds nothing"
    assert not holds({"kind": "grounded"}, talk=[TALK[0], TALK[5]]), "no response, nothing grounded"


class Counter:
    """Orders that can be looked up and cancelled; rebuilt from look-ups."""

    MALFORMED = ("bad arguments",)

    def __init__(self, orders):
        self.orders = orders

    @classmethod
    def from_task(cls, task):
        return cls({})

    @classmethod
    def from_records(cls, records):
        rows = {r.call.arguments["order_id"]: dict(r.result) for r in records if r.call.name == "get_order"}
        if any(row.get("status") == 5 for row in rows.values()):
            raise DataError("a status must be text")
        return cls(rows)

    def state(self):
        return self.orders

    def call(self, call):
        row = self.orders.get(call.arguments.get("order_id"))
        if set(call.arguments) != {"order_id"}:
            content = {"error": "bad arguments"}
        elif row is None:
            content = {"error": "order not found"}
        elif call.name == "cancel_order":
            row["status"] = "cancelled"
            content = {"order_id": row["order_id"], "status": "cancelled"}
        else:
            content = dict(row)
        return Observation(content=content, source=Source.ENVIRONMENT, error="error" in content)


@pytest.fixture
def counter(monkeypatch):
    monkeypatch.setattr(worlds, "_users", {"counter": Counter})
    return {"kind": "grounded", "world": "counter"}


def test_grounded_in_a_world_follows_its_rules_where_no_record_is(counter):
    assert holds(counter) and holds(counter, turn=1)
    assert not holds(counter, turn=1, talk=[*TALK[:8], shown({"error": "nope"}, turn=1), TALK[9]])
    assert not holds(counter, talk=[TALK[0], TALK[5]]), "no response, nothing grounded"


AGAIN = [*TALK[:5], said("assistant", calls=[GET])]  # the same look-up, after the order was cancelled
STALE = [*AGAIN, shown(ROW), TALK[5]]
FRESH = [*AGAIN, shown({**ROW, "status": "cancelled"}), TALK[5]]


def test_a_change_makes_the_record_stale_where_a_world_decides(counter):
    records = {**counter, "part": "records"}
    assert holds(counter, talk=FRESH) and holds(records, talk=FRESH)
    assert not holds(counter, talk=STALE) and not holds(records, talk=STALE)
    assert holds({"kind": "grounded"}, talk=STALE) and not holds({"kind": "grounded"}, talk=FRESH)


def test_a_part_judges_the_calls_that_match_a_record_or_those_that_match_none(counter):
    records, rules = {**counter, "part": "records"}, {**counter, "part": "rules"}
    wrong_record = [*TALK[:2], shown({**ROW, "total": 9}), *TALK[3:]]
    assert not holds(records, talk=wrong_record) and holds(rules, talk=wrong_record)
    wrong_rule = [*TALK[:4], shown({"error": "closed today"}), TALK[5]]  # its record is of a later turn
    assert holds(records, talk=wrong_rule) and not holds(rules, talk=wrong_rule)
    assert holds(records, turn=1) and holds(rules, turn=1), "no record of #dune: nothing to violate"
    assert holds(rules, talk=[*TALK[:3], TALK[5]]), "only a recorded call: nothing to violate"
    for part in (records, rules):
        assert not holds(part, talk=[TALK[0], TALK[5]]), "no response at all"


def test_a_call_the_schema_forbids_is_refused_in_any_words_and_changes_nothing(counter):
    body = {"type": "object", "properties": {"order_id": {"type": "string", "maxLength": 5}}}
    tools = [{"type": "function", "function": {"name": "get_order", "parameters": body}}]
    refused = [*TALK[:4], shown({"error": "no tool cancel_order"})]  # not on offer
    talk = [*refused, said("assistant", calls=[GET]), shown(ROW), TALK[5]]
    assert holds(counter, talk=talk, tools=tools)
    assert not holds(counter, talk=FRESH, tools=tools), "a call that is not on offer was answered"


def test_a_validators_own_words_for_a_malformed_call_are_no_fabrication(counter):
    talk = [
        TALK[0],
        said("assistant", calls=[call("get_order", id="#kite")]),
        shown({"error": "arguments: id is not allowed"}),
    ]
    assert holds(counter, talk=talk)
    assert not holds(counter, talk=[*talk[:2], shown({"ok": True})])


def test_a_world_that_cannot_be_rebuilt_leaves_grounding_unscored(counter, monkeypatch):
    bad = (Record(turn=0, call=GET, result={"order_id": "#kite", "status": 5}),)
    assert "a status must be text" in judge(counter, records=bad).reason
    monkeypatch.delattr(Counter, "from_records")
    verdict = judge(counter)
    assert verdict.answer is Answer.UNSCORED and "has no from_records" in verdict.reason


def test_responses_that_are_not_json_or_too_few_do_not_raise():
    talk = [
        TALK[0],
        said("assistant", calls=[GET, DROP]),
        said("tool", "{broken"),
        said("assistant", "ok"),
        said("tool", "{}"),
    ]
    assert not holds({"kind": "grounded"}, talk=talk)
    assert not holds({"kind": "says", "all": [STATUS]}, talk=talk)


@pytest.mark.parametrize(
    "rule",
    [
        {},
        {"kind": "eval", "code": "1"},
        {"kind": "called", "tool": "get_order"},
        {"kind": "called", "tool": "get_order", "args": {"order_id": {"see": 1}}},
        {"kind": "called", "tool": "get_order", "args": {"order_id": ["#kite"]}},
        {"kind": "says", "all": "kite"},
        {"kind": "says", "al": ["kite"]},
        {"kind": "any", "rules": [{"kind": "called", **LOOK}, {"kind": "nonsense"}]},
        {"kind": "if_observed", **LOOK, "cases": [{"where": {"a": {"below": 3}}, "then": {"kind": "says"}}]},
        {"kind": "if_observed", **LOOK, "cases": [], "else": {"kind": "nonsense"}},
        {"kind": "grounded", "world": "mars"},
        {"kind": "grounded", "world": ["desk"]},
        {"kind": "grounded", "world": "desk", "part": "all"},
        {"kind": "grounded", "part": "records"},
        {"kind": "called", "tool": "get_order", "args": {"order_id": {"user": "zebra"}}},
    ],
)
def test_a_broken_rule_is_unscored_with_a_reason(rule):
    verdict = judge(rule)
    assert verdict.answer is Answer.UNSCORED and verdict.reason.startswith("rule_invalid: ")


def test_a_missing_rule_and_a_bottomless_one_are_unscored():
    assert judge(None).reason == "rule_missing"
    deep = {"kind": "says"}
    for _ in range(5000):
        deep = {"kind": "all", "rules": [deep]}
    assert "deep" in judge(deep).reason


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=4),
    lambda v: (
        st.lists(v, max_size=3)
        | st.dictionaries(
            st.sampled_from("kind tool args rules cases where then seen user path all".split()), v, max_size=4
        )
    ),
    max_leaves=8,
)


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(sorted(KINDS)), json_values, st.lists(json_values, max_size=3))
def test_no_rule_and_no_response_raises(kind, part, responses):
    rule = {**part, "kind": kind} if isinstance(part, dict) else part
    talk = [TALK[0], said("assistant", calls=[GET] * len(responses)), *map(shown, responses), TALK[5]]
    for candidate in (rule, {"kind": "says", "all": [STATUS], "one_of": {"words": ["a"], "is": STATUS}}):
        assert judge(candidate, talk=talk).answer in Answer
