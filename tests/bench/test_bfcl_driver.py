"""The parts of the driver that need no harness: what counts as an answer, and what a taken-up run forgets."""

import json
import sys
import types
from types import SimpleNamespace as Said

import pytest
from kit_drivers import driver_of

driver = driver_of("bfcl")


def call(arguments, name="f", id="call-1"):
    return Said(id=id, function=Said(name=name, arguments=arguments))


def message(content=None, calls=(), **more):
    return Said(content=content, tool_calls=list(calls), **more)


def test_thinking_is_no_part_of_an_answer():
    assert driver.spoken(message("<think>Michael?</think>\n\nAnn")) == (
        {"role": "assistant", "content": "Ann"},
        "<think>Michael?",
    )
    said, thinking = driver.spoken(message("<think>Michael, and then the tokens ran o"))
    assert said["content"] == "" and "Michael" in thinking


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
def test_thinking_that_the_server_split_off_goes_back_in_its_field(field):
    said, thinking = driver.spoken(message("Ann", **{field: "hm"}))
    assert said == {"role": "assistant", "content": "Ann", field: "hm"} and thinking == "hm"


def test_calls_keep_their_text_and_get_an_id():
    said, _ = driver.spoken(message(None, [call('{"x": 1}'), call("{", id=None)]))
    assert [c["id"] for c in said["tool_calls"]] == ["call-1", "call_1"]
    assert said["tool_calls"][1]["function"]["arguments"] == "{" and said["content"] == ""


@pytest.mark.parametrize(
    ("arguments", "sound"),
    [('{"x": 1}', True), ("{}", True), ("[1]", False), ('{"x": ', False), (None, False)],
)
def test_a_history_is_sound_when_all_arguments_are_objects(arguments, sound):
    history = [
        {"role": "user"},
        {"role": "assistant", "tool_calls": [{"function": {"arguments": arguments}}]},
    ]
    assert driver.sound(history) is sound


def row(entry, error=""):
    return (
        {"id": entry, "result": f"{driver.failures.PREFIX} {error}", "traceback": "..."}
        if error
        else {"id": entry, "result": "x"}
    )


def write(path, rows, tail=""):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(r) + "\n" for r in rows) + tail)
    return path


def ids(path):
    return [r["id"] for r in driver.answers.read_rows(path)] if path.exists() else None


def test_a_run_that_is_taken_up_asks_again_where_the_infrastructure_failed(tmp_path):
    kept = [row("a_0"), row("a_3", "Error code: 400 - maximum context length is 9")]
    file = write(
        tmp_path / "any" / "BFCL_v4_a_result.json",
        [*kept, row("a_1", "Connection error.")],
        '{"id": "a_2", "res',
    )
    driver.forget_failures(tmp_path)
    assert ids(file) == ["a_0", "a_3"]
    write(file, [row("a_0", "Connection error.")])
    driver.forget_failures(tmp_path)
    assert not file.exists(), "BFCL divides by the number of rows"
    driver.forget_failures(tmp_path / "nothing yet")


def test_a_broken_chain_of_conversations_is_forgotten_with_its_memory(tmp_path, monkeypatch):
    entries = [
        {"id": f"memory_kv_prereq_{n}-{s}-{n}", "scenario": s} for s in ("ann", "bob") for n in range(2)
    ]
    package = types.ModuleType("bfcl_eval.utils")
    package.load_dataset_entry = lambda category: [*entries, {"id": "memory_kv_0-ann-0", "scenario": "ann"}]
    monkeypatch.setitem(sys.modules, "bfcl_eval", types.ModuleType("bfcl_eval"))
    monkeypatch.setitem(sys.modules, "bfcl_eval.utils", package)
    folder = tmp_path / "agentic" / "memory" / "kv"
    rows = [row(e["id"]) for e in entries]
    rows[3] = row(rows[3]["id"], "Connection error.")
    before = write(folder / "BFCL_v4_memory_kv_prereq_result.json", rows)
    asked = write(
        folder / "BFCL_v4_memory_kv_result.json", [row("memory_kv_0-ann-0"), row("memory_kv_1-bob-1")]
    )
    names = ("ann_final.json", "bob_final.json", "prereq_checkpoints/memory_kv_prereq_0-bob-0.json")
    snapshots = [write(folder / "memory_snapshot" / name, []) for name in names]
    driver.forget_failures(tmp_path)
    assert ids(before) == ["memory_kv_prereq_0-ann-0", "memory_kv_prereq_1-ann-1"] and ids(asked) == [
        "memory_kv_0-ann-0"
    ]
    assert [s.exists() for s in snapshots] == [True, False, False]


def test_a_phase_that_breaks_is_named_and_does_not_stop_the_next(tmp_path, monkeypatch):
    def leave(job, root):
        raise SystemExit(3)

    monkeypatch.setattr(driver, "generate", leave)
    assert driver.outcome("generate", {}, tmp_path) == "SystemExit: 3"
    monkeypatch.setattr(driver, "evaluate", lambda job, root: None)
    assert driver.outcome("evaluate", {}, tmp_path) == "ok"


class StatisticsError(ValueError):
    """What the table of latencies raises when there is a single one."""


def test_a_single_row_is_scored_though_no_table_can_be_made_of_it(tmp_path, monkeypatch):
    def table(*args):
        raise StatisticsError("variance requires at least two data points")

    monkeypatch.setattr(driver, "command", table)
    with pytest.raises(StatisticsError):
        driver.evaluate({"category": "a"}, tmp_path)
    write(tmp_path / "score" / driver.NAME / "any" / "BFCL_v4_a_score.json", [{}])
    driver.evaluate({"category": "a"}, tmp_path)
