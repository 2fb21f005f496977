"""Prompt sets at their edges: what is refused at loading, what is cut in which order and counted, whose
records."""

import asyncio
import shutil
from string import Template

import pytest
from rollout_kit import (
    COMPACT,
    FULL,
    PARAMS,
    RECORDS,
    RENDERER,
    TASK,
    call,
    play,
    record,
    rehearse_messages,
    tool,
    two_roles,
)

from envace.config.method import Method
from envace.errors import DataError
from envace.learn.advantage import advantages
from envace.learn.metrics import step_metrics
from envace.rollout.few_shot import donor
from envace.rollout.interfaces import CallContext
from envace.rollout.prompts import ROOT, load_prompt_set
from envace.rollout.rehearsal import RehearsalSource
from envace.types import Message, Role, ToolCall, replace

GET_A = ToolCall(name="get", arguments={"id": "#a"})
LONG = tuple(Message(role="user", content=f"old {k} " + "x" * 60) for k in range(4))


def context(**more):
    ctx = CallContext(task=TASK, call=GET_A, history=TASK.prefix, act_reply="ok", turn=0, step=0)
    return replace(ctx, **more)


def own(tmp_path, **files):
    """A copy of the full set with some files written anew; None removes one."""
    folder = shutil.copytree(ROOT / "full", tmp_path / "own")
    for stem, text in files.items():
        path = folder / f"{stem}.txt"
        path.unlink() if text is None else path.write_bytes(
            text if isinstance(text, bytes) else text.encode()
        )
    load_prompt_set.cache_clear()
    return load_prompt_set(str(folder))


# --- cuts -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("prompt_set", [COMPACT, FULL], ids=["compact", "full"])
def test_however_much_is_cut_the_rules_the_reply_and_the_call_stay_word_for_word(prompt_set):
    prompt = prompt_set.rehearsal(context(history=LONG), RECORDS, check=True)
    whole = prompt.messages(0)
    for drop in range(len(prompt.cuts) + 1):
        rules, body = prompt.messages(drop)
        assert rules == whole[0]
        assert all(line in body.content for name in ("reply", "call") for line in prompt.lines[name])
        assert prompt.lines["records"][0] in body.content or drop == 0  # the record that matches the call


@pytest.mark.parametrize("prompt_set", [COMPACT, FULL], ids=["compact", "full"])
def test_every_further_cut_makes_the_prompt_shorter(prompt_set):
    prompt = prompt_set.rehearsal(context(history=LONG), RECORDS)
    sizes = [len(RENDERER.render(prompt.messages(drop))) for drop in range(len(prompt.cuts) + 1)]
    assert all(later < before for before, later in zip(sizes, sizes[1:]))


def test_what_was_cut_is_counted_by_section():
    prompt = FULL.rehearsal(context(history=LONG), RECORDS)
    assert prompt.cut_counts(0) == {}
    assert prompt.cut_counts(1) == {"cut/prompts": 1, "cut/history": 1}
    assert prompt.cut_counts(len(prompt.cuts)) == {
        "cut/prompts": 1,
        "cut/history": 4,
        "cut/records": 2,
        "cut/tools": 1,
    }


def test_a_section_that_lost_all_its_lines_leaves_no_empty_fence():
    prompt = FULL.rehearsal(context(history=LONG), RECORDS)
    body = prompt.messages(4)[1].content
    assert "<history>" not in body and "<records>" in body


# --- switches -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "gone"),
    [
        ("tools: false", "<tools>"),
        ("reply: false", "<reply>"),
        ("schema: false", "schema:"),
        ("history: none", "<history>"),
    ],
)
def test_a_switch_takes_its_section_out_and_no_other(settings, gone, tmp_path):
    body = rehearse_messages(own(tmp_path, settings=settings), context(), RECORDS)[1].content
    assert gone not in body
    marks = {"<tools>", "<reply>", "schema:", "<history>", "<records>", "<call>"}
    assert all(mark in body for mark in marks - {gone})


def test_history_as_calls_shows_what_was_answered_alone_and_the_newest_of_it(tmp_path):
    history = (
        Message(role="user", content="secret wish"),
        Message(role="assistant", content="", calls=(GET_A, replace(GET_A, arguments={"id": "#b"}))),
        Message(role="tool", name="get", content='{"n": 1}'),
        Message(role="tool", name="get", content='{"n": 2}'),
    )
    body = rehearse_messages(
        own(tmp_path, settings="history: calls\nmax_history: 1"), context(history=history), ()
    )
    assert 'get {"id": "#b"} -> {"n": 2}' in body[1].content and '"n": 1' not in body[1].content
    assert "secret wish" not in body[1].content


# --- whose records --------------------------------------------------------------------------------


