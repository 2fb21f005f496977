"""Which rows are annotated and what is said of the others: sources of every ending, the draw of --limit,
counts of rules, licences; and the journal with its one writer."""

import hashlib
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from annotate_kit import counts, lines, options, raw_row, run, serving, sorted_rows, write_rows

from envace.data.annotate.journal import open_journal
from envace.data.check import check_row
from envace.errors import EnvironmentUnready


def test_rows_of_every_ending_in_a_folder_are_read(tmp_path):
    write_rows(tmp_path / "in/b.jsonl", [raw_row(0)])
    (tmp_path / "in/a.json").write_text(json.dumps([raw_row(1), raw_row(2)]))
    (tmp_path / "in/deep").mkdir()
    pq.write_table(pa.Table.from_pylist([raw_row(3)]), tmp_path / "in/deep/c.parquet")
    with serving() as mill:
        run(options(tmp_path / "in", tmp_path / "out", mill.url))
    rows = lines(tmp_path / "out/annotated.jsonl")
    assert [r["uuid"] for r in rows] == ["u-1", "u-2", "u-0", "u-3"] and all(check_row(r) == [] for r in rows)


def drawn(n, rows, seed=7):
    """By the smallest hash of seed and id."""
    return set(sorted(rows, key=lambda k: hashlib.sha256(f"{seed}/u-{k}".encode()).digest())[:n])


def test_a_limit_sends_a_draw_by_seed_and_id_and_a_higher_one_goes_on(tmp_path):
    rows, out = [raw_row(k) for k in range(12)], tmp_path / "out"
    rows[4]["messages"].pop()
    fit = set(range(12)) - {4}
    assert drawn(3, fit) not in ({0, 1, 2}, drawn(3, fit, seed=8))
    with serving() as mill:
        report, _ = run(options(write_rows(tmp_path / "a.jsonl", rows), out, mill.url, limit=3))
        assert {a.row for a in mill.log} == drawn(3, fit) and report["sample"] == {"limit": 3, "seed": 7}
        assert report["counts"] == counts(12, annotated=3, rejected=1, not_sampled=8)
        run(options(write_rows(tmp_path / "b.jsonl", rows[::-1]), out, mill.url, limit=3))
        assert len(mill.log) == 9  # the same rows in another order
        run(options(tmp_path / "a.jsonl", out, mill.url, limit=5))
        assert {a.row for a in mill.log} == drawn(5, fit) and len(mill.log) == 15
    with serving() as mill:
        run(options(tmp_path / "a.jsonl", tmp_path / "other", mill.url, limit=3, seed=8))
        assert {a.row for a in mill.log} == drawn(3, fit, seed=8)


def test_every_rule_a_row_breaks_is_counted_and_processes_change_nothing(tmp_path, monkeypatch):
    rows = [raw_row(k) for k in range(40)]
    for k in (3, 4):
        rows[k]["messages"].pop()
    for k in (4, 5):
        rows[k]["messages"][0]["content"] = ""
    rows[6] = {**raw_row(6), "uuid": "u-0"}
    given = options(write_rows(tmp_path / "a.jsonl", rows), tmp_path, params=tmp_path / "params.yaml")
    monkeypatch.setattr("envace.data.annotate.raw_rows.CHUNK", 2)  # so that processes are worth starting
    found = []
    for workers in (1, 2):
        given.params.write_text(yaml.safe_dump({"data": {"workers": workers}}))
        found.append(sorted_rows(given))
    one, two = found
    assert one == two and len(one.samples) == 36
    assert one.reasons() == {"duplicate_id": 1, "empty_content": 1, "role_order": 2}
    assert one.hits == {"duplicate_id": 1, "empty_content": 2, "role_order": 2}


def test_a_row_without_a_licence_gets_that_of_its_source(tmp_path, monkeypatch):
    monkeypatch.setenv("ENVACE_STATE", str(tmp_path / "state"))
    rows, out = [raw_row(0), raw_row(1)], tmp_path / "out"
    del rows[0]["license"]
    uri = str(write_rows(tmp_path / "in/a.jsonl", rows).parent)
    (tmp_path / "params.yaml").write_text(
        yaml.safe_dump({"data": {"source": "local", "uri": uri, "licence": "cc-by-4.0"}})
    )
    with serving() as mill:
        report, _ = run(options(None, out, mill.url, params=tmp_path / "params.yaml"))
    bare, own = lines(out / "annotated.jsonl")
    assert bare["licence"] == "cc-by-4.0" and "licence" not in own and own["license"] == "CC BY 4.0"
    assert own["annotator"]["source"] == f"local {uri}" and report["source"]["licence"] == "cc-by-4.0"


def test_one_process_at_a_time_writes_a_folder(tmp_path):
    with open_journal(tmp_path), pytest.raises(EnvironmentUnready, match="another process"):
        with open_journal(tmp_path):
            pass


def test_a_line_cut_off_by_a_kill_or_damaged_is_left_out_and_counted(tmp_path):
    record, path = {"key": "k", "row": "r", "reply": "x"}, tmp_path / "journal.jsonl"
    with open_journal(tmp_path) as journal:
        journal.add(record)
    path.write_text("\0\0\n" + path.read_text() + '{"key": "l", "rep')
    with open_journal(tmp_path) as journal:
        assert journal.get("k") == record and journal.get("l") is None and journal.skipped == 2
        journal.add({**record, "key": "m"})
    with open_journal(tmp_path) as journal:
        assert [r["key"] for r in journal.of_row("r")] == ["k", "m"] and journal.skipped == 2
