"""Staged rows as datasets in a real MLflow store."""

import hashlib
import json
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import mlflow.data
import pytest
from mlflow.exceptions import MlflowException

from envace.config import parse
from envace.data.stage import stage
from envace.track.dataset import log_datasets, splits
from envace.track.run_log import replay
from tasks.data import report_manifest
from tasks.rows import note_rows

PARAMS = parse({"policy": {"kind": "tiny"}, "desk": {"train_tasks": 4, "held_tasks": 2, "files_tasks": 3}})


@pytest.fixture(scope="module")
def staged(tmp_path_factory):
    """A staged folder; not to be changed."""
    folder = tmp_path_factory.mktemp("project") / "data/staged"
    stage(PARAMS, folder)
    return folder


@pytest.fixture
def own(staged, tmp_path):
    """A staged folder to be changed."""
    return shutil.copytree(staged, tmp_path / "data/staged")


def start(store):
    return store.start_run("stage_data", kind="stage")


def inputs(log) -> dict:
    """What the store holds of a run: {dataset name: (dataset, {tag: value})}."""
    found = log.client.get_run(log.run_id).inputs.dataset_inputs
    return {i.dataset.name: (i.dataset, {t.key: t.value for t in i.tags}) for i in found}


def manifest(folder: Path) -> dict:
    return json.loads((folder / "manifest.json").read_text())


def rewrite(folder: Path, **parts) -> None:
    (folder / "manifest.json").write_text(json.dumps(manifest(folder) | parts))


def test_a_run_holds_each_split_with_checksum_source_schema_and_counts(store, staged):
    log = start(store)
    log_datasets(log, staged, ("train", "held", "files"))
    held = inputs(log)
    assert {name: tags["mlflow.data.context"] for name, (_, tags) in held.items()} == {
        "desk-train": "training",
        "desk-held": "evaluation",
        "desk-files": "evaluation",
    }
    train, _ = held["desk-train"]
    whole = manifest(staged)["outputs"]["train.parquet"]["sha256"]
    assert len(train.digest) == 36 and whole.startswith(train.digest)
    md5 = hashlib.md5((staged / "train.parquet").read_bytes()).hexdigest()
    assert json.loads(train.source) == {"uri": "data/staged/train.parquet", "dvc_md5": md5, "sha256": whole}
    columns = {col["name"]: col["type"] for col in json.loads(train.schema)["mlflow_colspec"]}
    assert columns == {"uuid": "string", "messages": "array", "data_source": "string", "extra_info": "object"}
    profile = json.loads(train.profile)
    assert profile["rows"] == 4 and profile["bytes"] == (staged / "train.parquet").stat().st_size
    assert (profile["source_read"], profile["source_kept"], profile["source_rejected"]) == (9, 9, 0)
    assert profile["kind"] == "desk" and profile["licence"].startswith("Apache-2.0")


def test_mlflow_reads_the_dataset_back(store, staged):
    log = start(store)
    log_datasets(log, staged, ("held",))
    dataset, _ = inputs(log)["desk-held"]
    assert mlflow.data.get_source(dataset).uri == "data/staged/held.parquet"


def test_runs_on_the_same_rows_are_found_by_one_digest(store, staged):
    logs = [start(store) for _ in range(3)]
    for log, split in zip(logs, ("held", "held", "train")):
        log_datasets(log, staged, (split,))
        log_datasets(log, staged, (split,))  # a resumed stage says it again
        assert len(inputs(log)) == 1
    digest = inputs(logs[0])["desk-held"][0].digest
    found = store.client.search_runs([store.experiment], f"dataset.digest = '{digest}'", max_results=1000)
    assert {logs[0].run_id, logs[1].run_id} <= {r.info.run_id for r in found}
    assert logs[2].run_id not in {r.info.run_id for r in found}


def test_dvc_keeps_the_file_under_the_checksum_that_is_logged(own):
    def dvc(*args):
        subprocess.run(
            [sys.executable, "-m", "dvc", *args], cwd=own.parents[1], check=True, capture_output=True
        )

    dvc("init", "--no-scm", "-q")
    dvc("add", "-q", "data/staged")
    for s in splits(own, ("train", "held")):
        kept = own.parents[1] / ".dvc/cache/files/md5" / s.md5[:2] / s.md5[2:]
        assert kept.read_bytes() == (own / f"{s.split}.parquet").read_bytes()


