"""What was fetched is kept beside the staged rows, stored once, and stands in for a download when the source
is gone."""

import json
import os
from types import SimpleNamespace

import pytest
from hub_kit import Hub, params, served

from envace.config import parse
from envace.data.fetch import place
from envace.data.raw_files import adopt_raw
from envace.data.schema import row_from_task
from envace.errors import DataError
from envace.worlds.desk.tasks import generate
from tasks.data import stage_rows

ROWS = "".join(json.dumps(row_from_task(t)) + "\n" for t in generate(7, "train", 6))
GONE = "http://127.0.0.1:9"


def staged(root, given):
    """Stage as the stage does; returns (manifest, what was said)."""
    said = []
    run = SimpleNamespace(params=given, state=root / ".state", say=said.append)
    return stage_rows.fn(run, root / "data/staged"), said


def files(root):
    return sorted(p.relative_to(root).as_posix() for p in root.rglob("*") if p.is_file())


@pytest.fixture
def hub(monkeypatch):
    with served(Hub({"data/a.jsonl": ROWS.encode(), "README.md": b"#"})) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        yield hub


def test_a_download_is_moved_beside_the_rows_and_not_fetched_or_rewritten_again(hub, tmp_path):
    staged(tmp_path, params())
    raw = tmp_path / "data/raw"
    assert files(raw) == ["files/data/a.jsonl", "source.json"]
    assert not (place(params(), tmp_path / ".state") / "files").exists()  # stored once
    before = [(raw / name).stat().st_ino for name in files(raw)]
    _, said = staged(tmp_path, params(held_share=0.5))
    assert "stand in for a download" in said[0] and len(hub.asked("a.jsonl")) == 1
    assert [(raw / name).stat().st_ino for name in files(raw)] == before


def test_the_rows_are_staged_anew_without_the_source(hub, tmp_path, monkeypatch):
    first, _ = staged(tmp_path, params(held_share=0.2))
    (tmp_path / "clone/data").mkdir(parents=True)
    os.rename(tmp_path / "data/raw", tmp_path / "clone/data/raw")  # as `dvc pull` leaves it: no .state
    monkeypatch.setenv("HF_ENDPOINT", GONE)
    again, said = staged(tmp_path / "clone", params(held_share=0.6))
    assert again["source"] == first["source"] and "verified copy" in " ".join(said)
    assert again["counts"]["kept"] == 6 and again["counts"]["held"] > first["counts"]["held"]


def test_damaged_files_are_not_taken_for_the_source(hub, tmp_path, monkeypatch):
    staged(tmp_path, params())
    (tmp_path / "data/raw/files/data/a.jsonl").write_bytes(b"{}\n")
    monkeypatch.setenv("HF_ENDPOINT", GONE)
    with pytest.raises(DataError, match="cannot be reached"):
        staged(tmp_path, params())
    monkeypatch.setenv("HF_ENDPOINT", hub.url)
    _, said = staged(tmp_path, params())
    assert "is damaged or gone; it is fetched again" in " ".join(said)
    assert (tmp_path / "data/raw/files/data/a.jsonl").read_text() == ROWS


def test_another_source_takes_the_place_and_the_first_is_still_there_to_go_back_to(
    hub, tmp_path, monkeypatch
):
    staged(tmp_path, params())
    staged(tmp_path, parse({}))
    assert files(tmp_path / "data/raw") == ["source.json"]
    assert json.loads((tmp_path / "data/raw/source.json").read_text()) == {"kind": "desk"}
    monkeypatch.setenv("HF_ENDPOINT", GONE)
    staged(tmp_path, params())
    assert files(tmp_path / "data/raw") == ["files/data/a.jsonl", "source.json"]


def test_of_a_folder_names_and_checksums_alone_are_kept(tmp_path):
    (tmp_path / "rows").mkdir()
    (tmp_path / "rows/a.jsonl").write_text(ROWS)
    given = parse({"data": {"source": "local", "uri": str(tmp_path / "rows")}})
    staged(tmp_path, given)
    said = json.loads((tmp_path / "data/raw/source.json").read_text())
    assert files(tmp_path / "data/raw") == ["source.json"] and said["complete"]
    assert [f["name"] for f in said["files"]] == ["a.jsonl"]


def test_a_download_that_has_got_nothing_new_yields_to_what_is_kept(hub, tmp_path):
    staged(tmp_path, params())
    raw, state = tmp_path / "data/raw", tmp_path / ".state"
    folder = place(params(), state)
    about = json.loads((raw / "source.json").read_text())
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "source.json").write_text(json.dumps(about | {"complete": False, "files": []}))
    adopt_raw(raw, state, print)
    assert (folder / "files/data/a.jsonl").read_text() == ROWS
