"""BFCL's files -> records. The fixtures are cut from files that BFCL wrote while an endpoint answered seven
entries of each category so: right, malformed call, empty message, text, context overflow, server error, no
connection."""

import json
import shutil
from pathlib import Path

import pytest
from kit_bfcl import BROKEN

from envace.bench.bfcl import failures
from envace.bench.bfcl.parse import sample_records
from envace.bench.bfcl.scores import score_records
from envace.chat.calls import parse_assistant, render_calls
from envace.errors import DataError
from envace.types import SampleStatus, ToolCall

OVERFLOWN = "context overflow"
FIXTURES = Path(__file__).parent / "fixtures" / "bfcl"
MEMORIES = ("19-customer-19", "26-customer-26", "35-healthcare-5", "57-finance-2", "66-finance-11")
MEMORIES += ("72-finance-17", "122-student-42")
IDS = {
    "simple_python": [f"simple_python_{n}" for n in (35, 46, 86, 153, 201, 255, 295)],
    "irrelevance": [f"irrelevance_{n}" for n in (5, 30, 59, 74, 108, 150, 155)],
    "multi_turn_base": [f"multi_turn_base_{n}" for n in (0, 49, 54, 96, 98, 158, 183)],
    "memory_rec_sum": [f"memory_rec_sum_{n}" for n in MEMORIES],
}
AGENT, INFRA, SCORED = SampleStatus.AGENT_FAILURE, SampleStatus.INFRA_FAILURE, SampleStatus.SCORED


def parsed(category, folder=None, ids=None):
    planned = [(f"{category}/{i}", 0) for i in ids or IDS[category]]
    return sample_records(folder or FIXTURES / f"{category}-0", planned, 7, str)


def copy(category, tmp_path):
    shutil.copytree(FIXTURES / f"{category}-0", tmp_path / "job")
    (result,) = (tmp_path / "job" / "root" / "result").rglob(f"BFCL_v4_{category}_result.json")
    (score,) = (tmp_path / "job" / "root" / "score").rglob("*_score.json")
    return tmp_path / "job", result, score


def rewrite(path, change):
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    path.write_text("".join(json.dumps(r) + "\n" for r in change(rows)))


def test_every_answer_becomes_a_record_with_a_named_cause():
    made = parsed("simple_python")
    assert [s.status for s in made] == [SCORED, AGENT, AGENT, SCORED, AGENT, INFRA, INFRA]
    assert [s.reward for s in made] == [1.0, None, None, 0.0, None, None, None]
    causes = ("", "malformed call", "empty message", "no call could be read", "context overflow")
    causes += ("server error", "no connection")
    assert all(s.error.startswith(c) and bool(s.error) == bool(c) for s, c in zip(made, causes))
    assert (
        made[0].task == "simple_python/simple_python_35" and made[0].stop == "correct" and made[0].seed == 7
    )
    assert made[0].metrics["tokens"] == 15 and made[0].metrics["steps"] == 1


def test_entries_that_bfcl_does_not_list_are_right():
    made = parsed("multi_turn_base")
    assert [s.metrics["upstream"] for s in made] == [1, 0, 0, 0, 0, 0, 0]
    assert [s.status for s in made] == [SCORED, AGENT, AGENT, SCORED, AGENT, INFRA, INFRA]
    assert made[0].metrics["steps"] == 8 and made[3].stop == "multi_turn:empty_turn_model_response"


def test_bug_30_gorilla_1362_a_broken_call_or_a_dead_server_is_no_abstention():
    """BFCL passes both where calling nothing is right."""
    made = parsed("irrelevance")
    assert [s.metrics["upstream"] for s in made] == [1] * 7
    assert [s.status for s in made] == [SCORED, AGENT, AGENT, SCORED, AGENT, INFRA, INFRA]
    assert [s.reward for s in made] == [1.0, None, None, 1.0, None, None, None]


def test_a_memory_that_the_infrastructure_did_not_fill_is_not_the_agents_fault():
    made = parsed("memory_rec_sum")
    assert [s.status for s in made] == [INFRA, INFRA, AGENT, SCORED, AGENT, INFRA, INFRA]
    assert made[0].error == "prerequisite conversation memory_rec_sum_prereq_1-customer-1: server error"
    assert made[0].metrics["upstream"] == 1 and made[2].error == "no final message"


