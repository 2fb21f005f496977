"""What a trace holds: episodes in a real MLflow store, read back through MLflow's own functions."""

import json

import pytest
from trace_kit import EPISODE, MESSAGES, OBSERVATIONS, named, read, unscored, write

from envace.io.redact import MARK, Redactor
from envace.track import trace_limits, trace_spans
from envace.track.store import Store
from envace.types import Message, Role, Source, StopReason, ToolCall, replace

CANARY = 'canary-<zqzq>"never\\seen'


def test_an_episode_is_one_tree_in_its_own_order_with_its_words_and_counts(log):
    assert write(log, [EPISODE], tags={"envace.stage": "train@envace-1"}).written == 1
    [trace] = read(log)
    root, *children = trace.data.spans
    assert [s.name for s in children] == [
        "ACT",
        "REHEARSE get_order",
        "validator send",
        "ACT",
        "JUDGE turn 0",
        "ACT",
        "validator",
        "ACT",
        "JUDGE turn 1",
    ]
    assert root.parent_id is None and {s.parent_id for s in children} == {root.span_id}
    assert [s.span_type for s in (root, *children[:2], children[4])] == [
        "AGENT",
        "CHAT_MODEL",
        "TOOL",
        "EVALUATOR",
    ]
    act, tool, refused = children[:3]
    assert [m["content"] for m in act.inputs["messages"]] == [m.content for m in MESSAGES[:2]]
    assert act.outputs["thinking"] == "I look."
    assert act.outputs["tool_calls"][0]["function"] == {"name": "get_order", "arguments": '{"id": "#kite"}'}
    assert (tool.inputs, tool.outputs) == ({"id": "#kite"}, {"state": "sent"})
    assert (act.attributes["tokens_out"], act.attributes["tokens_in"], tool.attributes["tokens_out"]) == (
        30,
        10,
        10,
    )
    assert refused.attributes["source"] == "validator" and "tokens_out" not in refused.attributes
    assert [m["content"] for m in children[3].inputs["messages"]] == [
        '{"state": "sent"}',
        '{"error": "no such tool"}',
    ]
    judge = children[4]
    assert judge.outputs == {"C0": {"answer": "yes"}, "C1": {"answer": "no"}}
    assert (judge.attributes["tokens"], judge.attributes["retries"], judge.attributes["endpoints"]) == (
        90,
        1,
        ["judge:1"],
    )


def test_the_trace_stands_under_its_run_with_session_tags_and_token_counts(log):
    write(log, [EPISODE, replace(EPISODE, id="s3p1-1"), replace(EPISODE, id="s3p2-0", group_id="s3p2")])
    found = read(log)
    assert len(found) == 3
    sessions = sorted(t.info.trace_metadata["mlflow.trace.session"] for t in found)
    assert sessions == [f"{log.run_id[:8]}/s3p1"] * 2 + [f"{log.run_id[:8]}/s3p2"]
    tags = next(t for t in found if t.info.tags["envace.episode"] == "s3p1-0").info.tags
    assert (
        tags.items()
        >= {
            "envace.task": "desk-train-7",
            "envace.group": "s3p1",
            "envace.policy": "start",
            "envace.stop": "done",
            "envace.outcome": "finished",
            "envace.reward": "0.75",
            "mlflow.traceName": "desk-train-7",
        }.items()
    )
    info = found[0].info
    assert info.trace_metadata["mlflow.sourceRun"] == log.run_id and info.state.value == "OK"
    assert info.token_usage == {"input_tokens": 50, "output_tokens": 100, "total_tokens": 150}
    assert (info.request_preview, info.response_preview) == ("Where is #kite?", "I could not.")


def test_reward_and_verdicts_are_feedback_and_an_unscored_one_is_an_error_not_a_no(log):
    write(log, [EPISODE, unscored(id="lost")])
    by_id = {t.info.tags["envace.episode"]: t for t in read(log)}
    good = {a.name: a for a in by_id["s3p1-0"].info.assessments}
    assert {n: a.value for n, a in good.items()} == {
        "reward": 0.75,
        "turn 0 C0": True,
        "turn 0 C1": False,
        "turn 1 C0": True,
    }
    assert (good["turn 0 C0"].source.source_type, good["turn 0 C0"].source.source_id) == (
        "LLM_JUDGE",
        "judge:1",
    )
    assert good["turn 0 C0"].span_id == named(by_id["s3p1-0"])["JUDGE turn 0"].span_id
    bad = {a.name: a for a in by_id["lost"].info.assessments}
    assert (bad["turn 1 C0"].value, bad["turn 1 C0"].error.error_code) == (None, "judge_timeout")
    assert bad["reward"].value is None and "judge_timeout" in bad["reward"].error.error_message


