"""A folder as a source, the choice of files, the place of what is fetched, and what people see of a transfer."""

import hashlib
import os
import pty
import subprocess
import sys
import termios

import pytest
from hub_kit import params

from envace.data import progress
from envace.data.fetch import fetch, place
from envace.data.fetched import Record, Wanted
from envace.data.sources import open_source
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
    fetched = fetch(given(folder, **data), folder / "unused")
    assert [f.name for f in fetched.files] == sorted(chosen) and fetched.folder == folder
    assert not (folder / "unused").exists()
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
            fetch(given(**{"uri": folder} | data), folder)


def test_rows_of_every_ending_come_with_their_place(folder):
    (folder / "b.json").write_text('[{"k": 0}, {"k": 1}]')
    with open_source(given(folder, patterns=["?.json*"])) as origin:
        rows = [(raw.where, raw.row) for raw in origin.rows]
    assert rows[-2:] == [("b.json:0", {"k": 0}), ("b.json:1", {"k": 1})]
    assert rows[:2] == [("a.jsonl:1", {}), ("a.jsonl:2", {})]
    assert [f["name"] for f in origin.about["files"]] == ["a.jsonl", "b.json"]


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
            want.check_names([name])
    assert not want.matches("../x.json") and not want.matches("a/../../x.json")


def test_a_damaged_record_and_an_unwritable_folder_are_one_sentence(tmp_path):
    (tmp_path / "source.json").write_text("{")
    with pytest.raises(DataError, match=r"source.json cannot be read .*; delete .* and run again"):
        Record.read(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(EnvironmentUnready, match="cannot write .*file/x"):
        fetch(params(), tmp_path / "file/x")


def test_without_a_terminal_a_transfer_is_a_line_now_and_then(monkeypatch):
    monkeypatch.setattr(progress, "EVERY_S", 0.0)
    said = []
    with progress.shown(said.append) as tell:
        assert said == []
        tell(1_500_000, 6_000_000, "a.jsonl")
    assert said == ["a.jsonl: 1.5 of 6.0 MB (25 %)"]


def test_on_a_terminal_a_transfer_is_a_bar():
    script = (
        "from envace.data.progress import shown\n"
        "with shown(print) as tell:\n    for k in range(1, 5): tell(k * 10**6, 4 * 10**6, 'a.jsonl')\n"
    )
    here, there = pty.openpty()
    termios.tcsetwinsize(there, (24, 80))
    subprocess.run(
        [sys.executable, "-c", script], stderr=there, check=True, env=os.environ | {"TQDM_DISABLE": "1"}
    )
    os.close(there)
    assert b"a.jsonl" in (seen := os.read(here, 1 << 16)) and b"4.00M/4.00M" in seen
