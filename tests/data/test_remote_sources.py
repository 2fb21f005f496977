"""Rows of S3 and of the hub, from the server to the staged folder."""

import json

import pytest
from hub_kit import REVISION, Hub, served
from s3_kit import BUCKET
from s3_kit import served as s3_served

from envace.config import parse
from envace.data.schema import row_from_task
from envace.data.stage import stage
from envace.errors import DataError
from envace.worlds.desk.tasks import generate

ROWS = "".join(json.dumps(row_from_task(t)) + "\n" for t in generate(7, "train", 4))


@pytest.fixture(autouse=True)
def state(monkeypatch, tmp_path):
    monkeypatch.setenv("ENVACE_STATE", str(tmp_path / "state"))


def test_rows_under_an_s3_prefix_are_staged(monkeypatch, tmp_path):
    (tmp_path / "r.jsonl").write_text(ROWS)
    with s3_served(monkeypatch.setenv) as (client, _):
        client.upload_file(str(tmp_path / "r.jsonl"), BUCKET, "cm2/part/r.jsonl")
        client.upload_file(str(tmp_path / "r.jsonl"), BUCKET, "cm2/readme.txt")
        manifest = stage(parse({"data": {"source": "s3", "uri": f"s3://{BUCKET}/cm2"}}), tmp_path / "out")
        assert manifest["counts"]["kept"] == 4
        assert [f["name"] for f in manifest["source"]["files"]] == ["part/r.jsonl"]
        with pytest.raises(DataError, match="s3://gone/x"):
            stage(parse({"data": {"source": "s3", "uri": "s3://gone/x"}}), tmp_path / "out")


def test_rows_of_a_hub_data_set_are_staged_and_staged_again_without_the_hub(monkeypatch, tmp_path):
    (tmp_path / "r.jsonl").write_text(ROWS)
    hub = Hub({"rows.jsonl": (tmp_path / "r.jsonl").read_bytes(), "README.md": b"# rows"})
    params = parse({"data": {"source": "hub", "uri": "acme/rows", "revision": REVISION}})
    with served(hub):
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        first = stage(params, tmp_path / "out")
    assert first["counts"]["kept"] == 4 and first["source"]["licence"] == "cc-by-4.0"
    assert stage(params, tmp_path / "again") == first


def test_a_hub_that_cannot_be_reached_is_a_data_error(monkeypatch, tmp_path):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    params = parse({"data": {"source": "hub", "uri": "nobody/nothing", "revision": "0" * 40}})
    with pytest.raises(DataError, match="nobody/nothing"):
        stage(params, tmp_path / "out")
