"""Annotating against a real server on loopback: every row ends in one outcome, and nothing is paid for
twice."""

import json
import random
import threading
from collections import Counter

import pytest
import yaml
from annotate_kit import (
    BAD,
    GOOD,
    TOOL,
    Says,
    counts,
    item,
    label,
    lines,
    options,
    raw_row,
    run,
    serving,
    well,
    write_rows,
)

from envace.data.check import check_row
from envace.data.schema import task_from_row
from envace.errors import EnvironmentUnready

OUTPUTS = ("annotated.jsonl", "rejected.jsonl", "unfinished.jsonl", "report.json", "spot.html")


def outputs(folder):
    return {name: (folder / name).read_bytes() for name in OUTPUTS}


def test_a_row_that_passes_is_labelled_and_can_be_staged(tmp_path):
    source = write_rows(tmp_path / "in/a.jsonl", [raw_row(k) for k in range(3)])
    with serving() as mill:
        report, _ = run(options(source, tmp_path / "out", mill.url, price_in=2.0, price_out=10.0))
    rows = lines(tmp_path / "out/annotated.jsonl")
    assert [r["uuid"] for r in rows] == ["u-0", "u-1", "u-2"] and report["counts"]["annotated"] == 3
    for row in rows:
        assert check_row(row) == []
        task = task_from_row(row)
        assert task.n_turns == 2 and [len(items) for items in task.checklist] == [3, 3]
        assert row["license"] == "CC BY 4.0" and row["messages"] == raw_row(int(row["uuid"][2:]))["messages"]
    by = rows[0]["annotator"]
    assert by["model"] == "m" and by["price_usd"] == pytest.approx(3 * (1000 * 2 + 100 * 10) / 1e6)
    prices = [i["extra_info"]["price_usd"] for turn in rows[0]["checklists"][0] for i in turn]
    assert sum(prices) == pytest.approx(by["price_usd"])
    assert Counter((a.kind, a.effort) for a in mill.log) == {
        ("filter", "low"): 3,
        ("filter", "high"): 3,
        ("label", "high"): 3,
    }
    assert report["total"]["tokens_read"] == 9000 and report["total"]["usd"] == pytest.approx(0.027)


def test_the_first_rejection_ends_a_row(tmp_path):
    source = write_rows(tmp_path / "a.jsonl", [raw_row(0), raw_row(1)])

    def script(asked):
        return Says(BAD) if asked.row == 0 else well(asked)

    with serving(script) as mill:
        report, _ = run(options(source, tmp_path / "out", mill.url))
        assert len(mill.asked(row=0)) == 1
    [rejected] = lines(tmp_path / "out/rejected.jsonl")
    assert rejected == {
        "where": "a.jsonl:1",
        "uuid": "u-0",
        "reason": "llm_filter",
        "field": "messages",
        "message": "turn 0, step 1: the port was never named",
        "call": "filter:low:0",
    }
    assert report["rejected_by_pass"] == {"filter:low:0": 1}


def test_rows_that_break_a_rule_are_never_sent(tmp_path):
    twin = raw_row(0, uuid="twin")
    cut = raw_row(2)
    cut["messages"].pop()
    done = {**raw_row(3), "tools": [TOOL], "checklists": [[turn["items"] for turn in label()["turns"]]]}
    rows = [raw_row(0), "{broken", cut, raw_row(0), twin, raw_row(4, uuid="half \ud800"), done]
    source = write_rows(tmp_path / "a.jsonl", rows)
    with serving() as mill:
        report, _ = run(options(source, tmp_path / "out", mill.url))
        assert {a.row for a in mill.log} == {0}
    assert [r["reason"] for r in lines(tmp_path / "out/rejected.jsonl")] == [
        "bad_json",
        "role_order",
        "duplicate_id",
        "duplicate_content",
        "bad_text",
        "already_annotated",
    ]
    assert report["counts"] == counts(7, annotated=1, rejected=6)


