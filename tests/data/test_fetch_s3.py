"""Objects of an S3 prefix: chosen, resumed, held to one version, and every refusal in one sentence."""

import json
import random
import threading
import time

import boto3
import fetch_kit
import pytest
from hub_kit import params
from s3_kit import BUCKET, guarded, served
from s3fs import S3FileSystem

from envace.data.fetch import fetch
from envace.errors import DataError

MB = 1 << 20
URI = f"s3://{BUCKET}/cm2"
BIG = random.Random(2).randbytes(20 * MB)


@pytest.fixture
def store(monkeypatch):
    with served(monkeypatch.setenv) as (client, relay):
        yield client, relay


def put(client, **objects):
    for name, body in objects.items():
        client.put_object(Bucket=BUCKET, Key=name, Body=body)


def given(**data):
    return params(**({"source": "s3", "uri": URI, "revision": ""} | data))


def bytes_of(fetched):
    return {f.name: (fetched.folder / f.name).read_bytes() for f in fetched.files}


def quiet(text):
    pass


def test_objects_below_the_prefix_arrive_page_after_page(store, tmp_path, monkeypatch):
    monkeypatch.setenv("MOTO_S3_DEFAULT_MAX_KEYS", "3")
    client, _ = store
    rows = {f"cm2/part/{k}.jsonl": b"{}\n" * k for k in range(8)}
    put(client, **rows, **{"cm2/readme.txt": b"x", "cm2-other/z.jsonl": b"{}", "cm2/.hidden/h.json": b"[]"})
    fetched = fetch(given(), tmp_path / "f", say=quiet)
    assert bytes_of(fetched) == {n.removeprefix("cm2/"): b for n, b in rows.items()}
    assert fetch(given(patterns=["part/[12].*"]), tmp_path / "g", say=quiet).files == fetched.files[1:3]
    one = fetch(given(uri=f"{URI}/part/5.jsonl"), tmp_path / "h", say=quiet)
    assert bytes_of(one) == {"5.jsonl": rows["cm2/part/5.jsonl"]}
    assert len(fetch(given(uri=f"s3://{BUCKET}"), tmp_path / "i", say=quiet).files) == 9


def test_a_killed_fetch_leaves_no_half_file_and_does_not_bring_twice_what_is_whole(store, tmp_path):
    client, relay = store
    put(client, **{"cm2/a.jsonl": b"{}\n", "cm2/b.parquet": BIG})
    relay.holds = 18 * MB
    process = fetch_kit.start(tmp_path / "f", source="s3", uri=URI, revision="")
    parts = (tmp_path / "f").glob
    fetch_kit.kill_when(process, lambda: any(p.stat().st_size > 8 * MB for p in parts("parts/*/b.parquet")))
    assert not (tmp_path / "f/files").exists() and not (tmp_path / "f/source.json").exists()
    relay.holds = 0
    relay.released.set()
    relay.sent.clear()
    fetched = fetch(given(), tmp_path / "f", say=quiet)
    assert bytes_of(fetched) == {"a.jsonl": b"{}\n", "b.parquet": BIG} and not [*parts("parts")]
    assert b"GET /rows/cm2/a.jsonl" not in relay.sent


@pytest.mark.parametrize("resets", [False, True])
def test_broken_connections_are_taken_up(store, tmp_path, resets):
    client, relay = store
    relay.resets = resets
    put(client, **{"cm2/b.parquet": BIG})
    relay.breaks = [9 * MB, 2 * MB]
    assert bytes_of(fetch(given(), tmp_path / "f", say=quiet)) == {"b.parquet": BIG} and not relay.breaks


def test_a_store_that_stays_broken_is_one_sentence_and_leaves_nothing(store, tmp_path, monkeypatch):
    monkeypatch.setattr(S3FileSystem, "retries", 2)
    client, relay = store
    put(client, **{"cm2/b.parquet": BIG})
    relay.breaks = [12 * MB] + [0] * 200
    with pytest.raises(DataError, match="http://127.* cannot be reached .*check the network") as e:
        fetch(given(), tmp_path / "f", say=quiet)
    assert "\n" not in str(e.value) and not (tmp_path / "f/files").exists()
    relay.breaks.clear()
    assert bytes_of(fetch(given(), tmp_path / "f", say=quiet)) == {"b.parquet": BIG}


@pytest.fixture
def replaced(store, monkeypatch):
    """Puts other bytes in the object's place while it is fetched."""
    client, relay = store
    put(client, **{"cm2/b.parquet": BIG})
    relay.holds = 8 * MB

    def replace():
        while relay.passed <= 8 * MB:
            time.sleep(0.01)
        other = boto3.client("s3", endpoint_url=f"http://{relay.to[0]}:{relay.to[1]}")
        put(other, **{"cm2/b.parquet": BIG[::-1]})
        relay.breaks, relay.holds = [0], 0
        relay.released.set()

    relay.forget()
    thread = threading.Thread(target=replace)
    thread.start()
    yield client
    thread.join()


