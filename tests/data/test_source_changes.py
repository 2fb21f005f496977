"""A source that changed after it was staged is noticed by the pipeline."""

import json
import os
from functools import partial

import pytest
from s3_kit import BUCKET
from s3_kit import served as s3_served

from envace.config import parse
from envace.data.schema import row_from_task
from envace.data.source_changes import changes_since, must_stage_again
from envace.data.stage import stage
from envace.errors import DataError
from envace.worlds.desk.tasks import generate
from flows import reproduce
from flows._entry import run_command

ROWS = [json.dumps(row_from_task(t)) + "\n" for t in generate(7, "train", 6)]


def local(folder, **data):
    return parse({"data": {"source": "local", "uri": str(folder), **data}})


@pytest.fixture
def staged(tmp_path):
    """A folder of rows that was staged, with `.state` beside it."""
    (tmp_path / "rows").mkdir()
    (tmp_path / "rows/a.jsonl").write_text("".join(ROWS[:3]))
    (tmp_path / "rows/b.jsonl").write_text(ROWS[3])
    stage(local(tmp_path / "rows"), tmp_path / "staged", state=tmp_path / ".state")
    return tmp_path


def look(root, **data):
    return changes_since(local(root / "rows", **data), root / "staged")


def test_a_folder_that_is_as_it_was_is_no_drift_though_its_files_were_written_again(staged):
    assert look(staged) == []
    (staged / "rows/a.jsonl").write_text("".join(ROWS[:3]))
    os.utime(staged / "rows/a.jsonl", (1, 1))
    assert look(staged) == []


def test_every_change_of_a_folder_is_named(staged):
    (staged / "rows/a.jsonl").write_text("".join(ROWS[1:4]))
    (staged / "rows/b.jsonl").unlink()
    (staged / "rows/c.jsonl").write_text(ROWS[4])
    assert look(staged) == ["changed a.jsonl", "added c.jsonl", "removed b.jsonl"]


def test_other_parameters_are_no_drift_because_dvc_sees_them(staged):
    (staged / "rows/a.jsonl").write_text(ROWS[0])
    for changed in ({"revision": "2"}, {"patterns": ["*.jsonl"]}):
        assert look(staged, **changed) == []
    assert changes_since(parse({}), staged / "staged") == []
    assert changes_since(local(staged / "rows"), staged / "never") == []


def test_the_user_decides_what_a_change_means(staged):
    (staged / "rows/a.jsonl").write_text(ROWS[0])
    with pytest.raises(
        DataError,
        match="changed a.jsonl; for the new rows give data.revision another word or set "
        "data.accept_changed: true, to go on with the staged ones add --keep-rows",
    ):
        must_stage_again(local(staged / "rows"), staged / "staged", keep=False)
    again, said = must_stage_again(local(staged / "rows"), staged / "staged", keep=True)
    assert not again and said.endswith("changed a.jsonl; the staged rows are used")
    again, said = must_stage_again(local(staged / "rows", accept_changed=True), staged / "staged", keep=False)
    assert again and "so stage_data runs again" in said
    with pytest.raises(DataError, match="is not what was fetched from it before: changed a.jsonl"):
        stage(local(staged / "rows"), staged / "staged", state=staged / ".state")
    stage(local(staged / "rows", accept_changed=True), staged / "staged", state=staged / ".state")
    assert must_stage_again(local(staged / "rows"), staged / "staged", keep=False) == (False, "")


def test_a_source_that_cannot_be_asked_does_not_stop_what_is_staged(staged):
    (staged / "rows").rename(staged / "gone")
    again, said = must_stage_again(local(staged / "rows"), staged / "staged", keep=False)
    assert not again and "cannot be told (data.uri" in said and said.endswith("the staged rows are used")


def test_a_bucket_is_asked_for_its_listing_alone(monkeypatch, tmp_path):
    with s3_served(monkeypatch.setenv) as (client, relay):
        client.put_object(Bucket=BUCKET, Key="cm2/a.jsonl", Body="".join(ROWS).encode())
        given = parse({"data": {"source": "s3", "uri": f"s3://{BUCKET}/cm2"}})
        stage(given, tmp_path / "staged", state=tmp_path / ".state")
        relay.sent.clear()
        assert changes_since(given, tmp_path / "staged") == []
        assert b"list-type=2" in relay.sent and b"a.jsonl" not in relay.sent
        client.put_object(Bucket=BUCKET, Key="cm2/a.jsonl", Body="".join(ROWS[::-1]).encode())
        client.put_object(Bucket=BUCKET, Key="cm2/notes.txt", Body=b"x")
        assert changes_since(given, tmp_path / "staged") == ["changed a.jsonl"]


def test_the_pipeline_stops_before_anything_runs_when_the_source_changed(tmp_path, capsys):
    (tmp_path / "rows").mkdir()
    (tmp_path / "rows/a.jsonl").write_text("".join(ROWS[:3]))
    (tmp_path / "params.yaml").write_text(
        json.dumps({"data": {"source": "local", "uri": str(tmp_path / "rows")}})
    )
    stage(local(tmp_path / "rows"), tmp_path / "data/staged", state=tmp_path / ".state")
    (tmp_path / "rows/a.jsonl").write_text("".join(ROWS[:2]))
    work = partial(reproduce.run, tmp_path)
    assert run_command("reproduce", tmp_path / ".state", work) == DataError.exit_code
    assert "is not what data/staged was made from: changed a.jsonl" in capsys.readouterr().err
    assert reproduce.moved(local(tmp_path / "rows"), tmp_path, keep=True) == []
    followed = local(tmp_path / "rows", accept_changed=True)
    assert reproduce.moved(followed, tmp_path) == ["stage_data"]


def test_rows_are_kept_when_asked_though_the_parameters_accept_changes(staged):
    (staged / "rows/a.jsonl").write_text(ROWS[0])
    given = local(staged / "rows", accept_changed=True)
    again, said = must_stage_again(given, staged / "staged", keep=True)
    assert not again and said.endswith("changed a.jsonl; the staged rows are used")


def test_a_file_that_goes_while_it_is_looked_at_cannot_be_told(staged, monkeypatch):
    def gone(path):
        raise FileNotFoundError(2, "No such file or directory", str(path))

    monkeypatch.setattr("envace.data.fetch.sha256", gone)
    again, said = must_stage_again(local(staged / "rows"), staged / "staged", keep=False)
    assert not again and said.endswith("No such file or directory); the staged rows are used")
    assert "a.jsonl cannot be read" in said


def test_accepting_changes_is_no_part_of_what_was_staged(staged):
    before = (staged / "staged/manifest.json").read_text()
    stage(local(staged / "rows", accept_changed=True), staged / "again", state=staged / ".state")
    assert (staged / "again/manifest.json").read_text() == before
