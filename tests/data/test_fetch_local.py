"""A folder as a source, the choice of files, the place of what is fetched, and what people see of a
transfer."""

import hashlib
import os
import pty
import subprocess
import sys
import termios
import time

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hub_kit import params

from envace.data import progress
from envace.data.fetch import fetch, place
from envace.data.progress import RowMeter
from envace.data.source_files import SourceRecord, Wanted
from envace.data.sources import open_source, read_files
from envace.errors import DataError, EnvironmentUnready

NAMES = (
    "a.jsonl",
    "b.json",
    "data/tool-1.parquet",
    "data/tool-2.parquet",
    "data/math-1.parquet",
    "data/deep/t.jsonl",
)
OTHERS = ("readme.md", ".cache/x.json", "data/.hidden.json", "rows.csv")


def given(uri, **data):
    return params(**({"source": "local", "uri": str(uri), "revision": ""} | data))


@pytest.fixture
def folder(tmp_path):
    for name in (*NAMES, *OTHERS):
        path = tmp_path / "in" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"{}\n" * len(name))
    return tmp_path / "in"


@pytest.mark.parametrize(
    ("patterns", "chosen"),
    [
        (None, NAMES),
        (["data/tool-*"], ("data/tool-1.parquet", "data/tool-2.parquet")),
        (
            ["data/"],
            ("data/tool-1.parquet", "data/tool-2.parquet", "data/math-1.parquet", "data/deep/t.jsonl"),
        ),
        (["*.jsonl", "b.*"], ("a.jsonl", "b.json", "data/deep/t.jsonl")),
        (["*-[12].parquet"], ("data/tool-1.parquet", "data/tool-2.parquet", "data/math-1.parquet")),
        (["*"], NAMES),
    ],
)
def test_patterns_choose_files_of_known_endings(folder, patterns, chosen):
    data = {} if patterns is None else {"patterns": patterns}
    fetched = fetch(given(folder, **data), folder.parent / "f")
    assert [f.name for f in fetched.files] == sorted(chosen) and fetched.folder == folder
    assert not (folder.parent / "f/files").exists()
    assert all(f.sha256 == hashlib.sha256((folder / f.name).read_bytes()).hexdigest() for f in fetched.files)


def test_a_folder_that_is_not_there_or_holds_nothing_or_other_bytes_is_one_sentence(folder):
    for data, sentence in (
        ({"uri": "gone"}, "data.uri 'gone' is not a folder"),
        (
            {"patterns": ["*.txt", "c.json"]},
            r"name and that ends in .json, .jsonl, .parquet \(it holds .* and 5 more\)",
        ),
        (
            {"sha256": {"a.jsonl": "0" * 64}},
            "a.jsonl of data.uri .* has sha256 [0-9a-f]{64}, data.sha256 expects 000",
        ),
        (
            {"sha256": {"c.jsonl": "0" * 64}},
            "data.sha256 names 'c.jsonl', which is not among the source's files",
        ),
    ):
        with pytest.raises(DataError, match=sentence):
            fetch(given(**{"uri": folder} | data), folder.parent / "f")


def test_rows_of_every_ending_come_with_their_place(folder):
    (folder / "b.json").write_text('[{"k": 0}, {"k": 1}]')
    with open_source(given(folder, patterns=["?.json*"])) as origin:
        rows = [(raw.where, raw.row) for raw in origin.rows]
    assert rows[-2:] == [("b.json:0", {"k": 0}), ("b.json:1", {"k": 1})]
    assert rows[:2] == [("a.jsonl:1", {}), ("a.jsonl:2", {})]
    assert [f["name"] for f in origin.about["files"]] == ["a.jsonl", "b.json"]


def change(folder):
    (folder / "a.jsonl").write_bytes(b"[]\n" * len("a.jsonl"))  # as long as before
    (folder / "new.json").write_text("[]")
    (folder / "b.json").unlink()


def test_a_folder_that_changed_since_its_last_use_is_told_and_taken_only_on_request(folder, tmp_path):
    first = fetch(given(folder), tmp_path / "f")
    assert fetch(given(folder), tmp_path / "f") == first
    change(folder)
    with pytest.raises(
        DataError,
        match="is not what was fetched from it before: changed a.jsonl; added new.json; removed b.json; set "
        "data.revision or data.uri to what you mean, or data.accept_changed: true",
    ):
        fetch(given(folder), tmp_path / "f")
    said = []
    taken = fetch(given(folder, accept_changed=True), tmp_path / "f", say=said.append)
    assert "data.accept_changed takes it as it is now" in said[0] and len(taken.files) == len(NAMES)
    assert fetch(given(folder), tmp_path / "f") == taken


