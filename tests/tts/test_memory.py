"""What may be remembered: names and codes, never an imagined value; malformed JSON is refused; the cap
holds."""

import pytest

from envace.chat.renderer import ByteRenderer
from envace.tts.memory import (
    compose,
    condensation_messages,
    digest,
    evaluation_messages,
    fallback_feedback,
    fallback_notes,
    parse_feedback,
    parse_notes,
)
from envace.types import (
    Attempt,
    Episode,
    FailureReason,
    Message,
    Observation,
    Source,
    StopReason,
    Task,
    ToolCall,
)

NAMES = ("get_order", "cancel_order")
TOOLS = tuple(
    {
        "type": "function",
        "function": {"name": n, "parameters": {"type": "object", "properties": {"order_id": {}}}},
    }
    for n in NAMES
)
TASK = Task(
    id="t",
    prefix=(Message(role="user", content="cancel <kite>"),),
    tools=TOOLS,
    checklist=((),),
    source="desk",
)


def episode(*outcomes, reply="done 777"):
    """An episode that makes get_order, cancel_order, ... with the outcomes given."""
    messages, observations = list(TASK.prefix), []
    for k, outcome in enumerate(outcomes):
        call = ToolCall(name=NAMES[k % 2], arguments={"order_id": "#secret"})
        observation = {
            "ok": Observation(content={"total": 4242}, source=Source.REHEARSAL),
            "refused": Observation(content={"error": "eve says no"}, source=Source.REHEARSAL, error=True),
            "broken": Observation(
                content={"error": "x"},
                source=Source.REHEARSAL,
                error=True,
                failure=FailureReason.NO_RESULT_TAG,
            ),
        }[outcome]
        messages += [Message(role="assistant", content="", calls=(call,)), Message(role="tool", content="{}")]
        observations.append(observation)
    messages.append(Message(role="assistant", content=reply))
    return Episode(
        id="e",
        task_id="t",
        group_id="g",
        seed=0,
        prompt_set="",
        generations=(),
        messages=tuple(messages),
        observations=tuple(observations),
        reward=None,
        stop=StopReason.DONE,
    )


def attempt(index, *outcomes, next=("get_order",)):
    feedback = {"success": 0.5, "risky": [], "next": list(next)}
    return Attempt(index=index, episode=episode(*outcomes), feedback=feedback, feedback_ok=True, tokens=1)


def test_a_digest_keeps_names_and_codes_and_drops_values():
    steps = digest(episode("ok", "refused", "broken"))
    assert [tuple(s) for s in steps] == [
        ("get_order", "ok"),
        ("cancel_order", "refused"),
        ("get_order", "no_result_tag"),
    ]


def test_the_memory_holds_no_imagined_value():
    attempts = [attempt(0, "ok", "refused"), attempt(1, "ok", "ok")]
    memory = compose(
        {"plan": list(NAMES), "avoid": ["cancel_order"]}, attempts, TASK, ByteRenderer(), 500, False
    )
    assert memory.text == (
        "2 imagined tries\nplan: get_order(order_id) > cancel_order(order_id)\n"
        "avoid: cancel_order\nfailed: cancel_order refused"
    )
    assert memory.n_attempts == 2 and not memory.fallback and memory.tokens == len(memory.text)
    for value in ("secret", "4242", "eve", "777"):
        assert value not in memory.text
        assert not any(value in m.content for m in condensation_messages(TASK, attempts))


@pytest.mark.parametrize("cap", range(0, 130, 7))
def test_the_cap_holds_whatever_it_is(cap):
    attempts = [attempt(0, "ok", "refused"), attempt(1, "ok")]
    notes = {"plan": list(NAMES), "avoid": ["cancel_order"]}
    memory = compose(notes, attempts, TASK, ByteRenderer(), cap, False)
    assert memory.tokens == len(memory.text.encode()) <= cap
    whole = compose(notes, attempts, TASK, ByteRenderer(), 999, False).text
    assert (
        memory.text == ""
        or whole.startswith("2 imagined tries")
        and set(memory.text.split("\n")[:1]) <= set(whole.split("\n"))
    )


def test_the_least_important_line_goes_first():
    attempts = [attempt(0, "ok", "refused")]
    whole = compose({"plan": list(NAMES), "avoid": ["get_order"]}, attempts, TASK, ByteRenderer(), 999, False)
    less = compose(
        {"plan": list(NAMES), "avoid": ["get_order"]}, attempts, TASK, ByteRenderer(), whole.tokens - 1, False
    )
    assert "failed:" not in less.text and "avoid:" in less.text and "plan:" in less.text


def test_good_feedback_is_read_strictly():
    assert parse_feedback('{"success": 1, "risky": [], "next": ["get_order"]}', NAMES) == {
        "success": 1.0,
        "risky": [],
        "next": ["get_order"],
    }


@pytest.mark.parametrize(
    "text",
    [
        "",
        "fine",
        "[]",
        '{"success": 1}',
        '{"success": NaN, "risky": [], "next": []}',
        '{"success": 2, "risky": [], "next": []}',
        '{"success": true, "risky": [], "next": []}',
        '{"success": 1, "risky": [], "next": ["rm -rf"]}',
        '{"success": 1, "risky": "get_order", "next": []}',
        '{"success": 1, "success": 0, "risky": [], "next": []}',
        '{"success": 1, "risky": [[]], "next": []}',
        '{"success": 1, "risky": [], "next": [], "note": "the total is 4242"}',
        "[" * 100000,
        '{"success": 1, "risky": [], "next": [' + ",".join(['"get_order"'] * 13) + "]}",
    ],
)
def test_bad_feedback_is_refused_without_quoting_it(text):
    with pytest.raises(ValueError) as e:
        parse_feedback(text, NAMES)
    assert "rm -rf" not in str(e.value) and "4242" not in str(e.value)


def test_notes_are_read_strictly():
    assert parse_notes('{"plan": ["get_order"], "avoid": []}', NAMES) == {"plan": ["get_order"], "avoid": []}
    with pytest.raises(ValueError, match="plan"):
        parse_notes('{"plan": ["#kite"], "avoid": []}', NAMES)


def test_fallbacks_are_digests():
    assert fallback_feedback(episode("ok", "refused"), NAMES) == {
        "success": None,
        "risky": ["cancel_order"],
        "next": ["get_order"],
    }
    worse, better = attempt(0, "ok", "refused"), attempt(1, "ok", "ok", next=NAMES)
    assert fallback_notes([worse, better]) == {"plan": list(NAMES), "avoid": []}


def test_prompts_cannot_forge_a_tag_and_drop_the_oldest_answers_first():
    whole = evaluation_messages(TASK, episode("ok", "ok", reply="<tool_call>"))[1].content
    assert "<" not in whole and whole.count("4242") == 2
    cut = evaluation_messages(TASK, episode("ok", "ok"), dropped=1)[1].content.split("\n")
    assert cut[2].endswith("-> (left out)") and cut[3].endswith('-> {"total": 4242}')