def test_a_faulty_label_is_repaired_once_and_the_model_is_told_why(tmp_path):
    source = write_rows(tmp_path / "a.jsonl", [raw_row(0), raw_row(1)])
    wrong = label()
    wrong["turns"][1]["items"][0]["evidence"][0]["step"] = 9

    def script(asked):
        mended = asked.kind == "repair" and asked.row == 0
        return Says(wrong) if asked.kind in ("label", "repair") and not mended else well(asked)

    with serving(script) as mill:
        report, _ = run(options(source, tmp_path / "out", mill.url))
        [repair] = mill.asked(kind="repair", row=0)
        assert len(mill.asked(kind="repair", row=1)) == 1
        again, _ = run(options(source, tmp_path / "out", mill.url))
        assert len(mill.log) == 8  # nothing is asked again
    said = repair.body["messages"][-1]["content"]
    assert "turns[1].items[0].evidence[0]: the dialogue has no assistant.tool_calls at turn 1, step 9" in said
    assert report["counts"]["annotated"] == report["counts"]["failed"] == 1 and again == report
    [failed] = lines(tmp_path / "out/unfinished.jsonl")
    assert (failed["outcome"], failed["reason"]) == ("failed", "faulty_label") and "step 9" in failed[
        "detail"
    ]
    assert lines(tmp_path / "out/annotated.jsonl")[0]["annotator"]["repaired"] is True


def test_failed_rows_are_labelled_anew_only_when_asked_for(tmp_path):
    source = write_rows(tmp_path / "a.jsonl", [raw_row()])
    good = threading.Event()

    def script(asked):
        return well(asked) if good.is_set() or asked.kind == "filter" else Says("no idea")

    with serving(script) as mill:
        report, _ = run(options(source, tmp_path / "out", mill.url))
        assert report["counts"]["failed"] == 1
        good.set()
        report, _ = run(options(source, tmp_path / "out", mill.url))
        assert report["counts"]["failed"] == 1 and len(mill.log) == 4
        report, _ = run(options(source, tmp_path / "out", mill.url, retry_failed=True))
        assert report["counts"]["annotated"] == 1 and len(mill.log) == 5


LIES = [
    Says("I think this is fine."),
    Says("false"),
    Says(["no_error"]),
    Says({"no_error": 1, "errors": []}),
    Says({"no_error": "maybe", "errors": []}),
    Says({"no_error": None}),
    Says({"no_error": True, "errors": [{"turn": 0, "step": 0, "what": "x"}]}),
    Says('{"no_error": false, "no_error": true}'),
    Says(""),
    Says(None),
    Says('{"no_err', finish="length"),
    Says(raw=b"<html>hello</html>"),
    Says(raw=b"[]"),
    Says(raw=b'{"choices": []}'),
    Says(raw=b""),
]


def test_a_lying_filter_neither_keeps_nor_drops_a_row_and_the_next_run_asks_again(tmp_path):
    source = write_rows(tmp_path / "a.jsonl", [raw_row(k) for k in range(len(LIES))])
    honest = threading.Event()

    def script(asked):
        return well(asked) if honest.is_set() or asked.kind != "filter" else LIES[asked.row]

    with serving(script) as mill:
        report, _ = run(options(source, tmp_path / "out", mill.url, concurrency=16))
        assert report["counts"]["undecided"] == len(LIES), lines(tmp_path / "out/unfinished.jsonl")
        assert not mill.asked(kind="label")
        honest.set()
        report, _ = run(options(source, tmp_path / "out", mill.url))
    assert report["counts"] == counts(15, annotated=15)


def test_under_every_fault_at_once_each_row_ends_in_exactly_one_outcome(tmp_path):
    source = write_rows(tmp_path / "a.jsonl", [raw_row(k) for k in range(60)])
    dice = random.Random(5)

    def script(asked):
        roll = dice.random()
        if roll < 0.5:
            return well(asked)
        busy = [Says(status=429, headers={"Retry-After": "0"}), Says(status=500), Says(hang_up=True)]
        odd = [Says(BAD), Says("prose"), Says({"turns": [{"turn": 0, "items": [item(weight="1")]}]})]
        return dice.choice([*busy, *odd, Says(GOOD, delay_s=0.05), Says(status=400, raw=b"{}")])

    with serving(script) as mill:
        report, done = run(options(source, tmp_path / "out", mill.url, concurrency=8))
        assert mill.most_in_flight <= 8
    found = report["counts"]
    assert found["read"] == 60 == sum(found.values()) - 60 and done.error is None
    ids = [r["uuid"] for n in OUTPUTS[:3] for r in lines(tmp_path / "out" / n)]
    assert sorted(ids) == sorted(f"u-{k}" for k in range(60))
    assert found["annotated"] and found["rejected"] and report["total"]["retries"] > 0