def test_failures_are_the_status_of_their_span_and_events_on_it(log):
    write(log, [EPISODE, unscored(id="lost")])
    by_id = {t.info.tags["envace.episode"]: t for t in read(log)}
    root, *children = by_id["s3p1-0"].data.spans
    failed = [
        (s.name, s.status.description, [e.name for e in s.events])
        for s in children
        if s.status.status_code == "ERROR"
    ]
    assert failed == [
        ("validator send", "unknown_tool", ["unknown_tool"]),
        ("ACT", "bad_json", ["bad_json"]),
        ("validator", "bad_json", ["bad_json"]),
    ]
    assert children[5].attributes["written"] == "words of act 2" and root.status.status_code == "OK"
    lost = by_id["lost"]
    assert lost.info.state.value == "ERROR"
    assert [e.name for e in lost.data.spans[0].events] == ["judge_failed", "unscored"]
    assert named(lost)["JUDGE turn 1"].status.description == "judge_timeout: 5 s"


def test_recorded_times_are_kept_and_the_others_share_the_rest(log):
    write(log, [EPISODE])
    root, *children = read(log)[0].data.spans
    length = {s.name: (s.end_time_ns - s.start_time_ns) / 1e9 for s in children}
    assert (root.end_time_ns - root.start_time_ns) / 1e9 == pytest.approx(4.0)
    assert length["JUDGE turn 0"] == length["JUDGE turn 1"] == pytest.approx(1.0)
    # two seconds are left for 100 tokens and two refusals that wrote none and count as one token each
    assert length["REHEARSE get_order"] == pytest.approx(2.0 * 10 / 102, rel=1e-3)
    assert children[0].attributes["timing"] == "by tokens" and children[4].attributes["timing"] == "recorded"
    starts = [s.start_time_ns for s in children]
    assert starts == sorted(starts) and children[-1].end_time_ns <= root.end_time_ns + 10_000


def timed():
    """The generations with their times."""
    own = {Role.ACT: 0.25, Role.REHEARSE: 0.5}
    return tuple(replace(g, seconds=own[g.role]) for g in EPISODE.generations)


def test_a_generation_takes_the_time_it_took(log):
    """4 s: four ACT of 0.25, a rehearsal of 0.5, two judgements of 1; half a second is left for refusals."""
    write(log, [replace(EPISODE, generations=timed())])
    root, *children = read(log)[0].data.spans
    length = [round((s.end_time_ns - s.start_time_ns) / 1e9, 6) for s in children]
    assert length == [0.25, 0.5, 0.25, 0.25, 1.0, 0.25, 0.25, 0.25, 1.0]
    assert [s.attributes["timing"] for s in children] == [
        "recorded",
        "recorded",
        "by tokens",
        "recorded",
        "recorded",
        "recorded",
        "by tokens",
        "recorded",
        "recorded",
    ]
    assert (root.end_time_ns - root.start_time_ns) / 1e9 == pytest.approx(4.0)
    assert children[-1].end_time_ns <= root.end_time_ns + 10_000


def test_calls_rehearsed_at_once_begin_at_once_and_count_once(log):
    """The second call was rehearsed too, beside the first and longer: together they took 0.75 s, not 1.25."""
    first = timed()[1]
    second = replace(first, call_index=1, seconds=0.75, text="more words")
    answered = replace(OBSERVATIONS[1], source=Source.REHEARSAL, failure=None, error=False)
    e = replace(
        EPISODE,
        generations=(*timed()[:2], second, *timed()[2:]),
        observations=(OBSERVATIONS[0], answered, OBSERVATIONS[2]),
    )
    write(log, [e])
    root, act, one, two, after, *_ = read(log)[0].data.spans
    assert [s.name for s in (one, two)] == ["REHEARSE get_order", "REHEARSE send"]
    assert (
        one.start_time_ns == two.start_time_ns == act.end_time_ns and after.start_time_ns == two.end_time_ns
    )
    assert (two.end_time_ns - two.start_time_ns) / 1e9 == pytest.approx(0.75)
    assert (root.end_time_ns - root.start_time_ns) / 1e9 == pytest.approx(4.0)