def test_another_revision_of_a_folder_is_another_memory(folder, tmp_path):
    before, after = given(folder), given(folder, revision="2")
    fetch(before, place(before, tmp_path))
    change(folder)
    fetch(after, place(after, tmp_path))
    with pytest.raises(DataError, match="changed a.jsonl"):
        fetch(before, place(before, tmp_path))


def test_the_place_follows_what_is_asked_for(tmp_path, monkeypatch):
    monkeypatch.setenv("ENVACE_STATE", str(tmp_path))
    one = place(params())
    assert one.parent == tmp_path / "data" and place(params()) == one
    others = [params(uri="a/b"), params(revision="f" * 40), params(patterns=["x"]), params(source="s3")]
    assert len({place(p) for p in others} | {one}) == 5
    assert place(params(sha256={"a": "b"}, accept_changed=True)) == one
    assert place(params(), tmp_path / "other").parent == tmp_path / "other/data"


def test_names_that_cannot_be_paths_are_refused():
    want = Wanted.of(params())
    for name in ("a//b.json", "/etc/x.json", "a\0.json"):
        assert want.matches(name)
        with pytest.raises(DataError, match="cannot be a path here"):
            want.check_names([name], [name])
    assert not want.matches("../x.json") and not want.matches("a/../../x.json")


def test_a_damaged_record_and_an_unwritable_folder_are_one_sentence(tmp_path):
    (tmp_path / "source.json").write_text("{")
    with pytest.raises(DataError, match=r"source.json cannot be read .*; delete .* and run again"):
        SourceRecord.read(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(EnvironmentUnready, match="cannot write .*file/x"):
        fetch(params(), tmp_path / "file/x")


def test_without_a_terminal_a_transfer_is_a_whole_line_now_and_then(monkeypatch):
    monkeypatch.setattr(progress, "EVERY_S", 0.01)
    said = []
    with progress.bar_class(said.append)(total=6_000_000, unit="B", unit_scale=True, desc="a.jsonl") as bar:
        assert said == []
        time.sleep(0.02)
        bar.update(1_500_000)
        time.sleep(0.02)
        bar.update(1_000_000)
    assert [line.partition("%")[0] for line in said] == ["a.jsonl:  25", "a.jsonl:  42"]
    assert "2.50M/6.00M" in said[1] and not any("\r" in line for line in said)


def test_reading_rows_says_how_much_of_the_source_is_read_and_how_long_the_rest_takes(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    said = []
    meter = RowMeter(said.append)
    for k in range(1, 2001):
        now[0] = k / 100
        meter(k / 8000)
    assert said == [
        "1,000 rows read (12 % of the source), 100 a second, 70 s left",
        "2,000 rows read (25 % of the source), 100 a second, 60 s left",
    ]


def test_the_share_that_is_read_counts_bytes_over_all_files(tmp_path):
    rows = "".join(f'{{"k": {k}}}\n' for k in range(4))
    (tmp_path / "a.jsonl").write_text(rows)
    pq.write_table(pa.table({"k": [1, 2, 3, 4]}), tmp_path / "b.parquet")
    a, b = (f.stat().st_size for f in (tmp_path / "a.jsonl", tmp_path / "b.parquet"))
    heard = []
    files = [(tmp_path / n, n) for n in ("a.jsonl", "b.parquet")]
    assert len(list(read_files(files, heard.append))) == 8
    steps = [k * a / 4 for k in range(1, 5)] + [a + k * b / 4 for k in range(1, 5)]
    assert heard == pytest.approx([s / (a + b) for s in steps])


def test_on_a_terminal_a_transfer_is_a_bar():
    script = (
        "from envace.data import progress\nprogress.EVERY_S = 0\n"
        "with progress.bar_class(print)(total=4 * 10**6, unit_scale=True, desc='a.jsonl', mininterval=0) as "
        "bar:\n"
        "    for _ in range(4): bar.update(10**6)\n"
    )
    here, there = pty.openpty()
    termios.tcsetwinsize(there, (24, 80))
    env = os.environ | {"TQDM_DISABLE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=there, check=True, env=env
    )
    os.close(there)
    assert b"4.00M/4.00M" in os.read(here, 1 << 16) and done.stdout == b""