def test_an_object_replaced_during_the_transfer_is_never_mixed(replaced, tmp_path):
    with pytest.raises(DataError, match="b.parquet.* (changed while it was being fetched|arrived damaged)"):
        fetch(given(), tmp_path / "f", say=quiet)
    assert bytes_of(fetch(given(), tmp_path / "f", say=quiet)) == {"b.parquet": BIG[::-1]}


def test_an_account_that_may_not_read_versions_gets_the_listed_one_by_its_etag(store, tmp_path, monkeypatch):
    client, relay = store
    client.put_bucket_versioning(Bucket=BUCKET, VersioningConfiguration={"Status": "Enabled"})
    put(client, **{"cm2/a.jsonl": b"{}\n"})
    get = S3FileSystem.get_file

    def no_versions(self, *args, version_id=None, **more):
        if version_id:
            raise PermissionError("Access Denied")
        return get(self, *args, **more)

    monkeypatch.setattr(S3FileSystem, "get_file", no_versions)
    fetched = fetch(given(), tmp_path / "f", say=quiet)
    assert bytes_of(fetched) == {"a.jsonl": b"{}\n"} and fetched.files[0].version


def test_versions_are_recorded_and_another_one_is_told(store, tmp_path):
    client, _ = store
    client.put_bucket_versioning(Bucket=BUCKET, VersioningConfiguration={"Status": "Enabled"})
    put(client, **{"cm2/a.jsonl": b"{}\n", "cm2/c.jsonl": b"{}\n"})
    before, _ = fetch(given(), tmp_path / "f", say=quiet).files
    assert before.version and json.loads((tmp_path / "f/source.json").read_text())["files"][0]["version"]
    put(client, **{"cm2/a.jsonl": b"{}\n", "cm2/b.jsonl": b"{}\n"})
    client.delete_object(Bucket=BUCKET, Key="cm2/c.jsonl")
    told = "changed a.jsonl; added b.jsonl; removed c.jsonl; set data.revision or data.uri"
    with pytest.raises(DataError, match=told):
        fetch(given(), tmp_path / "f", say=quiet)
    after = fetch(given(accept_changed=True), tmp_path / "f", say=quiet).files
    assert not (tmp_path / "f/files/c.jsonl").exists()
    assert [f.name for f in after] == ["a.jsonl", "b.jsonl"] and after[0].version != before.version


def test_a_complete_copy_serves_while_the_store_is_away(store, tmp_path, monkeypatch):
    client, _ = store
    put(client, **{"cm2/a.jsonl": b"{}\n"})
    first = fetch(given(), tmp_path / "f", say=quiet)
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    said = []
    assert fetch(given(), tmp_path / "f", say=said.append) == first
    assert "http://127.0.0.1:9 cannot be reached" in said[0] and "verified copy" in said[0]
    with pytest.raises(DataError, match="check the network and AWS_ENDPOINT_URL"):
        fetch(given(), tmp_path / "g", say=quiet)


def test_a_key_that_cannot_be_a_path_is_refused(store, tmp_path):
    put(store[0], **{"cm2//a.jsonl": b"{}"})
    with pytest.raises(DataError, match="has a file named '/a.jsonl', which cannot be a path here"):
        fetch(given(), tmp_path / "f", say=quiet)


def test_refusals_are_one_sentence_with_their_fix(store, tmp_path, monkeypatch):
    client, relay = store
    put(client, **{"cm2/readme.txt": b"x"})
    for uri, sentence in (
        ("s3://gone/x", "there is no bucket 'gone' at http://.*; correct data.uri or AWS_ENDPOINT_URL"),
        (f"s3://{BUCKET}/nothing", "no file that data.patterns .* .it holds none.; correct"),
        (URI, "no file that data.patterns .* .it holds readme.txt.; correct"),
        ("s3://a b/x", "bucket 'a b' .* cannot be read .*Invalid bucket name"),
        ("rows/cm2", "not an S3 address; write it as s3://bucket/prefix"),
    ):
        with pytest.raises(DataError, match=sentence) as e:
            fetch(given(uri=uri), tmp_path / "f", say=quiet)
        assert "\n" not in str(e.value)


def test_wrong_and_missing_credentials_are_one_sentence_with_their_fix(store, tmp_path, monkeypatch):
    _, relay = store
    for name in ("AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    with guarded(relay) as account:
        with pytest.raises(
            DataError, match="credentials are not valid for bucket 'rows' .*AWS_SECRET_ACCESS_KEY"
        ):
            fetch(given(), tmp_path / "f", say=quiet)
        for name, value in account.items():
            monkeypatch.setenv(name, value)
        with pytest.raises(
            DataError, match="no permission to list and read bucket 'rows' at http.* that may"
        ):
            fetch(given(), tmp_path / "f", say=quiet)
    for name in account:
        monkeypatch.delenv(name)
    with pytest.raises(DataError, match="there are no AWS credentials; set AWS_ACCESS_KEY_ID"):
        fetch(given(), tmp_path / "f", say=quiet)
