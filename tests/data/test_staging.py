"""Staging: counts that add up, bytes that repeat, rejects that explain themselves, files whole or absent."""

import json
import pickle
import re
from pathlib import Path
from types import SimpleNamespace

import pyarrow.parquet as pq
import pytest
from test_cm2_rows import TOOL, foreign_row
from test_forms import forms_of

from envace.config import parse
from envace.data.judged_rows import KeptEntry
from envace.data.prompt_length import prompt_counter
from envace.data.schema import row_from_task, task_from_row
from envace.data.split import deal
from envace.data.stage import stage
from envace.data.store import SCHEMA, read_rows, read_tasks, write_rows, write_tasks
from envace.errors import DataError, EnvironmentUnready
from envace.worlds.desk.tasks import generate
from envace.worlds.files.tasks import generate as files
from tasks.data import stage_rows

DESK = {"desk": {"train_tasks": 8, "held_tasks": 4}}


def local(folder, **more):
    return parse({"data": {"source": "local", "uri": str(folder), **more}})


def files_of(folder):
    return {f.name: f.read_bytes() for f in Path(folder).iterdir()}


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def write_jsonl(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(r if isinstance(r, str) else json.dumps(r) for r in rows) + "\n")


def test_selection_thins_training_and_leaves_what_the_source_set_aside(tmp_path):
    desk = {"train_tasks": 40, "held_tasks": 20, "unseen_tasks": 5}
    manifest = stage(parse({"desk": desk, "data": {"select": {"calls": {1: 1.0, 2: 1.0}}}}), tmp_path)
    counts = manifest["counts"]
    assert counts["held"] == 20 and counts["unseen"] == 5
    assert 0 < counts["train"] == 40 - counts["rejected_by_reason"]["not_selected"]
    assert all(sum(len(m.calls) for m in t.reference) > 2 for t in read_tasks(tmp_path / "train.parquet"))


def test_desk_rows_are_staged_as_the_generator_gave_them(tmp_path):
    manifest = stage(parse(DESK), tmp_path / "out")
    assert read_tasks(tmp_path / "out/train.parquet") == generate(7, "train", 8)
    assert read_tasks(tmp_path / "out/held.parquet") == generate(7, "held", 4)
    assert manifest["counts"]["read"] == manifest["counts"]["kept"] == 12
    assert manifest == json.loads((tmp_path / "out/manifest.json").read_text())
    assert set(files_of(tmp_path / "out")) == {
        "train.parquet",
        "held.parquet",
        "rejects.jsonl",
        "manifest.json",
    }


def test_other_splits_are_staged_where_they_are_asked_for_and_go_when_they_are_not(tmp_path):
    manifest = stage(parse({"desk": {**DESK["desk"], "files_tasks": 5}}), tmp_path)
    assert read_tasks(tmp_path / "files.parquet") == files(7, 5)
    assert read_tasks(tmp_path / "held.parquet") == generate(7, "held", 4)
    counts = manifest["counts"]
    assert (counts["train"], counts["held"], counts["files"], counts["kept"]) == (8, 4, 5, 17)
    assert manifest["outputs"]["files.parquet"]["rows"] == 5 and "unseen" not in counts
    again = stage(parse(DESK), tmp_path)
    assert not (tmp_path / "files.parquet").exists() and "files.parquet" not in again["outputs"]


def test_unseen_combinations_are_a_split_of_their_own(tmp_path):
    manifest = stage(parse({"desk": {**DESK["desk"], "unseen_tasks": 3}}), tmp_path)
    assert read_tasks(tmp_path / "unseen.parquet") == generate(7, "unseen", 3)
    assert manifest["counts"]["unseen"] == 3


def test_a_named_split_keeps_its_rows_and_may_not_come_out_empty():
    names = ("train", "held", "files")
    rows = [KeptEntry(k, f"{name}-{k}", name) for name in names for k in range(3)]
    splits = deal(rows, names, parse({}))
    assert {name: [r.uuid[:-2] for r in kept] for name, kept in splits.items()} == {n: [n] * 3 for n in names}
    with pytest.raises(DataError, match="no usable row .* for the split held"):
        deal([r for r in rows if r.split != "held"], names, parse({}))


