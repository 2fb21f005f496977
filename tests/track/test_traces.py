"""Episodes as traces in a real MLflow store, read back through MLflow's own functions."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from types import SimpleNamespace

import pytest
from trace_kit import EPISODE, MESSAGES, OBSERVATIONS, episodes, unscored

from envace.errors import EnvironmentUnready
from envace.params import parse
from envace.track import client as c
from envace.track import cut, spans, traces
from envace.track.redact import MARK, Redactor
from envace.types import Message, Source, StopReason, ToolCall, replace, to_json
from tasks import tracking

CANARY = 'canary-<zqzq>"never\\seen'


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    state = tmp_path_factory.mktemp("store")
    client = c.connect(c.default_uri(state), state)
    return client, c.experiment(client, "envace", state), state


@pytest.fixture
def log(store):
    client, experiment, state = store
    return c.start_run(client, experiment, "evaluate@a-b", state, kind="stage", redactor=Redactor(environ={}))


def write(log, found, sample=100, failed=100, tags=None, **more):
    candidates = traces.of_episodes(found, {"envace.policy": "start"})
    return traces.log_traces(log, candidates, sample=sample, failed=failed, tags=tags or {}, **more)


def read(log):
    """The traces of a run, as MLflow finds them."""
    experiment = log.client.get_run(log.run_id).info.experiment_id
    return list(log.client.search_traces(locations=[experiment], run_id=log.run_id, max_results=500))


def named(trace):
    return {s.name: s for s in trace.data.spans}


def test_an_episode_is_one_tree_in_its_own_order_with_its_words_and_counts(log):
    assert write(log, [EPISODE], tags={"envace.stage": "train@envace-1"}).written == 1
    [trace] = read(log)
    root, *children = trace.data.spans
    assert [s.name for s in children] == [
        "ACT", "REHEARSE get_order", "validator send", "ACT", "JUDGE turn 0", "ACT", "validator", "ACT", "JUDGE turn 1",
    ]  # fmt: skip
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
    assert tags.items() >= {
        "envace.task": "desk-train-7", "envace.group": "s3p1", "envace.policy": "start", "envace.stop": "done",
        "envace.outcome": "finished", "envace.reward": "0.75", "mlflow.traceName": "desk-train-7",
    }.items()  # fmt: skip
    info = found[0].info
    assert info.trace_metadata["mlflow.sourceRun"] == log.run_id and info.state.value == "OK"
    assert info.token_usage == {"input_tokens": 50, "output_tokens": 100, "total_tokens": 150}
    assert (info.request_preview, info.response_preview) == ("Where is #kite?", "I could not.")


def test_reward_and_verdicts_are_feedback_and_an_unscored_one_is_an_error_not_a_no(log):
    write(log, [EPISODE, unscored(id="lost")])
    by_id = {t.info.tags["envace.episode"]: t for t in read(log)}
    good = {a.name: a for a in by_id["s3p1-0"].info.assessments}
    assert {n: a.value for n, a in good.items()} == {
        "reward": 0.75, "turn 0 C0": True, "turn 0 C1": False, "turn 1 C0": True,
    }  # fmt: skip
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
    ]  # fmt: skip
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


def test_no_secret_arrives_wherever_it_stood(store, monkeypatch):
    monkeypatch.setenv("CANARY_KEY", CANARY)
    client, experiment, state = store
    redactor = Redactor({"judge": {"key_env": "CANARY_KEY"}})
    log = c.start_run(client, experiment, "r", state, kind="stage", redactor=redactor)
    call = ToolCall(name=CANARY, arguments={CANARY: CANARY, "password": "hunter22"})
    content = json.dumps({"echo": CANARY})
    said = (
        *MESSAGES[:2],
        Message(role="assistant", content=CANARY, thinking="x" * 3990 + CANARY, calls=(call,)),
        Message(role="tool", name=CANARY, content=content.replace("<", "\\u003c")),
    )
    bad = unscored(
        id=f"e {CANARY}", task_id=CANARY, group_id=CANARY, messages=said, stop_detail=CANARY,
        observations=(replace(OBSERVATIONS[0], content={"k": [CANARY], CANARY: 1}),),
        generations=(replace(EPISODE.generations[3], step=0, text=CANARY),), unscored_reason=f"x: {CANARY}",
        verdicts=(replace(EPISODE.verdicts[0], reason=CANARY, endpoint=CANARY, item_id=CANARY),),
    )  # fmt: skip
    assert write(log, [bad]).written == 1
    [trace] = read(log)
    whole = json.dumps([trace.info.to_dict(), [s.to_dict() for s in trace.data.spans]], default=str)
    assert "zqzq" not in whole and "never" not in whole and "hunter22" not in whole and MARK in whole
    assert "zqzq" not in (state / "mlflow.db").read_bytes().decode("latin-1")


def test_long_texts_and_many_entries_are_cut_after_redaction_and_say_by_how_much():
    cutter = cut.Cutter(Redactor({"key_env": "K"}, {"K": "tiger-7-tiger"}))
    assert cutter.text("x" * 3995 + "tiger-7-tiger", 3999).endswith("… [4005 characters]")  # ten are the mark
    assert "tig" not in cutter.text("x" * 3995 + "tiger-7-tiger")
    cut_off = cutter.text("a" * 5000)
    assert cut_off.endswith("… [5000 characters]") and len(cut_off) == cut.LONGEST_TEXT
    assert len(cutter.json({str(k): "b" * 3000 for k in range(90)})) < cut.LONGEST_VALUE + 100
    found = json.loads(cutter.json({"many": list(range(1000)), "odd": float("nan"), "bad": "\ud800\0"}))
    assert found["many"][-1] == "… [1000 entries]" and (found["odd"], found["bad"]) == ("nan", "\ufffd\ufffd")
    deep: object = "x"
    for _ in range(60):
        deep = [deep]
    assert "nested deeper" in cutter.json(deep)


def test_an_episode_of_very_many_steps_shows_its_first_ones_and_counts_the_rest(log, monkeypatch):
    monkeypatch.setattr(spans, "MOST_SPANS", 3)
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


# --- which ----------------------------------------------------------------------------------------------------


def ids(found):
    return [x.head.id for x in found]


def test_the_sample_is_whole_groups_by_hash_whatever_their_order():
    found = list(traces.of_episodes(episodes(20, 4), {}))
    chosen = ids(traces.choose(found, 8, 0))
    assert len(chosen) == 8 and len({i.partition("-")[0] for i in chosen}) == 2
    assert ids(traces.choose(found[::-1], 8, 0)) == chosen and ids(traces.choose(found, 4, 0)) == chosen[:4]


def test_all_failures_are_shown_up_to_the_limit_the_gravest_first_and_the_rest_counted(log):
    mixed = [
        *episodes(3, 2),
        *(replace(e, id=f"cut-{e.id}") for e in episodes(2, 2, stop=StopReason.STEP_BUDGET)),
        *(unscored(id=f"lost-{k}", group_id=f"l{k}") for k in range(3)),
    ]
    books = write(log, mixed, sample=0, failed=5)
    assert (books.episodes, books.failed, books.written, books.left_out) == (13, 7, 5, 2)
    shown = sorted(t.info.tags["envace.episode"].partition("-")[0] for t in read(log))
    assert shown == ["cut", "cut", "lost", "lost", "lost"]
    assert "5 of 13 episodes in MLflow, with 5 of 7 that failed" in books.sentence()
    assert "2 more failed than mlflow.failed_traces shows" in books.sentence()


def test_episodes_of_a_file_are_found_by_their_lines_and_a_damaged_one_is_counted(tmp_path, log):
    path = tmp_path / "step_000003.jsonl"
    lines = [json.dumps(to_json(e), ensure_ascii=False) for e in (replace(EPISODE, id="ä"), unscored(id="b"))]
    path.write_text("\n".join([lines[0], '{"step": 3}', "{", lines[1]]) + "\n", encoding="utf-8")
    books = traces.log_traces(log, traces.of_file(path, {"envace.step": "3"}), sample=5, failed=5, tags={})
    assert (books.episodes, books.unreadable, books.written, books.failed) == (2, 2, 2, 1)
    assert {(t.info.tags["envace.episode"], t.info.tags["envace.step"]) for t in read(log)} == {
        ("ä", "3"),
        ("b", "3"),
    }


# --- a store that is away, slow or rude ------------------------------------------------------------------------


def test_a_store_that_is_gone_is_left_after_a_few_faults_and_named(log, monkeypatch):
    from mlflow.exceptions import MlflowException

    asked = []

    def gone(uri, info, spans):
        asked.append(info)
        raise MlflowException("API request failed: connection refused by api_key=s3cret99")

    monkeypatch.setattr(traces, "send", gone)
    books = write(log, episodes(10, 1))
    assert len(asked) == traces.FAULTS_TO_STOP and (books.written, books.lost) == (0, 10)
    assert (
        "warning" in books.sentence()
        and "connection refused" in books.sentence()
        and "s3cret99" not in books.cause
    )


def test_one_episode_that_cannot_be_shown_costs_its_own_trace_alone(log):
    class Odd:
        def __getattr__(self, name):
            raise RuntimeError("odd")

    found = list(traces.of_episodes(episodes(3, 1), {}))
    found[1] = replace(found[1], load=Odd)
    books = traces.log_traces(log, found, sample=5, failed=5, tags={})
    assert (books.written, books.lost, books.cause) == (2, 1, "RuntimeError: odd")


def test_a_server_that_never_answers_is_left_at_the_deadline(store):
    from mlflow import MlflowClient

    listener = socket.create_server(("127.0.0.1", 0))
    held = []
    threading.Thread(target=lambda: held.append(listener.accept()), daemon=True).start()
    slow = MlflowClient(tracking_uri=f"http://127.0.0.1:{listener.getsockname()[1]}")
    log, began = c.RunLog(slow, "0" * 32, store[2]), time.monotonic()
    books = write(log, episodes(4, 1), deadline_s=0.3)
    listener.close()
    assert time.monotonic() - began < 5
    assert (books.written, books.lost, books.cause) == (0, 4, "no answer within 0.3 s")


def test_a_log_that_has_lost_its_store_is_not_asked_again(log, monkeypatch):
    monkeypatch.setattr(log, "_buffer", "somewhere")
    books = write(log, episodes(2, 1))
    assert (books.lost, books.cause) == (2, "MLflow went away earlier")


# --- in a stage -----------------------------------------------------------------------------------------------


def stage(log, **mlflow):
    said, metrics = [], {}
    return SimpleNamespace(
        name="evaluate@start-desk", log=log, say=said.append, said=said, found=metrics,
        params=parse({"policy": {"kind": "tiny"}, "mlflow": mlflow}),
        metrics=lambda values, step=0: metrics.update(values),
    )  # fmt: skip


def test_a_stage_shows_its_episodes_says_how_many_and_counts_them(log):
    run = stage(log, traces=2, failed_traces=1)
    with tracking.traced(run, "start") as shown:
        shown += [*episodes(2, 2), unscored(id="lost", group_id="x")]
    assert run.found.items() >= {"traces/failed": 1, "traces/lost": 0, "traces/left_out": 0}.items()
    assert len(read(log)) == run.found["traces/written"] and len(run.said) == 1
    assert {t.info.tags["envace.stage"] for t in read(log)} == {"evaluate@start-desk"}


def test_episodes_of_a_pool_that_gave_up_are_shown_too(log):
    from envace.rollout.pool import PoolAborted

    run = stage(log, traces=0)
    with pytest.raises(PoolAborted), tracking.traced(run, "start"):
        raise PoolAborted("all dead", [unscored(id="lost")])
    assert [t.info.tags["envace.episode"] for t in read(log)] == ["lost"]


def test_a_stage_that_asks_for_none_or_has_no_log_writes_none(log):
    for run in (stage(log, traces=0, failed_traces=0), stage(None)):
        with tracking.traced(run, "start") as shown:
            shown += episodes(1, 1)
        assert run.said == [] and run.found == {}
    assert read(log) == []


def test_a_training_shows_the_episodes_of_its_steps_up_to_the_last(log, tmp_path):
    folder = tmp_path / "episodes"
    folder.mkdir()
    for step in (1, 2, 3):
        line = json.dumps(to_json(replace(EPISODE, id=f"s{step}p0-0", group_id=f"s{step}p0")))
        (folder / f"step_{step:06d}.jsonl").write_text(line + "\n")
    tracking.trace_training(stage(log), tmp_path, "envace-1", 2)
    tags = [t.info.tags for t in read(log)]
    assert {(t["envace.step"], t["envace.policy"]) for t in tags} == {("1", "envace-1"), ("2", "envace-1")}


def test_a_training_without_episodes_says_nothing(log, tmp_path):
    run = stage(log)
    tracking.trace_training(run, tmp_path, "envace-1")
    assert run.said == [] and run.found == {}


# --- a server -------------------------------------------------------------------------------------------------


@pytest.mark.heavy
def test_traces_reach_a_server_and_one_that_dies_costs_only_what_was_left(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as s:
        port = s.getsockname()[1]
    backend = c.default_uri(tmp_path)
    c.connect(backend, tmp_path)
    command = [
        sys.executable,
        "-m",
        "mlflow",
        "server",
        "--backend-store-uri",
        backend,
        "--port",
        str(port),
        "--workers",
        "1",
    ]
    with (tmp_path / "server.log").open("w") as out:
        server = subprocess.Popen(command, stdout=out, stderr=out, start_new_session=True)
    try:
        client = when_up(f"http://127.0.0.1:{port}", tmp_path)
        experiment = c.experiment(client, "envace", tmp_path)
        log = c.start_run(client, experiment, "r", tmp_path, kind="stage", redactor=Redactor(environ={}))
        books = write(log, [*episodes(2, 2), unscored(id="lost")])
        assert (books.written, books.lost) == (5, 0), books.cause
        by_id = {t.info.tags["envace.episode"]: t for t in read(log)}
        assert len(by_id) == 5 and len(by_id["g0-0"].data.spans) == 10
        assert {a.name: a.value for a in by_id["g0-0"].info.assessments}["reward"] == 0.75
        assert named(by_id["lost"])["JUDGE turn 1"].status.status_code == "ERROR"
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()
    books = write(log, episodes(30, 1), deadline_s=60)
    assert books.written == 0 and books.lost == 30 and "refused" in books.cause


def when_up(url, state):
    ends = time.monotonic() + 300
    while True:
        try:
            return c.connect(url, state)
        except EnvironmentUnready:
            if time.monotonic() > ends:
                raise
            time.sleep(1)