def test_the_gate_withholds_what_bfcl_prints():
    tasks = {c: [f"{c}/{i}" for i in IDS[c]] for c in ("simple_python", "irrelevance")}
    samples = [s for c in tasks for s in parsed(c)]
    shared = {"floors": dict.fromkeys(tasks, 0.0), "skipped": {}, "bootstrap": 50, "seed": 0}
    scores = {(s.subset, s.source): s for s in score_records(samples, tasks, 1, min_complete=1.0, **shared)}
    assert {s.score for s in scores.values()} == {None}  # BFCL would print 100 % of irrelevance
    assert {s.n_infra_failure for s in scores.values() if s.subset == "irrelevance"} == {2}
    assert "irrelevance: withheld" in scores["irrelevance_mean", "derived"].skipped
    lenient = score_records(samples, tasks, 1, min_complete=0.7, **shared)
    assert lenient[0].score == pytest.approx(1 / 5) and lenient[0].n_infra_failure == 2
    assert lenient[2].score == pytest.approx(2 / 5) and lenient[2].source == "strict"
    assert (lenient[3].subset, lenient[3].source, lenient[3].score) == ("irrelevance", "upstream", 1.0)


def test_absent_answers_are_missing_and_stop_the_gate(tmp_path):
    folder, result, score = copy("simple_python", tmp_path)
    rewrite(result, lambda rows: rows[:5])
    rewrite(score, lambda rows: [{"accuracy": 0.2, "correct_count": 1, "total_count": 5}, *rows[1:5]])
    tasks = {"simple_python": [f"simple_python/{i}" for i in IDS["simple_python"]]}
    how = {"floors": {"simple_python": 0.0}, "skipped": {}, "min_complete": 1.0, "bootstrap": 10}
    strict, upstream, *_ = score_records(parsed("simple_python", folder), tasks, 1, **how)
    assert (strict.score, strict.n_missing) == (None, 2)
    assert (upstream.score, upstream.n_missing) == (None, 2)  # BFCL would print 20 % of the five it saw


@pytest.mark.parametrize(
    "change",
    [lambda rows: rows[:-1], lambda rows: [{**rows[0], "correct_count": 2}, *rows[1:]], lambda rows: []],
)
def test_a_score_file_that_does_not_fit_the_answers_scores_nothing(change, tmp_path):
    folder, _, score = copy("simple_python", tmp_path)
    rewrite(score, change)
    made = parsed("simple_python", folder)
    assert made[0].status is INFRA and made[0].error.startswith("the score file counts")
    assert "upstream" not in made[0].metrics and made[4].status is AGENT


def test_gorilla_1209_answers_that_were_not_scored_say_what_became_of_the_evaluation(tmp_path):
    """`bfcl evaluate` refused 240 answers of irrelevance for having no ground truth, which irrelevance never
    has."""
    folder, _, score = copy("irrelevance", tmp_path)
    score.unlink()
    said = "ValueError: Length of model result (240) does not match length of ground truth entries (0)"
    (folder / "driver.json").write_text(json.dumps({"evaluate": said}))
    made = parsed("irrelevance", folder)
    assert made[0].status is INFRA and made[0].error == f"BFCL scored nothing: {said}"
    assert not any(s.reward is not None or "upstream" in s.metrics for s in made)


def test_bug_30_smg_1724_files_of_another_run_are_refused(tmp_path):
    """A pattern over a result folder once picked up another model's file."""
    folder, result, _ = copy("simple_python", tmp_path)
    with pytest.raises(DataError, match="simple_python_295 was not asked for"):
        parsed("simple_python", folder, IDS["simple_python"][:-1])
    rewrite(result, lambda rows: [*rows, rows[0]])
    with pytest.raises(DataError, match="'simple_python_35' twice"):
        parsed("simple_python", folder)


def test_a_row_that_was_cut_off_is_missing(tmp_path):
    folder, result, _ = copy("simple_python", tmp_path)
    result.write_text(result.read_text()[:-40])
    assert [s.task for s in parsed("simple_python", folder)] == [
        f"simple_python/{i}" for i in IDS["simple_python"][:-1]
    ]


def one(tmp_path, category, result, wrong=None):
    """The record of one entry with this answer."""
    entry, group = f"{category}_0", {"irrelevance": "non_live"}.get(category, "any")
    listed = [{"id": entry, **wrong}] if wrong else []
    scored = [{"correct_count": int(not wrong), "total_count": 1}, *listed]
    files = {"result": [{"id": entry, "result": result, "latency": 1.0}], "score": scored}
    for kind, rows in files.items():
        file = tmp_path / "root" / kind / "served" / group / f"BFCL_v4_{category}_{kind}.json"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("".join(json.dumps(r) + "\n" for r in rows))
    return sample_records(tmp_path, [(f"{category}/{entry}", 0)], 0, str)[0]