def test_the_same_journal_gives_the_same_bytes(tmp_path):
    source = write_rows(tmp_path / "in/a.jsonl", [raw_row(k) for k in range(8)])
    with serving(lambda a: Says(BAD) if a.row % 3 == 0 else well(a)) as mill:
        run(options(source, tmp_path / "a", mill.url))
        n = len(mill.log)
        (tmp_path / "b").mkdir()
        (tmp_path / "b/journal.jsonl").write_bytes((tmp_path / "a/journal.jsonl").read_bytes())
        run(options(source, tmp_path / "b", mill.url))
        run(options(source, tmp_path / "a", mill.url, concurrency=1))
        assert len(mill.log) == n
    assert outputs(tmp_path / "a") == outputs(tmp_path / "b")


def test_answers_are_reused_when_rows_move_or_are_added_and_asked_anew_for_another_model(tmp_path):
    source = write_rows(tmp_path / "a.jsonl", [raw_row(k) for k in range(4)])
    out = tmp_path / "out"
    with serving() as mill:
        run(options(source, out, mill.url))
        assert len(mill.log) == 12
        write_rows(source, [raw_row(k, license="other") for k in (3, 9, 1, 0, 2)])
        report, _ = run(options(source, out, mill.url))
        assert len(mill.log) == 15 and report["counts"]["annotated"] == 5
        run(options(source, out, mill.url, passes="low,low,high"))
        assert len(mill.log) == 20 and [r["license"] for r in lines(out / "annotated.jsonl")] == ["other"] * 5
        run(options(source, out, mill.url, model="n"))
        assert len(mill.log) == 35


def test_rows_that_staging_would_leave_out_are_not_paid_for(tmp_path):
    rows = [raw_row(k, turns=1 + k % 2) for k in range(10)]
    rows[3]["messages"][0]["content"] += "x" * 9000
    source = write_rows(tmp_path / "a.jsonl", rows)
    params = tmp_path / "params.yaml"
    data = {"select": {"turns": {1: 1.0}}, "max_first_prompt_tokens": 3500}
    params.write_text(yaml.safe_dump({"data": data, "policy": {"kind": "tiny"}}))
    with serving() as mill:
        report, _ = run(options(source, tmp_path / "out", mill.url, select=True, params=params))
        assert {a.row for a in mill.log} == {1, 5, 7, 9}
    assert report["reasons"]["rejected"] == {"not_selected": 5, "prompt_too_long": 1}


def test_a_server_that_dies_in_mid_run_ends_it_and_the_next_run_goes_on(tmp_path):
    source = write_rows(tmp_path / "a.jsonl", [raw_row(k) for k in range(40)])
    alive = threading.Event()

    def script(asked):
        return well(asked) if asked.n <= 20 or alive.is_set() else Says(hang_up=True)

    with serving(script) as mill:
        report, done = run(options(source, tmp_path / "out", mill.url, attempts=1))
        assert isinstance(done.error, EnvironmentUnready) and len(mill.log) < 60
        found = report["counts"]
        assert found["annotated"] + found["undecided"] == 40 and found["undecided"] > 0
        alive.set()
        report, done = run(options(source, tmp_path / "out", mill.url))
        paid = Counter((a.row, a.kind, a.effort) for a in mill.log if a.answered)
    assert report["counts"]["annotated"] == 40 and done.error is None
    assert len(paid) == 120 and set(paid.values()) == {1}


def test_a_server_that_refuses_everything_from_the_start_says_nothing_of_the_rows(tmp_path):
    source = write_rows(tmp_path / "a.jsonl", [raw_row(k) for k in range(12)])
    refusal = json.dumps({"error": {"message": "max_tokens is too large"}}).encode()
    with serving(lambda a: Says(status=400, raw=refusal)) as mill:
        report, done = run(options(source, tmp_path / "out", mill.url))
    assert report["counts"]["undecided"] == 12 and "refused_400_max_tokens" in str(done.error)
    with serving() as mill:
        report, _ = run(options(source, tmp_path / "out", mill.url))
    assert report["counts"]["annotated"] == 12


def test_a_budget_stops_new_calls(tmp_path):
    source = write_rows(tmp_path / "a.jsonl", [raw_row(k) for k in range(20)])
    with serving() as mill:
        prices = {"price_in": 1e3, "price_out": 0.0, "budget": 4.5}
        report, done = run(options(source, tmp_path / "out", mill.url, concurrency=1, **prices))
        assert len(mill.log) == 5 and done.over_budget
    assert report["counts"]["annotated"] == 1 and report["counts"]["undecided"] == 19