def test_the_same_seed_gives_the_same_bytes_another_seed_others(tmp_path):
    stage(parse(DESK), tmp_path / "a")
    stage(parse(DESK), tmp_path / "b")
    stage(parse({"desk": {**DESK["desk"], "seed": 8}}), tmp_path / "c")
    a, b, c = (files_of(tmp_path / k) for k in "abc")
    assert a == b and a["train.parquet"] != c["train.parquet"]


def test_every_rejected_row_is_listed_with_place_reason_and_field(tmp_path):
    late = foreign_row("late")
    late["extra_info"]["interaction_kwargs"]["checklist_list"][0][0][0]["weight"] = 0.5
    long = foreign_row("long")
    long["messages"][0]["content"] = "x" * 50_000
    write_jsonl(
        tmp_path / "in/a.jsonl",
        [
            *(foreign_row(f"u-{k}") for k in range(20)),
            "{broken",
            '{"a": NaN}',
            "[]",
            late,
            long,
            foreign_row("u-3"),
        ],
    )
    manifest = stage(local(tmp_path / "in"), tmp_path / "out")
    rejects = lines(tmp_path / "out/rejects.jsonl")
    assert [(r["where"], r["reason"]) for r in rejects] == [
        ("a.jsonl:21", "bad_json"),
        ("a.jsonl:22", "bad_json"),
        ("a.jsonl:23", "bad_json"),
        ("a.jsonl:24", "bad_weights"),
        ("a.jsonl:25", "prompt_too_long"),
        ("a.jsonl:26", "duplicate_id"),
    ]
    assert rejects[3]["uuid"] == "late" and rejects[3]["field"].endswith("checklist_list[0][0]")
    counts = manifest["counts"]
    assert counts["read"] == counts["kept"] + counts["rejected"] == 26
    assert counts["train"] + counts["held"] == counts["kept"] == 20
    assert counts["rejected_by_reason"] == {
        "bad_json": 3,
        "bad_weights": 1,
        "duplicate_id": 1,
        "prompt_too_long": 1,
    }


def test_parquet_and_jsonl_of_the_same_rows_stage_alike(tmp_path):
    rows = [foreign_row(f"u-{k}") for k in range(30)]
    write_jsonl(tmp_path / "j/rows.jsonl", rows)
    (tmp_path / "p").mkdir()
    write_rows(tmp_path / "p/rows.parquet", rows)
    stage(local(tmp_path / "j"), tmp_path / "oj")
    stage(local(tmp_path / "p"), tmp_path / "op")
    for name in ("train.parquet", "held.parquet"):
        assert read_tasks(tmp_path / "oj" / name) == read_tasks(tmp_path / "op" / name)


def test_a_rows_side_depends_on_seed_and_id_only(tmp_path):
    def held(n, seed, out):
        write_jsonl(tmp_path / f"{out}-in/r.jsonl", [foreign_row(f"u-{k}") for k in range(n)])
        params = parse(
            {"seed": seed, "data": {"source": "local", "uri": str(tmp_path / f"{out}-in"), "held_share": 0.3}}
        )
        stage(params, tmp_path / out)
        return {r["uuid"] for r in read_rows(tmp_path / out / "held.parquet")}

    small, large, other = held(40, 1, "a"), held(80, 1, "b"), held(40, 2, "c")
    assert small == {u for u in large if int(u[2:]) < 40} and small != other
    assert len(held(2, 1, "d")) == 1


def test_the_bundled_policy_measures_prompts_with_its_own_tokenizer_and_template():
    count, how = prompt_counter(parse({"policy": {"kind": "bundled"}}))
    row, tool = row_from_task(task_from_row(foreign_row())), TOOL
    again = pickle.loads(pickle.dumps(count))  # as a worker process gets it
    chat = [{k: m[k] for k in ("role", "content")} for m in row["messages"]]
    ids = count.renderer.tokenizer.apply_chat_template(
        chat, tools=[tool], add_generation_prompt=True, return_dict=True, enable_thinking=False
    )
    assert count(row, [tool]) == again(row, [tool]) == len(ids["input_ids"]) and "bundled" in how


