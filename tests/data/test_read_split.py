"""Splits as the stages read them, and what is said of one that was not staged."""

from types import SimpleNamespace

import pytest

from envace.config import parse
from envace.data.stage import stage
from envace.errors import DataError, ParamsError
from envace.worlds.files.tasks import generate
from tasks.data import report_manifest
from tasks.rows import read_split


def run_of(tmp_path, **params):
    said, log = [], SimpleNamespace(tags=lambda values: None, degraded=True)
    heard = {"say": said.append, "metrics": said.append, "artifact": lambda name, text: None}
    return SimpleNamespace(params=parse(params), path=tmp_path.joinpath, log=log, told=said, **heard)


DESK = {"train_tasks": 4, "held_tasks": 2, "files_tasks": 3}


def test_a_staged_split_is_read_and_counted(tmp_path):
    run = run_of(tmp_path, desk=DESK)
    manifest = stage(run.params, tmp_path / "data/staged")
    assert read_split(run, "files") == generate(7, 3) and len(read_split(run, "train")) == 4
    report_manifest.fn(run, manifest)
    assert run.told[0] == "9 read, 4 train, 2 held, 3 files, 0 rejected"
    assert run.told[1]["data/files"] == 3


@pytest.mark.parametrize(
    ("split", "params", "words"),
    [
        ("unseen", {}, "unseen.parquet does not exist: desk.unseen_tasks is 0; set how many"),
        ("files", {}, "files.parquet does not exist: desk.files_tasks is 0; set how many"),
        ("files", {"desk": DESK}, "desk.files_tasks was 0 when the data was staged; run stage_data again"),
        ("unseen", {"data": {"source": "local", "uri": "x"}}, "data.source 'local' has no split unseen"),
        ("held", {}, "held.parquet does not exist"),
    ],
)
def test_a_split_that_was_not_staged_names_the_parameter(tmp_path, split, params, words):
    with pytest.raises(DataError, match=words):
        read_split(run_of(tmp_path, **params), split)


def test_the_users_worlds_are_known_before_rows_are_read(tmp_path):
    with pytest.raises(ParamsError, match="rollout.worlds.shop"):
        read_split(run_of(tmp_path, rollout={"worlds": {"shop": "no_such_module:Shop"}}), "held")
