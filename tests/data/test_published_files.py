"""The finished set under the names its publishers give it, staged with the `paper` size's own parameters."""

import json
from dataclasses import replace
from pathlib import Path

import made_rows as rows
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from envace.config import load, parse
from envace.data.stage import stage
from envace.data.store import read_rows
from envace.errors import DataError, ParamsError

ROOT = Path(__file__).resolve().parents[2]
STEM = "checklist_annotated_rl_selected_by_stats_forverl"
DEALT = {
    "patterns": ["*_forverl_train.parquet", "*_forverl_val_small100.parquet"],
    "splits": {"train": "*_train.parquet", "held": "*_val_small100.parquet"},
}


def paper(folder, **data):
    """The `paper` size over a folder: no hub and no tokenizer of 8B parameters is at hand."""
    params = load(ROOT / "sizes/paper.yaml")
    source = {"source": "local", "uri": str(folder), "revision": "", **data}
    if "patterns" in source:
        source["patterns"] = tuple(source["patterns"])
    policy = replace(params.policy, kind="tiny", uri="", revision="")
    return replace(params, data=replace(params.data, **source), policy=policy)


def write_parquet(path, made):
    """As the publishers' converter does: types inferred."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(
        pa.Table.from_pylist([{k: v for k, v in r.items() if k != "checklists"} for r in made]), path
    )


def ids(out, split):
    return [r["uuid"] for r in read_rows(out / f"{split}.parquet")]


def test_the_whole_set_is_dealt_as_its_publishers_dealt_it(tmp_path):
    """The first 500 rows are held out, faulty ones counted; two of those and one behind them are left out."""
    made = [rows.good_row(k, 0) for k in range(520)]
    for k in (10, 499, 510):
        made[k]["extra_info"]["messages"][2]["content"] = "no thoughts"
    (tmp_path / "data/rl").mkdir(parents=True)
    (tmp_path / "data/rl" / f"{STEM}.json").write_text(json.dumps(made))
    (tmp_path / "data/rl" / f"{STEM}_train.parquet").write_bytes(
        b"not read: its rows are those of the whole set"
    )
    manifest = stage(paper(tmp_path), tmp_path / "out", workers=1)
    good = [r["uuid"] for k, r in enumerate(made) if k not in (10, 499, 510)]
    assert ids(tmp_path / "out", "held") == good[:498] and ids(tmp_path / "out", "train") == good[498:]
    assert manifest["counts"]["rejected_by_reason"] == {"no_thinking": 3}
    assert manifest["counts"]["sources"] == {f"data/rl/{STEM}.json": 517}


def test_the_dealt_files_are_followed(tmp_path):
    made = [rows.good_row(k, 1) for k in range(12)]
    write_parquet(tmp_path / "in" / f"{STEM}_train.parquet", made[4:])
    write_parquet(tmp_path / "in" / f"{STEM}_val_small100.parquet", made[:4])
    (tmp_path / "in" / f"{STEM}.json").write_text(json.dumps(made))  # no pattern names it
    manifest = stage(paper(tmp_path / "in", **DEALT), tmp_path / "out", workers=1)
    assert ids(tmp_path / "out", "train") == [r["uuid"] for r in made[4:]]
    assert ids(tmp_path / "out", "held") == [r["uuid"] for r in made[:4]]
    assert manifest["counts"]["sources"] == {f"{STEM}_train.parquet": 8, f"{STEM}_val_small100.parquet": 4}


def test_a_dialogue_that_stands_in_both_files_is_trained_on_or_held_out_but_not_both(tmp_path):
    made = [rows.good_row(k, 2) for k in range(6)]
    twin = {**made[0], "uuid": "~" + made[0]["uuid"]}
    write_parquet(tmp_path / "in/a_train.parquet", [*made[2:], made[1], twin])
    write_parquet(tmp_path / "in/a_held.parquet", made[:2])
    splits = {"train": "*_train.parquet", "held": "*_held.parquet"}
    counts = stage(
        paper(tmp_path / "in", patterns=["*.parquet"], splits=splits), tmp_path / "out", workers=1
    )["counts"]
    assert counts["rejected_by_reason"] == {"duplicate_id": 1, "duplicate_content": 1}
    assert sorted(ids(tmp_path / "out", "train") + ids(tmp_path / "out", "held")) == sorted(
        r["uuid"] for r in made
    )


@pytest.mark.parametrize(
    ("splits", "words"),
    [
        ({"train": "a*", "held": "b*"}, "no pattern of data.splits names c.jsonl, d.jsonl; leave"),
        ({"train": "[ac]*", "held": "[bcd]*"}, "more than one pattern of data.splits names c.jsonl; leave"),
        (
            {"train": "*", "held": "e*"},
            "data.splits.held is 'e\\*', which names no file of the source .a.jsonl, b",
        ),
    ],
)
def test_files_that_no_split_names_are_an_error_and_so_is_an_idle_pattern(tmp_path, splits, words):
    (tmp_path / "in").mkdir()
    for k, name in enumerate("abcd"):
        (tmp_path / "in" / f"{name}.jsonl").write_text(rows.line(k, 0, 0)[0] + "\n")
    params = parse({"data": {"source": "local", "uri": str(tmp_path / "in"), "splits": splits}})
    with pytest.raises(DataError, match=words):
        stage(params, tmp_path / "out")


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (
            {"source": "local", "uri": "x", "splits": {"train": "*"}},
            "names train; it must name the files of train and held",
        ),
        (
            {"source": "local", "uri": "x", "splits": {"train": "*", "held": "*", "test": "*"}},
            "names held, test, train",
        ),
        ({"source": "desk", "splits": {"train": "*", "held": "*"}}, "data.source 'desk' has none"),
    ],
)
def test_splits_that_cannot_be_meant_are_refused_before_anything_is_read(tmp_path, data, words):
    with pytest.raises(ParamsError, match=words):
        stage(parse({"data": data}), tmp_path)


def test_training_rows_of_dealt_files_are_thinned_and_held_ones_are_not(tmp_path):
    for name, numbers in (("train", range(6)), ("held", range(6, 9))):
        (tmp_path / f"in/{name}").mkdir(parents=True)
        lines = [rows.line(k, 3, 0)[0] + "\n" for k in numbers]
        (tmp_path / f"in/{name}/rows.jsonl").write_text("".join(lines))
    select = {"turns": {2: 1.0, 3: 0.0}}
    data = {
        "source": "local",
        "uri": str(tmp_path / "in"),
        "splits": {"train": "train/*", "held": "held/*"},
        "select": select,
    }
    counts = stage(parse({"data": data}), tmp_path / "out")["counts"]
    assert counts["held"] == 3 and 0 < counts["train"] == 6 - counts["rejected_by_reason"]["not_selected"]
