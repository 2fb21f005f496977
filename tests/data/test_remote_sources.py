"""S3 against an in-process server; the hub without a network."""

import boto3
import pytest
from moto.server import ThreadedMotoServer
from test_staging import write_jsonl

from envace.data.stage import stage
from envace.errors import DataError
from envace.params import parse


@pytest.fixture
def s3(monkeypatch):
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    client = boto3.client("s3")
    client.create_bucket(Bucket="rows")
    yield client
    server.stop()


def test_rows_under_an_s3_prefix_are_staged(s3, tmp_path):
    from test_cm2_rows import foreign_row

    write_jsonl(tmp_path / "r.jsonl", [foreign_row(f"u-{k}") for k in range(4)])
    s3.upload_file(str(tmp_path / "r.jsonl"), "rows", "cm2/part/r.jsonl")
    s3.upload_file(str(tmp_path / "r.jsonl"), "rows", "cm2/readme.txt")
    manifest = stage(parse({"data": {"source": "s3", "uri": "s3://rows/cm2"}}), tmp_path / "out")
    assert manifest["counts"]["kept"] == 4
    assert [f["name"] for f in manifest["source"]["files"]] == ["part/r.jsonl"]
    with pytest.raises(DataError, match="s3://gone/x"):
        stage(parse({"data": {"source": "s3", "uri": "s3://gone/x"}}), tmp_path / "out")


def test_a_hub_that_cannot_be_reached_is_a_data_error(monkeypatch, tmp_path):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    params = parse({"data": {"source": "hub", "uri": "nobody/nothing", "revision": "0" * 40}})
    with pytest.raises(DataError, match="nobody/nothing"):
        stage(params, tmp_path / "out")
