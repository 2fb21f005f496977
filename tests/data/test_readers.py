"""Rows of .json lists and .jsonl files: each with its place, none hidden by a broken one, in bounded
memory."""

import json
import tracemalloc

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envace.data import readers
from envace.data.readers import READERS
from envace.errors import DataError

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-9, 9)
    | st.text(max_size=6)
    | st.sampled_from(['"', "\\", "],{", "é\\u"]),
    lambda v: st.lists(v, max_size=3) | st.dictionaries(st.text(max_size=3), v, max_size=3),
    max_leaves=8,
)
ROWS = st.lists(st.dictionaries(st.text(max_size=3), VALUES, max_size=3), max_size=6)


def read(path, body):
    path.write_bytes(body if isinstance(body, bytes) else body.encode())
    return list(READERS[path.suffix](path, path.name))


@given(ROWS, st.sampled_from([None, 1]), st.booleans(), st.integers(1, 40))
@settings(max_examples=100, deadline=None)
def test_a_list_comes_back_whatever_its_layout_and_block(tmp_path_factory, rows, indent, ascii_only, block):
    path = tmp_path_factory.getbasetemp() / "list.json"
    whole, readers.BLOCK = readers.BLOCK, block
    try:
        got = read(path, json.dumps(rows, indent=indent, ensure_ascii=ascii_only))
    finally:
        readers.BLOCK = whole
    assert [r.row for r in got] == rows and not any(r.fault for r in got)
    assert [r.where for r in got] == [f"list.json:{k}" for k in range(len(rows))]


@given(ROWS, st.binary(min_size=1, max_size=2), st.integers(0, 400), st.booleans())
@settings(max_examples=100, deadline=None)
def test_a_damaged_list_never_raises_and_never_invents_rows(tmp_path_factory, rows, noise, at, cut):
    body = json.dumps(rows).encode()
    at = min(at, len(body))
    got = read(tmp_path_factory.getbasetemp() / "bad.json", body[:at] + noise + (b"" if cut else body[at:]))
    assert all((r.row is None) == (r.fault is not None) for r in got)


def test_a_broken_row_does_not_hide_the_rows_behind_it(tmp_path):
    got = read(tmp_path / "a.json", '[{"a": 1}, {"a": NaN}, {"a" 2}, 7, , {"a": 1}}, {"b": "x, ]"}]')
    assert [(r.row, r.fault is None) for r in got] == [
        ({"a": 1}, True),
        *[(None, False)] * 5,
        ({"b": "x, ]"}, True),
    ]


@pytest.mark.parametrize(
    ("body", "rows", "message"),
    [
        ('[{"a": 1}, {"b": ', 1, "cut short"),
        ('[{"a": 1}', 0, "cut short"),
        ('[{"a": 1}, "b', 1, "cut short"),
        ('[{"a": 1}] [{"b": 2}]', 1, "text follows the end"),
        ('[{"a": 1},]', 1, "is not JSON"),
        ('{"rows": [\n{"a": 1}]}', 0, "neither a list of rows nor a row a line"),
        ("hello", 0, "neither a list of rows nor a row a line"),
    ],
)
def test_a_file_that_is_cut_short_or_no_list_says_so(tmp_path, body, rows, message):
    got = read(tmp_path / "a.json", body)
    assert [r.row for r in got if not r.fault] == [{"a": 1}] * rows
    assert len(got) == rows + 1 and message in got[-1].fault.message


def test_rows_a_line_in_a_json_file_and_marks_at_the_start_are_read(tmp_path):
    lines = '\n{"a": 1}\n\n{"a": 2}\n'
    assert [r.row for r in read(tmp_path / "a.json", lines)] == [{"a": 1}, {"a": 2}]
    assert [r.where for r in read(tmp_path / "a.jsonl", lines)] == ["a.jsonl:2", "a.jsonl:4"]
    for name in ("b.json", "b.jsonl"):
        assert [r.row for r in read(tmp_path / name, b"\xef\xbb\xbf" + lines.strip().encode())] == [
            {"a": 1},
            {"a": 2},
        ]
    assert [r.row for r in read(tmp_path / "c.json", b'\xef\xbb\xbf [ {"a": 1} ]')] == [{"a": 1}]
    assert read(tmp_path / "d.json", "") == read(tmp_path / "d.json", " [ ] ") == []


def test_a_row_without_end_is_a_fault_not_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(readers, "LONGEST", 1 << 20)
    monkeypatch.setattr(readers, "BLOCK", 1 << 16)
    long = '{"a": "' + "x" * (4 << 20) + '"}'
    tracemalloc.start()
    listed = read(tmp_path / "a.json", f'[{{"b": 1}}, {long}, {{"b": 2}}]')
    lines = read(tmp_path / "a.jsonl", f'{{"b": 1}}\n{long}\n{{"b": 2}}\n')
    tracemalloc.stop()
    assert [r.row for r in listed] == [{"b": 1}, None] and "is longer than" in listed[-1].fault.message
    assert [(r.where, r.row) for r in lines] == [
        ("a.jsonl:1", {"b": 1}),
        ("a.jsonl:2", None),
        ("a.jsonl:3", {"b": 2}),
    ]


def test_a_long_list_is_read_in_little_memory(tmp_path):
    rows = [{"uuid": str(k), "text": "é" * 10_000, "more": [{"k": k}] * 20} for k in range(1_000)]
    (tmp_path / "a.json").write_text(json.dumps(rows, ensure_ascii=False), encoding="utf-8")
    tracemalloc.start()
    count = sum(
        raw.row["uuid"] == str(k) for k, raw in enumerate(READERS[".json"](tmp_path / "a.json", "a.json"))
    )
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert count == 1_000 and peak < 8 << 20 < (tmp_path / "a.json").stat().st_size


def test_maps_of_a_parquet_file_are_objects(tmp_path):
    arguments = pa.array([[("port", "oslo")], []], pa.map_(pa.string(), pa.string()))
    pq.write_table(pa.table({"arguments": arguments}), tmp_path / "a.parquet")
    rows = [raw.row for raw in READERS[".parquet"](tmp_path / "a.parquet", "a")]
    assert rows == [{"arguments": {"port": "oslo"}}, {"arguments": {}}]
    pq.write_table(
        pa.table({"m": pa.array([[("a", 1), ("a", 2)]], pa.map_(pa.string(), pa.int64()))}),
        tmp_path / "b.parquet",
    )
    with pytest.raises(DataError, match="duplicate"):
        list(READERS[".parquet"](tmp_path / "b.parquet", "b"))
