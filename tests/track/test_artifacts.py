"""Artifacts and registered policies in a real MLflow store, also after its folder was moved."""

import shutil
import sqlite3
from types import SimpleNamespace

import mlflow
import pytest

from envace.errors import DataError, EnvironmentUnready
from envace.io.redact import Redactor
from envace.policy.card import BUNDLED, write_card
from envace.track import lineage
from envace.track.run_log import RunLog
from envace.track.store import Store, default_uri
from envace.types import PolicyRef
from tasks import artifacts, registered
from tasks.data import data_card


@pytest.fixture
def own(tmp_path, monkeypatch):
    """A project with a policy and a store of its own."""
    monkeypatch.setenv("ENVACE_STATE", str(tmp_path / ".state"))
    monkeypatch.setattr(registered, "__file__", str(tmp_path / "tasks/registered.py"))
    store = Store(default_uri(tmp_path / ".state"), "envace", tmp_path / ".state", Redactor(environ={}))
    shutil.copytree(BUNDLED, tmp_path / "models/start")
    log = store.start_run("policy", kind="stage")
    return SimpleNamespace(
        name="policy",
        log=log,
        store=store,
        said=[],
        say=lambda text: None,
        artifact=log.artifact,
        path=tmp_path.joinpath,
    )


def test_an_exported_policy_is_a_version_that_one_line_loads(own, tmp_path, monkeypatch):
    ref = write_card(tmp_path / "models/start", PolicyRef(kind="bundled", uri="models/start", name="start"))
    for _ in range(2):
        artifacts.record_policy.fn(own, ref)
    version = own.store.client.get_model_version_by_alias("start", "current")
    assert version.version == 2 and version.tags["model.hash"] == ref.hash
    files = own.store.client.list_artifacts(own.log.run_id, "policy")
    assert all(f.file_size < 10_000 for f in files) and len(files) == 3  # no copy of the weights
    mlflow.set_tracking_uri(own.store.uri)
    loaded = mlflow.pyfunc.load_model("models:/start@current")
    (reply,) = loaded.predict(["Where is #kite?"])
    assert isinstance(reply, str)
    (tmp_path / "models/start/model.safetensors").write_bytes(b"others")
    with pytest.raises(DataError, match="holds other weights than this version"):
        mlflow.pyfunc.load_model("models:/start@current")


def test_artifacts_are_found_after_the_folder_was_moved(own, tmp_path):
    own.log.artifact("a/b.txt", "words")
    with sqlite3.connect(tmp_path / ".state/mlflow.db") as db:  # as a server writes it
        db.execute("update runs set artifact_uri = ?", (f"mlflow-artifacts:/{own.log.run_id}/artifacts",))
    moved = tmp_path / "elsewhere with a space"
    shutil.move(tmp_path / ".state", moved)
    store = Store(default_uri(moved), "envace", moved, Redactor(environ={}))
    uri = store.client.get_run(own.log.run_id).info.artifact_uri
    assert uri.startswith((moved / "mlartifacts").as_uri())
    assert mlflow.artifacts.load_text(f"{uri}/a/b.txt") == "words"


def test_an_artifact_holds_no_secret_and_a_store_without_them_stops_nothing(own, capsys):
    own.log.artifact("a.txt", "Authorization: Bearer abcdefgh1234")
    path = own.store.client.download_artifacts(own.log.run_id, "a.txt")
    assert "abcdefgh" not in open(path).read()
    gone = RunLog(mlflow.MlflowClient("http://127.0.0.1:9"), "0" * 32, own.store.state)
    gone.artifact("a.txt", "words")
    assert gone.register("start", "policy", {}) == "" and "MLflow took no a.txt" in capsys.readouterr().err


def test_a_data_card_names_source_files_and_what_was_left_out():
    manifest = {
        "source": {"kind": "hub", "uri": "owner/set", "licence": "MIT"},
        "outputs": {"train.parquet": {"rows": 4, "sha256": "ab" * 32}},
        "counts": {"read": 9, "rejected": 2, "rejected_by_reason": {"bad_json": 2}},
    }
    card = data_card(manifest)
    assert "owner/set" in card and "licence: MIT" in card and "| train.parquet | 4 |" in card
    assert "2 bad_json" in card


@pytest.mark.parametrize("text", ["stages: [", "stages: 3", "3"])
def test_a_damaged_lock_is_one_named_sentence(tmp_path, text):
    (tmp_path / "dvc.lock").write_text(text)
    with pytest.raises(EnvironmentUnready, match=r"dvc.lock is damaged"):
        lineage.stage_hash(tmp_path, "a")


def test_a_failing_sample_is_a_line_of_a_page():
    made = artifacts.page("1 of 2 <failed>", [{"task": "t1", "error": "<b>"}])
    assert "&lt;failed&gt;" in made and "<td>t1</td><td>&lt;b&gt;</td>" in made