def test_other_bytes_than_the_manifests_have_their_own_digest_and_no_counts(own):
    shutil.copy(own / "held.parquet", own / "train.parquet")
    (found,) = splits(own, ("train",))
    assert found.sha256 == manifest(own)["outputs"]["held.parquet"]["sha256"]
    assert found.profile["manifest"] == "is not of these rows" and "rows" not in found.profile


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"source": 3, "outputs": [], "counts": "x"}', None])
def test_rows_without_a_usable_manifest_are_named_by_their_bytes(own, text):
    (own / "manifest.json").unlink() if text is None else (own / "manifest.json").write_text(text)
    (found,) = splits(own, ("held",))
    assert found.name == "staged-held" and len(found.sha256) == 64


@pytest.mark.parametrize(
    ("uri", "name"),
    [
        ("owner/Some-Set_v1.0", "Some-Set_v1.0-held"),
        ("s3://bucket/rows/", "rows-held"),
        ("../<script>", "script-held"),
        ("..", "hub-held"),
    ],
)
def test_a_dataset_is_named_after_the_end_of_its_address(own, uri, name):
    rewrite(own, source={"kind": "hub", "uri": uri})
    assert splits(own, ("held",))[0].name == name


def test_secrets_of_an_address_do_not_reach_the_store(store, own):
    rewrite(own, source={"kind": "s3", "uri": "https://user:hunter22@store.example/rows"})
    log = start(store)
    log_datasets(log, own, ("unknown", "files"))
    (dataset, _) = inputs(log)["rows-files"]
    assert "hunter22" not in dataset.profile and "store.example/rows" in dataset.profile


def test_a_file_that_is_no_parquet_is_named_without_columns(store, own):
    (own / "held.parquet").write_bytes(b"PAR1 not really")
    log = start(store)
    log_datasets(log, own, ("held",))
    assert inputs(log)["desk-held"][0].schema in (None, "")


class Refusing:
    """A store that takes everything but datasets, as servers older than them do."""

    def __init__(self, client, gone=False):
        self.client, self.gone = client, gone

    def __getattr__(self, name):
        def refuse(*_, **__):
            raise MlflowException("no such endpoint\nat all")

        return refuse if self.gone or name == "log_inputs" else getattr(self.client, name)


def test_a_store_that_refuses_datasets_gets_tags_and_one_line_is_said(store, staged, capsys):
    log = start(store)
    log.client = Refusing(store.client)
    log_datasets(log, staged, ("train", "held"))
    assert capsys.readouterr().err == (
        "warning: MLflow took no dataset (no such endpoint); "
        "the run's tags data.<split> name the rows instead\n"
    )
    tags = store.client.get_run(log.run_id).data.tags
    whole = manifest(staged)["outputs"]["train.parquet"]["sha256"]
    assert tags["data.train"] == f"desk-train sha256 {whole}" and "data.held" in tags and not log.degraded


def test_a_store_that_went_away_gets_the_checksums_at_the_next_start(store, staged, capsys):
    log = start(store)
    log.client = Refusing(store.client, gone=True)
    log_datasets(log, staged, ("train",))
    log_datasets(log, staged, ("held",))  # away by now: not even tried
    assert log.degraded and capsys.readouterr().err.count("warning") == 1
    (buffer,) = (store.state / "mlflow-buffer").glob(f"{log.run_id}*.jsonl")
    lines = buffer.read_text().splitlines()
    buffer.write_text("\n".join(lines[1:]) + "\n")  # without its owner, as one whose process is gone
    assert replay(store.client, store.state) == 2
    assert {"data.train", "data.held"} <= store.client.get_run(log.run_id).data.tags.keys()


def test_staging_logs_what_it_left_out_and_its_splits(store, own):
    made = manifest(own)
    made["counts"] |= {"read": 21, "rejected": 3, "rejected_by_reason": {"bad_json": 1, "bad_weights": 2}}
    log, said = start(store), []
    run = SimpleNamespace(
        path=own.parents[1].joinpath,
        log=log,
        say=said.append,
        metrics=log.metrics,
        artifact=log.artifact,
    )
    report_manifest.fn(run, made)
    assert said[1].startswith("left out: 2 bad_weights, 1 bad_json; ")
    assert log.client.get_run(log.run_id).data.metrics["data/left_out.bad_weights"] == 2
    assert set(inputs(log)) == {"desk-train", "desk-held", "desk-files"}
    other = start(store)
    note_rows(SimpleNamespace(path=own.parents[1].joinpath, log=other), "train")
    assert set(inputs(other)) == {"desk-train"}