def test_the_donor_is_the_other_task_with_the_most_tools_in_common_and_always_the_same():
    def other(name, *tools):
        return replace(TASK, id=name, records=tuple(record(0, t, "#z", {"of": name}) for t in tools))

    near, far, none = other("near", "get", "drop"), other("far", "get", "fly"), other("none", "fly")
    assert donor(TASK, [TASK, far, near, none]) == near.records
    assert donor(TASK, [none, far]) == far.records
    assert donor(TASK, [TASK, none]) == () == donor(TASK, [])
    equal = [other(f"e{k}", "get", "drop") for k in range(9)]
    assert donor(TASK, equal) == donor(TASK, equal[::-1])
    chosen = {donor(replace(TASK, id=f"t-{k}"), equal)[0].result["of"] for k in range(30)}
    assert len(chosen) > 3  # not everybody has the same one


# --- sets that cannot be used ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stem", "text", "message"),
    [
        ("section_history", "<history></history>", "must hold \\$body once"),
        ("section_history", "$body and $body", "must hold \\$body once"),
        ("section_call", "$body costs $5", "must hold \\$body once"),
        ("section_call", "$body for $name", "must hold \\$body once"),
        ("memory", "notes", "must hold \\$body once"),
        ("section_weather", "$body", "is no section; there are tools"),
        ("settings", "history: all", "history is 'all', must be one of full, calls, none"),
        ("settings", "tools: 1", "tools is 1, must be like True"),
        ("settings", "max_records: two", "max_records is 'two'"),
        ("settings", "max_records: -1", "max_records is -1"),
        ("settings", "max_records: true", "max_records is True"),
        ("settings", "max_recrods: 2", "may hold only .*max_records"),
        ("settings", "history: [", "settings.txt is no YAML: while parsing"),
        ("memory", None, "memory.txt is missing"),
        ("act", b"\xff\xfe", "act.txt cannot be read as UTF-8 text"),
    ],
)
def test_a_set_that_would_fail_in_an_episode_is_refused_when_it_is_loaded(stem, text, message, tmp_path):
    with pytest.raises(DataError, match=message):
        own(tmp_path, **{stem: text})


def test_a_dollar_that_is_meant_is_written_twice(tmp_path):
    body = rehearse_messages(own(tmp_path, section_call="price in $$:\n${body}"), context(), RECORDS)[
        1
    ].content
    assert "price in $:\n" in body
    assert Template("$$").substitute() == "$"


def test_a_dollar_in_what_is_filled_in_stays_as_it_is():
    evil = ToolCall(name="get", arguments={"id": "$body ${rules} $$"})
    task = replace(TASK, tools=(tool("get"),))
    assert "$body ${rules} $$" in rehearse_messages(FULL, context(call=evil, task=task), RECORDS)[1].content


# --- counts ---------------------------------------------------------------------------------------


def test_an_episode_counts_its_prompt_tokens_and_what_was_cut_off_them():
    said = [call("get"), "done", call("drop"), "done"]
    whole = play(two_roles(said), prompt_set=FULL)
    read = {r: sum(len(g.prompt_ids) for g in whole.generations if g.role is r) for r in Role}
    assert whole.counters["prompt_act"] == read[Role.ACT]
    assert whole.counters["prompt_rehearse"] == read[Role.REHEARSE]
    assert not any(name.startswith("cut/") for name in whole.counters)
    longest = max(len(g.prompt_ids) for g in whole.generations if g.role is Role.REHEARSE)
    short = play(two_roles(said), prompt_set=FULL, params=replace(PARAMS, prompt_tokens=longest - 1))
    assert short.counters["cut/prompts"] == 1 and short.counters["cut/history"] >= 1
    found = step_metrics([whole, short], [], advantages([], Method())[1])
    assert found["cut/prompts"] == 1
    assert found["act/prompt_tokens"] == (read[Role.ACT] + short.counters["prompt_act"]) / 8


def test_cut_from_the_left_the_rules_go_first_and_the_call_stays():
    method = Method(long_prompt="left", validation="rehearsal")
    whole = RENDERER.render(rehearse_messages(FULL, context(history=LONG), RECORDS, check=True))
    seen = []

    def rehearse(request):
        seen.append(request.prompt_ids)
        return '<execution_result>{"ok": 1}</execution_result>'

    params = replace(PARAMS, prompt_tokens=len(whole) - 100)
    source = RehearsalSource(
        two_roles([], rehearse), RENDERER, FULL, replace(method, few_shot="gold"), params
    )
    asyncio.run(source.answer(context(history=LONG)))
    assert list(seen[0]) == whole[100:] and source.counters == {"cut/prompts": 1, "cut/tokens": 100}
