"""Licence and source of every row: kept from the row, else from the parameters, else from the source;
counted."""

import json
import random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from test_cm2_rows import foreign_row
from test_forms import forms_of
from test_staging import local, write_jsonl

from envace.config import parse
from envace.data.stage import stage
from envace.data.store import SCHEMA, read_rows
from envace.data.verdicts import origin_of

UNSTATED = "as the source states"
ANNOTATOR = {"model": "a-model", "passes": ["low"], "price_usd": None}


def signed(uuid, **about):
    """An annotated row that says more of itself."""
    return {**forms_of(foreign_row(uuid))[0], **about}


def rows_by_id(out):
    return {
        r["uuid"]: r["extra_info"] for name in ("train", "held") for r in read_rows(out / f"{name}.parquet")
    }


def test_every_stored_row_names_its_licence_and_file(tmp_path):
    own = {"license": "cc-by-4.0", "generator": "Qwen3-235B-A22B", "annotator": ANNOTATOR}
    write_jsonl(
        tmp_path / "in/a.jsonl", [signed("u-0", **own), signed("u-1", license=""), foreign_row("u-2")]
    )
    write_jsonl(tmp_path / "in/deep/b.jsonl", [signed("u-3", licence="MIT"), "{"])
    manifest = stage(local(tmp_path / "in", held_share=0.25), tmp_path / "out")
    found = rows_by_id(tmp_path / "out")
    said = {k: tuple(found[k][name] for name in ("licence", "origin", "generator")) for k in sorted(found)}
    assert said == {
        "u-0": ("cc-by-4.0", "a.jsonl", "Qwen3-235B-A22B"),
        "u-1": (UNSTATED, "a.jsonl", None),
        "u-2": (UNSTATED, "a.jsonl", None),
        "u-3": ("MIT", "deep/b.jsonl", None),
    }
    assert (
        found["u-0"]["annotator"] == '{"model":"a-model","passes":["low"]}'
        and found["u-1"]["annotator"] is None
    )
    counts = manifest["counts"]
    assert counts["licences"] == {UNSTATED: 2, "MIT": 1, "cc-by-4.0": 1}
    assert counts["sources"] == {"a.jsonl": 3, "deep/b.jsonl": 1}
    assert manifest["source"]["licence"] == UNSTATED


def test_the_schema_holds_them_for_every_shard():
    extra = SCHEMA.field("extra_info").type
    assert {extra.field(name).type for name in ("licence", "origin", "generator", "annotator")} == {
        pa.string()
    }


def test_a_licence_in_the_parameters_is_that_of_rows_without_one(tmp_path):
    write_jsonl(
        tmp_path / "in/a.jsonl", [foreign_row(f"u-{k}") for k in range(3)] + [signed("v", license="MIT")]
    )
    manifest = stage(local(tmp_path / "in", licence="our terms"), tmp_path / "out")
    assert manifest["counts"]["licences"] == {"MIT": 1, "our terms": 3}
    assert manifest["source"]["licence"] == "our terms"


def test_desk_rows_are_the_projects_own(tmp_path):
    counts = stage(parse({"desk": {"train_tasks": 5, "held_tasks": 2}}), tmp_path)["counts"]
    assert counts["licences"] == {"Apache-2.0 (generated)": 7}
    assert counts["sources"] == {"desk/train": 5, "desk/held": 2}


def test_staged_rows_that_are_staged_again_keep_their_licence_and_makers(tmp_path):
    own = {"license": "cc-by-4.0", "generator": "g", "annotator": ANNOTATOR}
    write_jsonl(tmp_path / "in/a.jsonl", [signed(f"u-{k}", **own) for k in range(4)])
    stage(local(tmp_path / "in"), tmp_path / "one")
    stage(local(tmp_path / "one", patterns=["*.parquet"]), tmp_path / "two")
    before, after = rows_by_id(tmp_path / "one"), rows_by_id(tmp_path / "two")
    assert {e["origin"] for e in after.values()} == {"train.parquet", "held.parquet"}
    assert all(after[k] | {"origin": "a.jsonl"} == before[k] for k in before)


def test_the_order_of_rows_that_differ_in_their_licence_alone_changes_no_byte(tmp_path):
    rows = [signed(f"u-{k % 20}", license=name) for k, name in enumerate(("MIT", "cc-by-4.0", "") * 20)]
    for name in ("a", "b", "c"):
        write_jsonl(tmp_path / name / "r.jsonl", rows)
        random.Random(name).shuffle(rows)
        counts = stage(local(tmp_path / name), tmp_path / f"out-{name}")["counts"]
        assert counts["kept"] == 20 and counts["rejected_by_reason"] == {"duplicate_id": 40}
    for file in ("train.parquet", "held.parquet"):
        assert len({(tmp_path / f"out-{n}" / file).read_bytes() for n in ("a", "b", "c")}) == 1


def test_a_licence_decides_nothing_between_rows_that_differ(tmp_path):
    """Which of two dialogues of one id stays is the same whatever their licences say."""
    other = foreign_row("u-0")
    other["extra_info"]["messages"][-1]["content"] = "<think>\npolite\n</think>\n\nYou are welcome."
    kept = set()
    for name, licences in enumerate((("MIT", "cc0"), ("cc0", "MIT"), ("x", "y"))):
        rows = [{**row, "license": word} for row, word in zip((foreign_row("u-0"), other), licences)]
        write_jsonl(tmp_path / f"{name}/r.jsonl", [*rows, foreign_row("u-1"), foreign_row("u-2")])
        stage(local(tmp_path / f"{name}"), tmp_path / f"out-{name}")
        kept.add(rows_by_id(tmp_path / f"out-{name}")["u-0"]["messages"][-1]["content"])
    assert len(kept) == 1


def test_parquet_and_jsonl_state_the_same(tmp_path):
    rows = [signed("u-0", annotator=ANNOTATOR), signed("u-1"), signed("u-2", license="MIT")]
    (tmp_path / "p").mkdir()
    pq.write_table(
        pa.Table.from_pylist([{**dict.fromkeys(("license", "annotator")), **r} for r in rows]),
        tmp_path / "p/r.parquet",
    )
    write_jsonl(tmp_path / "j/r.jsonl", rows)
    for name in "pj":
        stage(local(tmp_path / name), tmp_path / f"out-{name}")
    p, j = rows_by_id(tmp_path / "out-p"), rows_by_id(tmp_path / "out-j")
    keys = ("licence", "generator", "annotator")
    assert [[p[u][k] for k in keys] for u in sorted(p)] == [[j[u][k] for k in keys] for u in sorted(j)]


@pytest.mark.parametrize(
    ("value", "kept"),
    [
        ("MIT", "MIT"),
        ("", None),
        (None, None),
        ({}, None),
        (["b", "a"], '["b","a"]'),
        ({"b": 1, "a": None}, '{"b":1}'),
    ],
)
def test_what_a_row_says_is_stored_as_text(value, kept):
    assert origin_of({"generator": value}, "a:1", "x")["generator"] == kept


def test_a_row_that_says_odd_things_of_itself_is_no_reason_to_stop():
    deep = json.loads("[" * 800 + "]" * 800)
    found = origin_of({"annotator": deep, "license": 3}, "odd:name.jsonl:12", "x")
    assert (
        found["origin"] == "odd:name.jsonl"
        and found["licence"] == "3"
        and isinstance(found["annotator"], str)
    )
