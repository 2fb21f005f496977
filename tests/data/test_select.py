"""Which rows stay: selection by difficulty, equal rows, splits; none of it depends on the order of the
rows."""

import random

import pytest
from test_cm2_rows import foreign_row
from test_staging import local, write_jsonl

from envace.config import parse
from envace.data.judged_rows import KeptEntry, judged_rows
from envace.data.schema import row_from_task, task_from_row
from envace.data.select import dropped, keep_share, read_ratios
from envace.data.sizes import EDGES, Histograms, RowSize, size_of
from envace.data.split import deal
from envace.data.stage import stage
from envace.data.store import read_rows
from envace.data.verdicts import KeptRow, RowVerdict
from envace.errors import DataError, ParamsError

AUTHORS = {
    "most_steps": {1: 0.3},
    "steps": {1: 0.2, 2: 0.3},
    "tools": {1: 0.7, 2: 0.4},
    "tools_used": {1: 0.4},
    "turns": {1: 0.4},
    "calls": {1: 0.3, 2: 0.3},
}


def size(**more):
    easy = dict(
        turns=1, steps=1, most_steps=1, calls=0, tools=1, tools_used=0, tokens=9, items=1, weights=[1.0]
    )
    return RowSize(**(easy | more))


def test_ratios_that_a_row_meets_are_multiplied():
    ratios = read_ratios(AUTHORS)
    assert keep_share(ratios, size()) == pytest.approx(0.7 * 0.8 * 0.3 * 0.6)
    hard = size(turns=3, steps=8, most_steps=4, calls=6, tools=9, tools_used=4)
    assert keep_share(ratios, hard) == 1
    assert keep_share(
        ratios, size(turns=2, steps=2, most_steps=1, calls=2, tools=2, tools_used=1)
    ) == pytest.approx(0.7 * 0.7 * 0.6 * 0.6 * 0.7)


def test_a_row_is_dropped_by_its_id_and_seed_alone_at_the_stated_rate():
    ratios, easy = read_ratios({"turns": {"1": 0.4}}), size()
    drops = [dropped(ratios, 1, f"u-{k}", easy) for k in range(20_000)]
    assert drops == [dropped(ratios, 1, f"u-{k}", easy) for k in range(20_000)]
    assert sum(drops) / 20_000 == pytest.approx(0.4, abs=0.015)
    assert drops != [dropped(ratios, 2, f"u-{k}", easy) for k in range(20_000)]
    assert not any(dropped({}, 1, f"u-{k}", easy) for k in range(100))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"turn": {1: 0.4}}, "'turn', must be one of most_steps"),
        ({"turns": 0.4}, "data.select.turns is 0.4, must map"),
        ({"turns": {1: 1.4}}, "maps 1 to 1.4"),
        ({"turns": {1.5: 0.4}}, "maps 1.5 to 0.4"),
        ({"turns": {1: True}}, "maps 1 to True"),
    ],
)
def test_ratios_that_cannot_be_used_are_named(given, words):
    with pytest.raises(ParamsError, match=words):
        read_ratios(given)


def test_a_row_is_measured():
    row = row_from_task(task_from_row(foreign_row()))
    assert size_of(row, 1, 40) == RowSize(
        turns=2,
        steps=3,
        most_steps=2,
        calls=1,
        tools=1,
        tools_used=1,
        tokens=40,
        items=2,
        weights=[1.0, 1.0],
        tags=[],
    )


def test_histograms_hold_every_number_once():
    sizes = [size(turns=k, tokens=300 * k, weights=[k / 100, 1 - k / 100]) for k in range(1, 60)]
    histograms = Histograms()
    for one in sizes:
        histograms.add(one)
    found = histograms.as_dict()
    assert set(found) == set(EDGES)
    assert sum(found["turns"]["counts"]) == 59 and sum(found["weights"]["counts"]) == 118
    assert found["turns"]["counts"][-1] == 40  # 20 and more
    assert all(len(h["edges"]) == len(h["counts"]) for h in found.values())


def verdict(place, uuid, content=b"", digest=b""):
    kept = KeptRow(uuid, "", False, digest or place.encode(), content or uuid.encode(), b"", b"")
    return RowVerdict(place, uuid, [], kept)


def settled(verdicts, distinct=False):
    """What stays, and what is left out for which row, by the places."""
    with judged_rows(":memory:") as rows:
        rows.add(verdicts)
        rows.settle(distinct)
        kept = sorted(verdicts[e.ordinal].where for e in rows.kept())
        return kept, sorted((r["where"], r["reason"], r["message"][-20:]) for r in rows.rejects())


def test_of_equal_rows_the_same_one_stays_in_any_order():
    rows = [
        verdict("r:0", "b", b"same", b"1"),
        verdict("r:1", "a", b"same", b"2"),
        verdict("r:2", "c", b"other", b"3"),
        verdict("r:3", "c", b"other", b"1"),
        verdict("r:4", "d", b"same", b"9"),
        verdict("r:5", "d", b"own", b"0"),
        verdict("r:6", "e"),
    ]
    for seed in range(20):
        random.Random(seed).shuffle(rows)
        kept, gone = settled(rows)
        assert kept == ["r:1", "r:3", "r:5", "r:6"]
        assert gone == [
            ("r:0", "duplicate_content", "d tools of 'a' (r:1)"),
            ("r:2", "duplicate_id", "f r:3, which is kept"),
            ("r:4", "duplicate_id", "f r:5, which is kept"),
        ]


