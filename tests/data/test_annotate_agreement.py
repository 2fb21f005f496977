"""How far a model's verdicts and labels agree with a person's, by numbers worked out by hand."""

import json
from pathlib import Path

import pytest
from annotate_kit import label, lines, write_rows

from envace.data.__main__ import main
from envace.data.annotate.agreement import agreement
from envace.data.annotate.kappa import compare
from envace.data.check import check_row
from envace.errors import DataError

SHIPPED = Path(__file__).resolve().parents[2] / "docs/agreement"


def by_hand(uuid, *items):
    return {"uuid": uuid, "items": [{"turn": t, "id": i, **more} for t, i, more in items]}


def annotated_rows(path, n):
    rows = [
        {"uuid": f"u-{k}", "checklists": [[turn["items"] for turn in label()["turns"]]]} for k in range(n)
    ]
    return write_rows(path, rows)


def test_agreement_is_exact_where_all_is_the_same_and_kappa_only_where_chance_leaves_room(tmp_path):
    rows = annotated_rows(tmp_path / "annotated.jsonl", 5)
    found = agreement(rows, rows)
    assert found["rows"] == {"hand": 5, "annotated": 5, "compared": 5} and found["items_only_by_hand"] == 0
    focus, verdict = found["fields"]["focus_on"], found["fields"]["verdict"]
    assert (focus["items"], focus["exact"], focus["kappa"], focus["kappa_low"]) == (30, 1.0, 1.0, 1.0)
    assert (verdict["exact"], verdict["kappa"], verdict["kappa_note"]) == (1.0, None, "one_value")


def test_kappa_is_what_the_textbook_says():
    pairs = [("y", "y")] * 20 + [("y", "n")] * 5 + [("n", "y")] * 10 + [("n", "n")] * 15
    found = compare({f"r{k}": [pair] for k, pair in enumerate(pairs)}, 7, 500)
    assert found["exact"] == pytest.approx(0.7) and found["kappa"] == pytest.approx(0.4)
    assert found["kappa_low"] < 0.4 < found["kappa_high"] and found == compare(
        {f"r{k}": [pair] for k, pair in enumerate(pairs)}, 7, 500
    )
    assert compare({"r": pairs}, 7, 500)["kappa_low"] is None


def test_rows_are_matched_by_name_and_what_one_file_lacks_is_counted(tmp_path, capsys):
    rows = annotated_rows(tmp_path / "annotated.jsonl", 3)
    hand = write_rows(
        tmp_path / "hand.jsonl",
        [
            by_hand(
                "u-2",
                (1, "C0", {"verdict": False, "focus_on": "assistant.tool_calls"}),
                (0, "C9", {"verdict": True}),
            ),
            by_hand("u-0", (0, "C1", {"verdict": True, "required_for_next_turn": False})),
            by_hand("stranger", (0, "C0", {"verdict": True})),
        ],
    )
    assert main(["agree", str(hand), str(rows), "--out", str(tmp_path / "agreement.json")]) == 0
    found = json.loads((tmp_path / "agreement.json").read_text())
    assert found["rows"] == {"hand": 3, "annotated": 3, "compared": 2} and found["items_only_by_hand"] == 1
    assert {n: (f["items"], f["exact"]) for n, f in found["fields"].items()} == {
        "verdict": (2, 0.5),
        "focus_on": (1, 1.0),
        "required_for_next_turn": (1, 0.0),
    }
    assert found["items_only_by_model"] == 10  # of 12 in the two rows
    said = capsys.readouterr().out
    assert (
        "2 rows compared (3 by hand, 3 annotated); items without a match: 1 by hand, 10 by the model" in said
    )


def test_files_that_cannot_be_compared_are_named(tmp_path):
    rows = annotated_rows(tmp_path / "annotated.jsonl", 1)
    strangers = write_rows(tmp_path / "hand.jsonl", [by_hand("x", (0, "C0", {"verdict": True}))])
    with pytest.raises(DataError, match="share no item"):
        agreement(strangers, rows)
    with pytest.raises(DataError, match="hand.jsonl:1 has neither accept"):
        agreement(write_rows(tmp_path / "hand.jsonl", [{"uuid": "u-0", "items": [{"id": "C0"}]}]), rows)
    with pytest.raises(DataError, match="cannot be read"):
        agreement(tmp_path / "none.jsonl", rows)