def test_gorilla_1077_the_raw_text_of_a_call_and_its_json_are_one_answer(tmp_path):
    """A function-calling handler that reads Qwen3's text badly scored below the prompted model."""
    calls = [
        ToolCall(name="f", arguments={"x": [1, "ü </tool> \n"], "y": {"z": None}}),
        ToolCall(name="g", arguments={}),
    ]
    raw = parse_assistant("<think>\n\n</think>\n\nOne moment.\n" + render_calls(calls))
    assert list(raw.calls) == calls and raw.content.strip() == "One moment."
    as_bfcl_keeps_it = [
        [[{c.name: json.dumps(c.arguments)} for c in found], "Done."] for found in (raw.calls, calls)
    ]
    made = [one(tmp_path / str(n), "multi_turn_base", [said]) for n, said in enumerate(as_bfcl_keeps_it)]
    assert made[0] == made[1] and (made[0].status, made[0].reward) == (SCORED, 1.0)


def test_call_markup_that_no_parser_could_read_is_a_malformed_call(tmp_path):
    made = one(tmp_path, "irrelevance", '<tool_call>\n{"name": "f", "arguments": {\n</tool_call>')
    assert made.status is AGENT and made.metrics["upstream"] == 1 and "markup" in made.error


def test_a_broken_call_does_not_pass_for_a_turn_in_which_nothing_was_to_be_called(tmp_path):
    turns = [[[{"ls": "{}"}], "Done."], [BROKEN]]
    made = one(tmp_path, "multi_turn_miss_func", turns)
    assert made.status is AGENT and made.metrics["upstream"] == 1 and "call markup in the text" in made.error


def test_more_than_twenty_steps_in_a_turn_are_a_failure_of_the_agent(tmp_path):
    wrong = {"error": {"error_type": "multi_turn:force_terminated", "error_message": ["..."]}}
    made = one(tmp_path, "multi_turn_base", [[[{"ls": "{}"}]] * 21], wrong)
    assert (made.status, made.error) == (AGENT, "more than 20 steps in one turn")


def test_an_answer_inside_a_broken_call_is_no_answer(tmp_path):
    steps = [[{"core_memory_search": '{"query": "Michael'}]]
    made = one(tmp_path, "memory_kv", [steps])
    assert made.status is AGENT and made.metrics["upstream"] == 1 and "malformed call" in made.error


def test_an_empty_message_may_end_a_turn_that_was_answered(tmp_path):
    made = one(tmp_path, "multi_turn_base", [[[{"ls": "{}"}], ""]])
    assert (made.status, made.reward) == (SCORED, 1.0)


def test_a_model_that_writes_the_error_prefix_itself_has_answered(tmp_path):
    made = one(tmp_path, "irrelevance", "Error during inference: I refuse.")
    assert (made.status, made.reward) == (SCORED, 1.0)


@pytest.mark.parametrize(
    ("text", "who", "cause"),
    [
        ("Error code: 400 - {'message': 'maximum context length is 8192 tokens.'}", "agent", OVERFLOWN),
        ("Error code: 400 - {'error': {'code': 'context_length_exceeded'}}", "agent", OVERFLOWN),
        ("Error code: 400 - prompt is too long: 9000 tokens", "agent", OVERFLOWN),
        (f"{failures.MALFORMED}: Error code: 400 - Expecting value", "agent", failures.MALFORMED),
        ("Connection error.", "infra", "no connection"),
        ("Request timed out.", "infra", "request timed out"),
        ("Error code: 401 - bad key", "infra", "key refused"),
        ("Error code: 404 - no such model", "infra", "model or address not found"),
        ("Error code: 429 - slow down", "infra", "too many requests"),
        ("Error code: 503 - context size allocator failed", "infra", "server error"),
        ("Error code: 400 - unknown field", "infra", "unknown error"),
        ("'NoneType' object is not subscriptable", "infra", "unknown error"),
        ("", "infra", "unknown error"),
    ],
)
def test_only_what_is_surely_the_agents_is_the_agents(text, who, cause):
    assert failures.cause(f"{failures.PREFIX} {text}") == (who, cause)
