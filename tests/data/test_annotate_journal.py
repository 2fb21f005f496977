"""The files under a run: sources of every ending, one that changes, and the journal with its one writer."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from annotate_kit import lines, options, raw_row, run, serving, write_rows

from envace.data.annotate.journal import Journal
from envace.data.annotate.rows import triage
from envace.data.check import check_row
from envace.errors import DataError, EnvironmentUnready


def test_rows_of_every_ending_in_a_folder_are_read(tmp_path):
    write_rows(tmp_path / "in/b.jsonl", [raw_row(0)])
    (tmp_path / "in/a.json").write_text(json.dumps([raw_row(1), raw_row(2)]))
    (tmp_path / "in/deep").mkdir()
    pq.write_table(pa.Table.from_pylist([raw_row(3)]), tmp_path / "in/deep/c.parquet")
    with serving() as mill:
        run(options(tmp_path / "in", tmp_path / "out", mill.url))
    rows = lines(tmp_path / "out/annotated.jsonl")
    assert [r["uuid"] for r in rows] == ["u-1", "u-2", "u-0", "u-3"] and all(check_row(r) == [] for r in rows)


def test_one_process_at_a_time_writes_a_folder(tmp_path):
    with Journal.open(tmp_path), pytest.raises(EnvironmentUnready, match="another process"):
        with Journal.open(tmp_path):
            pass


def test_a_line_cut_off_by_a_kill_is_dropped_and_a_damaged_one_is_named(tmp_path):
    record = {"key": "k", "reply": "x"}
    with Journal.open(tmp_path) as journal:
        journal.add(record)
    path = tmp_path / "journal.jsonl"
    with path.open("a") as f:
        f.write('{"key": "l", "rep')
    with Journal.open(tmp_path) as journal:
        assert journal.get("k") == record and journal.get("l") is None
        journal.add({**record, "key": "m"})
    assert len(lines(path)) == 2
    path.write_text("\0\0\n" + path.read_text())
    with pytest.raises(DataError, match="journal.jsonl:1 is damaged"), Journal.open(tmp_path):
        pass


def test_a_source_that_changes_in_between_is_an_error(tmp_path):
    source = write_rows(tmp_path / "a.jsonl", [raw_row(0), raw_row(1)])
    rows = triage(options(source, tmp_path / "out", "http://127.0.0.1:1"))
    write_rows(source, [raw_row(0)])
    with pytest.raises(DataError, match="changed while it was read"):
        list(rows.samples())