def test_what_the_shipped_example_shows_is_what_counting_by_hand_gives():
    """docs/agreement: 10 dialogues, 20 items labelled by hand, 17 of them also by the model."""
    assert sum(len(row.get("items", ())) for row in lines(SHIPPED / "hand.jsonl")) == 20
    assert all(check_row(row) == [] for row in lines(SHIPPED / "annotated.jsonl"))
    reasons = {str(f.reason) for row in lines(SHIPPED / "raw.jsonl") for f in check_row(row)}
    assert reasons == {"no_checklist"}
    found = agreement(SHIPPED / "hand.jsonl", SHIPPED / "annotated.jsonl")
    chosen = found["filter"]
    counts = {k: n for k, n in chosen.items() if k.startswith(("hand_", "not_"))}
    assert counts == {
        "hand_accepts_model_accepts": 6,
        "hand_accepts_model_rejects": 1,
        "hand_rejects_model_accepts": 1,
        "hand_rejects_model_rejects": 2,
        "not_decided_by_model": 0,
    }
    assert chosen["exact"] == pytest.approx(0.8) and chosen["kappa"] == pytest.approx((0.8 - 0.58) / 0.42)
    assert (found["items_only_by_hand"], found["items_only_by_model"]) == (1, 1)
    assert found["rows"] == {"hand": 10, "annotated": 7, "compared": 6}
    fields = found["fields"]
    assert {f["items"] for f in fields.values()} == {17}
    assert (
        fields["verdict"]["kappa"] == pytest.approx(0)
        and fields["verdict"]["kappa_note"] == "one_rater_one_value"
    )
    assert fields["required_for_next_turn"]["kappa"] == pytest.approx(30 / 47)
    assert fields["dependence"]["kappa"] == pytest.approx(28 / 62)
    assert fields["dependence"]["exact"] == pytest.approx((1 + 4 / 5 + 1 + 2 / 3 + 1 + 1) / 6)
    assert fields["weight"]["exact"] == pytest.approx((5 + 3 / 5) / 6)
    assert fields["weight"]["distance"] == pytest.approx(0.2 / 5 / 6)


def test_a_row_the_model_did_not_decide_on_is_counted_and_not_taken_for_a_rejection(tmp_path):
    hand = write_rows(tmp_path / "hand.jsonl", [{"uuid": f"u-{k}", "accept": k < 3} for k in range(6)])
    rows = annotated_rows(tmp_path / "annotated.jsonl", 2)
    none = agreement(hand, rows)["filter"]
    assert (none["rows"], none["not_decided_by_model"]) == (2, 4)
    assert (none["kappa"], none["kappa_note"]) == (None, "one_value")
    refused = [
        {"uuid": "u-3", "reason": "llm_filter"},
        {"uuid": "u-4", "reason": "role_order"},
        {"uuid": None, "reason": "bad_json"},
    ]
    write_rows(tmp_path / "rejected.jsonl", refused)
    found = agreement(hand, rows)["filter"]
    assert (found["rows"], found["hand_rejects_model_rejects"], found["not_decided_by_model"]) == (3, 1, 3)
    elsewhere = write_rows(tmp_path / "x.jsonl", [{"uuid": "u-2", "reason": "llm_filter"}])
    assert agreement(hand, rows, rejected=elsewhere)["filter"]["hand_accepts_model_rejects"] == 1


def test_every_reason_for_a_missing_kappa_has_a_name():
    same, one, both = [("a", "a")] * 4, [("a", "a"), ("a", "b")], [("a", "b"), ("b", "a"), ("a", "a")]
    assert compare({"r": same, "s": same}, 7, 50)["kappa_note"] == "one_value"
    assert compare({"r": one, "s": one}, 7, 50)["kappa_note"] == "one_rater_one_value"
    assert compare({"r": both}, 7, 50)["kappa_note"] == "one_row"
    rare = {"r": [("a", "a")], "z": [("b", "b")]}  # half of all draws hold both
    found = [compare(rare, seed, 101) for seed in range(20)]
    assert {f["kappa_note"] for f in found} == {"", "few_resamples"}
    assert all((f["kappa_low"] is None) == (f["kappa_note"] == "few_resamples") for f in found)
    assert compare({"r": both, "s": both}, 7, 50)["kappa_note"] == ""


def test_weights_are_compared_by_their_distance():
    found = compare({"r": [(0.5, 0.54), (0.5, 0.7)], "s": [(0.2, 0.2)]}, 7, 50, numbers=True)
    assert found["exact"] == pytest.approx((0.5 + 1) / 2)
    assert found["distance"] == pytest.approx((0.12 + 0) / 2) and found["kappa_note"] == "numbers"