def test_one_dialogue_may_stand_twice_where_the_source_vouches_for_it():
    rows = [verdict("r:0", "b", b"same"), verdict("r:1", "a", b"same"), verdict("r:2", "a", b"same")]
    kept, gone = settled(rows, distinct=True)
    assert kept == ["r:0", "r:1"] and [where for where, *_ in gone] == ["r:2"]


def dealt(rows, **data):
    """Ids by split."""
    splits = deal(rows, (), parse(data))
    return {name: [r.uuid for r in entries] for name, entries in splits.items()}


def test_a_split_by_hash_has_one_order_whatever_the_input_is():
    ids, data = [f"u-{k}" for k in range(200)], {"held_share": 0.2}
    rows = [KeptEntry(k, uuid, "") for k, uuid in enumerate(ids)]
    turned = [KeptEntry(k, uuid, "") for k, uuid in enumerate(ids[::-1])]
    straight = dealt(rows, data=data)
    assert straight == dealt(turned, data=data)
    assert straight != dealt(rows, seed=2, data=data)
    assert 20 <= len(straight["held"]) <= 60 and len(straight["held"]) + len(straight["train"]) == 200


def test_the_first_rows_may_be_held_out_instead():
    def first(n):
        return {"data": {"split": "first_n", "held_rows": n}}

    rows = [KeptEntry(k, f"u-{k}", "") for k in range(9)]
    assert dealt(rows, **first(2)) == {"held": ["u-0", "u-1"], "train": [f"u-{k}" for k in range(2, 9)]}
    del rows[1]  # it was rejected: the first two of the source are one row now, not the next one
    splits = dealt(rows, **first(2))
    assert splits["held"] == ["u-0"] and len(splits["train"]) == 7
    with pytest.raises(DataError, match="data.held_rows is 9, but all 8 usable rows are among the first 9"):
        dealt(rows, **first(9))
    with pytest.raises(DataError, match="no usable row .* for the split held"):
        dealt(rows[1:], **first(1))


def staged(tmp_path, **knobs):
    """Stage with these values in `data`."""
    params = local(tmp_path / "in")
    for key, value in knobs.items():
        object.__setattr__(params.data, key, value)
    return stage(params, tmp_path / "out")


def test_rows_not_selected_and_equal_rows_are_counted(tmp_path):
    rows = [foreign_row(f"u-{k}") for k in range(60)]
    same = foreign_row("u-5")
    same["uuid"] = "v-5"
    write_jsonl(tmp_path / "in/r.jsonl", [*rows, same, foreign_row("u-7")])
    manifest = staged(tmp_path, select={"turns": {2: 0.5}})
    counts = manifest["counts"]
    assert counts["steps"]["read"] == counts["steps"]["without_faults"] == 62
    assert (counts["steps"]["one_an_id"], counts["steps"]["distinct"]) == (61, 60)
    assert counts["steps"]["selected"] == counts["kept"] == 60 - counts["rejected_by_reason"]["not_selected"]
    assert 15 < counts["kept"] < 45 and counts["read"] == counts["kept"] + counts["rejected"]
    assert sum(manifest["statistics"]["turns"]["counts"]) == counts["kept"]


def test_options_reach_the_rules_and_the_split(tmp_path):
    write_jsonl(tmp_path / "in/r.jsonl", [foreign_row(f"u-{k}") for k in range(3)])
    row = foreign_row("bare")
    row["extra_info"]["messages"][3]["content"] = "4.1 m."
    write_jsonl(tmp_path / "in/s.jsonl", [row])
    assert staged(tmp_path)["counts"]["kept"] == 4
    assert staged(tmp_path, require_thinking=True)["counts"]["rejected_by_reason"] == {"no_thinking": 1}
    assert staged(tmp_path, strict_tool_schema=True)["counts"]["kept"] == 4
    assert staged(tmp_path, split="first_n", held_rows=1)["counts"]["held"] == 1
    assert [r["uuid"] for r in read_rows(tmp_path / "out/held.parquet")] == ["u-0"]


def test_other_rows_and_their_order_do_not_change_a_byte(tmp_path):
    rows = [foreign_row(f"u-{k}") for k in range(50)]
    for name, order in (("a", rows), ("b", rows[::-1])):
        write_jsonl(tmp_path / name / "r.jsonl", order)
        stage(local(tmp_path / name), tmp_path / f"out-{name}")
    for file in ("train.parquet", "held.parquet"):
        assert (tmp_path / "out-a" / file).read_bytes() == (tmp_path / "out-b" / file).read_bytes()
    assert len(read_rows(tmp_path / "out-a/train.parquet")) > 40