def test_missing_and_corrupt_data_are_one_clear_error(tmp_path):
    (tmp_path / "empty").mkdir()
    for uri, text in ((tmp_path / "absent", "not a folder"), (tmp_path / "empty", "holds no")):
        with pytest.raises(DataError, match=text):
            stage(local(uri), tmp_path / "out")
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad/x.parquet").write_bytes(b"PAR1 not parquet")
    with pytest.raises(DataError, match="not a readable parquet"):
        stage(local(tmp_path / "bad"), tmp_path / "out")
    with pytest.raises(DataError, match="does not exist"):
        read_tasks(tmp_path / "nothing.parquet")
    write_jsonl(tmp_path / "one/x.jsonl", [foreign_row(), "{"])
    with pytest.raises(DataError, match="1 usable row"):
        stage(local(tmp_path / "one"), tmp_path / "out")


def test_where_nothing_is_usable_the_rejects_stay_and_the_top_reasons_are_told(tmp_path):
    """A stage writes into a folder that goes when it fails."""
    write_jsonl(tmp_path / "in/a.jsonl", [*(forms_of(foreign_row(f"u-{k}"))[1] for k in range(5)), "{", "{"])
    run = SimpleNamespace(params=local(tmp_path / "in"), state=tmp_path / "state", say=lambda text: None)
    with pytest.raises(
        DataError, match="0 usable .*7 of 7 rows were left out .5 no_checklist, 2 bad_json.; "
    ) as e:
        stage_rows.fn(run, tmp_path / "data/staged")
    assert not list((tmp_path / "data/staged").iterdir())
    [said] = re.findall(r"; (\S+) says why$", str(e.value))
    assert Path(said) == tmp_path / "state/logs/stage_data.rejects.jsonl"
    assert [r["where"] for r in lines(Path(said))] == [f"a.jsonl:{k}" for k in range(1, 8)]


def test_without_a_state_folder_the_rejects_are_where_they_were_written(tmp_path):
    write_jsonl(tmp_path / "in/a.jsonl", ["{"] * 3)
    with pytest.raises(DataError, match=rf"3 of 3 rows .*; {tmp_path / 'out/rejects.jsonl'} says why"):
        stage(local(tmp_path / "in"), tmp_path / "out")
    assert len(lines(tmp_path / "out/rejects.jsonl")) == 3
    write_jsonl(tmp_path / "few/a.jsonl", [foreign_row()])
    with pytest.raises(DataError, match="1 usable .*; none was left out"):
        stage(local(tmp_path / "few"), tmp_path / "out")


def test_a_cut_off_file_is_a_clear_error(tmp_path):
    write_tasks(tmp_path / "t.parquet", generate(1, "train", 4))
    whole = (tmp_path / "t.parquet").read_bytes()
    (tmp_path / "t.parquet").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match="t.parquet is not a readable"):
        read_tasks(tmp_path / "t.parquet")


def test_a_failed_staging_leaves_no_manifest_and_no_scraps(tmp_path):
    stage(parse(DESK), tmp_path / "out")
    write_jsonl(tmp_path / "in/x.jsonl", ["{"])
    with pytest.raises(DataError):
        stage(local(tmp_path / "in"), tmp_path / "out")
    assert not (tmp_path / "out/manifest.json").exists()
    assert not [f for f in (tmp_path / "out").iterdir() if f.name.startswith(".")]


def test_an_unwritable_folder_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(EnvironmentUnready, match="cannot write"):
        stage(parse(DESK), tmp_path / "file")


def test_shards_share_one_schema(tmp_path):
    write_rows(tmp_path / "a.parquet", [foreign_row()])
    write_tasks(tmp_path / "b.parquet", generate(1, "train", 2))
    assert pq.read_schema(tmp_path / "a.parquet") == pq.read_schema(tmp_path / "b.parquet") == SCHEMA
