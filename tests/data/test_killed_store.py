"""Stores and clients that are killed in mid-transfer: what is staged in the end is byte for byte the same."""

import json
import random
import re

import fetch_kit
import pytest
from hub_kit import ID, REVISION, params
from s3_kit import BUCKET
from store_kit import Store, stopped_at_last

from envace.data.fetch import place
from envace.data.schema import row_from_task
from envace.data.stage import stage
from envace.worlds.desk.tasks import generate

MB = 1 << 20
SLOW = 2 * MB  # bytes a second
DATA = {
    "hub": {"source": "hub", "uri": ID, "revision": REVISION},
    "s3": {"source": "s3", "uri": f"s3://{BUCKET}/cm2", "revision": ""},
}


@pytest.fixture
def folder(tmp_path):
    """Two files of rows, 8 MB together, most of it in a field that staging ignores."""
    dice = random.Random(3)
    lines = [
        json.dumps(row_from_task(t) | {"noise": dice.randbytes(64 << 10).hex()}) + "\n"
        for t in generate(7, "train", 60)
    ]
    (tmp_path / "files/data").mkdir(parents=True)
    (tmp_path / "files/data/a.jsonl").write_text("".join(lines[:10]))
    (tmp_path / "files/data/b.jsonl").write_text("".join(lines[10:]))
    return tmp_path / "files"


def outputs(out):
    return {p.name: p.read_bytes() for p in out.iterdir()}


@pytest.mark.parametrize("kind", ["hub", "s3"])
def test_a_killed_store_and_a_killed_client_change_no_byte_of_what_is_staged(
    kind, folder, tmp_path, monkeypatch
):
    monkeypatch.setattr("envace.data.fetch.PAUSE_S", 0.05)
    with stopped_at_last(Store(kind, folder)) as store:
        for name, value in {
            "HF_ENDPOINT": store.url, "AWS_ENDPOINT_URL": store.url, "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test", "AWS_DEFAULT_REGION": "us-east-1",
        }.items():  # fmt: skip
            monkeypatch.setenv(name, value)
        given, state = params(**DATA[kind]), tmp_path / "state"
        store.start()
        manifest = stage(given, tmp_path / "whole", state=tmp_path / "other", say=lambda text: None)
        store.kill()

        parts = place(given, state)
        store.start(SLOW)
        client = fetch_kit.start_staging(tmp_path / "out", state, **DATA[kind])
        fetch_kit.wait_until(client, lambda: fetch_kit.part_bytes(parts) > 2 * MB)  # of the second file
        store.kill()  # the client holds out
        first = fetch_kit.part_bytes(parts)
        store.start(SLOW)
        fetch_kit.kill_when(client, lambda: fetch_kit.part_bytes(parts) > first + MB)
        store.kill()
        kept = fetch_kit.part_bytes(parts)
        assert not (tmp_path / "out/train.parquet").exists()

        store.start()
        said = []
        assert stage(given, tmp_path / "out", state=state, say=said.append) == manifest
    going_on = [int(n) for n in re.findall(r"going on at byte (\d+)", " ".join(said))]
    assert going_on == [kept] and kept > first > 2 * MB
    assert outputs(tmp_path / "out") == outputs(tmp_path / "whole") and manifest["counts"]["kept"] == 60


def test_a_client_whose_store_stays_away_ends_with_a_reason_and_the_next_one_goes_on(
    folder, tmp_path, monkeypatch
):
    with stopped_at_last(Store("hub", folder)) as store:
        monkeypatch.setenv("HF_ENDPOINT", store.url)
        given, state = params(**DATA["hub"]), tmp_path / "state"
        store.start(SLOW)
        client = fetch_kit.start_staging(tmp_path / "out", state, pause_s=0.01, **DATA["hub"])
        fetch_kit.wait_until(client, lambda: fetch_kit.part_bytes(place(given, state)) > MB)
        store.kill()
        said, _ = client.communicate(timeout=60)
        assert client.returncode == 2 and f"the hub cannot be reached at {store.url}" in said
        store.start()
        assert stage(given, tmp_path / "out", state=state, say=lambda text: None)["counts"]["kept"] == 60