def test_no_secret_arrives_wherever_it_stood(store, monkeypatch):
    monkeypatch.setenv("CANARY_KEY", CANARY)
    redactor = Redactor({"judge": {"key_env": "CANARY_KEY"}})
    log = Store(store.uri, "envace", store.state, redactor).start_run("r", kind="stage")
    call = ToolCall(name=CANARY, arguments={CANARY: CANARY, "password": "hunter22"})
    content = json.dumps({"echo": CANARY})
    said = (
        *MESSAGES[:2],
        Message(role="assistant", content=CANARY, thinking="x" * 3990 + CANARY, calls=(call,)),
        Message(role="tool", name=CANARY, content=content.replace("<", "\\u003c")),
    )
    bad = unscored(
        id=f"e {CANARY}",
        task_id=CANARY,
        group_id=CANARY,
        messages=said,
        stop_detail=CANARY,
        observations=(replace(OBSERVATIONS[0], content={"k": [CANARY], CANARY: 1}),),
        generations=(replace(EPISODE.generations[3], step=0, text=CANARY),),
        unscored_reason=f"x: {CANARY}",
        verdicts=(replace(EPISODE.verdicts[0], reason=CANARY, endpoint=CANARY, item_id=CANARY),),
    )
    assert write(log, [bad]).written == 1
    [trace] = read(log)
    whole = json.dumps([trace.info.to_dict(), [s.to_dict() for s in trace.data.spans]], default=str)
    assert "zqzq" not in whole and "never" not in whole and "hunter22" not in whole and MARK in whole
    assert "zqzq" not in (store.state / "mlflow.db").read_bytes().decode("latin-1")


def test_long_texts_and_many_entries_are_cut_after_redaction_and_say_by_how_much():
    limits = trace_limits.Limits(Redactor({"key_env": "K"}, {"K": "tiger-7-tiger"}))
    assert limits.text("x" * 3995 + "tiger-7-tiger", 3999).endswith("… [4005 characters]")  # ten are the mark
    assert "tig" not in limits.text("x" * 3995 + "tiger-7-tiger")
    cut_off = limits.text("a" * 5000)
    assert cut_off.endswith("… [5000 characters]") and len(cut_off) == trace_limits.LONGEST_TEXT
    assert len(limits.json({str(k): "b" * 3000 for k in range(90)})) < trace_limits.LONGEST_VALUE + 100
    found = json.loads(limits.json({"many": list(range(1000)), "odd": float("nan"), "bad": "\ud800\0"}))
    assert found["many"][-1] == "… [1000 entries]" and (found["odd"], found["bad"]) == ("nan", "\ufffd\ufffd")
    deep: object = "x"
    for _ in range(60):
        deep = [deep]
    assert "nested deeper" in limits.json(deep)


def test_an_episode_of_very_many_steps_shows_its_first_ones_and_counts_the_rest(log, monkeypatch):
    monkeypatch.setattr(trace_spans, "MOST_SPANS", 3)
    write(log, [EPISODE])
    root, *children = read(log)[0].data.spans
    assert len(children) == 3 and root.attributes["spans_left_out"] == 6


def test_an_episode_cut_off_in_the_middle_still_shows_all_it_has(log):
    bare = replace(EPISODE, id="bare", messages=(), observations=(), verdicts=(), turn_rewards=())
    none = replace(
        bare, id="none", generations=(), reward=None, stop=StopReason.CANCELLED, unscored_reason="cancelled"
    )
    assert write(log, [bare, none]).written == 2
    by_id = {t.info.tags["envace.episode"]: t for t in read(log)}
    assert len(by_id["bare"].data.spans) == 1 + 5 and len(by_id["none"].data.spans) == 1


def test_a_true_source_that_answered_in_place_of_a_rehearsal_stands_beside_it(log):
    true = replace(OBSERVATIONS[0], content={"state": "new"}, source=Source.ENVIRONMENT)
    write(log, [replace(EPISODE, observations=(true, *OBSERVATIONS[1:]))])
    _, _, rehearsed, answered, *_ = read(log)[0].data.spans
    assert (rehearsed.name, rehearsed.outputs) == ("REHEARSE get_order", "words of rehearse 0")
    assert (answered.name, answered.outputs) == ("environment get_order", {"state": "new"})


def test_writing_twice_makes_one_trace(log):
    for _ in range(2):
        write(log, [EPISODE])
    [trace] = read(log)
    assert len(trace.data.spans) == 10 and len(trace.info.assessments) == 4
