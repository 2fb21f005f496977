"""Objects of an S3 prefix: chosen, resumed, held to one version, and every refusal in one sentence."""

import json
import random

import fetch_kit
import pytest
from hub_kit import params
from s3_kit import BUCKET, guarded, served
from s3fs import S3FileSystem

from envace.data import fetch as module
from envace.data.fetch import fetch
from envace.errors import DataError

MB = 1 << 20
URI = f"s3://{BUCKET}/cm2"
BIG = random.Random(2).randbytes(20 * MB)


@pytest.fixture
def store(monkeypatch):
    monkeypatch.setattr(module, "PAUSE_S", 0.01)
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


def test_a_killed_fetch_goes_on_at_the_byte_where_it_stopped(store, tmp_path):
    client, relay = store
    put(client, **{"cm2/a.jsonl": b"{}\n", "cm2/b.parquet": BIG})
    relay.holds = 18 * MB
    process = fetch_kit.start(tmp_path / "f", source="s3", uri=URI, revision="")
    fetch_kit.kill_when(process, lambda: fetch_kit.part_bytes(tmp_path / "f") > 16 * MB)
    kept = fetch_kit.part_bytes(tmp_path / "f")
    relay.holds = 0
    relay.released.set()
    relay.sent.clear()
    said = []
    fetched = fetch(given(), tmp_path / "f", say=said.append)
    assert bytes_of(fetched) == {"a.jsonl": b"{}\n", "b.parquet": BIG}
    assert relay.ranges() == [kept] and kept < 18 * MB and b"GET /rows/cm2/a.jsonl" not in relay.sent
    assert said[0] == f"b.parquet: going on at byte {kept} of {20 * MB}"


@pytest.mark.parametrize("resets", [False, True])
def test_broken_connections_are_taken_up_behind_the_last_byte(store, tmp_path, resets):
    client, relay = store
    relay.resets = resets
    put(client, **{"cm2/b.parquet": BIG})
    relay.breaks = [9 * MB, 2 * MB]
    fetched = fetch(given(), tmp_path / "f", say=quiet)
    assert bytes_of(fetched) == {"b.parquet": BIG} and not relay.breaks
    first, second = relay.ranges()
    assert 0 < first <= 9 * MB and first <= second <= first + 2 * MB
    assert resets or first < second  # a reset may discard all that the receiver had not read yet


def test_a_store_that_stays_broken_is_one_sentence_and_nothing_is_lost(store, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "ATTEMPTS", 1)
    client, relay = store
    put(client, **{"cm2/b.parquet": BIG})
    relay.breaks = [12 * MB] + [0] * 200
    with pytest.raises(DataError, match="http://127.* cannot be reached .*check the network") as e:
        fetch(given(), tmp_path / "f", say=quiet)
    assert "\n" not in str(e.value) and 8 * MB < fetch_kit.part_bytes(tmp_path / "f") < 12 * MB
    relay.breaks.clear()
    assert bytes_of(fetch(given(), tmp_path / "f", say=quiet)) == {"b.parquet": BIG}


def test_an_object_replaced_between_two_attempts_starts_again_and_says_so(store, tmp_path):
    client, relay = store
    put(client, **{"cm2/b.parquet": BIG})
    relay.holds = 12 * MB
    process = fetch_kit.start(tmp_path / "f", source="s3", uri=URI, revision="")
    fetch_kit.kill_when(process, lambda: fetch_kit.part_bytes(tmp_path / "f") > 8 * MB)
    kept = fetch_kit.part_bytes(tmp_path / "f")
    relay.holds = 0
    relay.released.set()
    put(client, **{"cm2/b.parquet": BIG[::-1]})
    said = []
    assert bytes_of(fetch(given(), tmp_path / "f", say=said.append)) == {"b.parquet": BIG[::-1]}
    assert said[0] == f"b.parquet changed at its source; it starts again without its {kept} old bytes"


def replaced_midway(client, relay):
    """A progress callback that puts other bytes in the object's place and cuts the transfer."""
    relay.holds = 8 * MB

    def callback(done, total, name):
        if done > 3 * MB and relay.holds:
            put(client, **{"cm2/b.parquet": BIG[::-1]})
            relay.breaks, relay.holds = [0], 0
            relay.released.set()

    return callback


def test_an_object_replaced_during_the_transfer_is_never_mixed(store, tmp_path):
    client, relay = store
    put(client, **{"cm2/b.parquet": BIG})
    with pytest.raises(
        DataError, match="b.parquet in bucket 'rows' at http.* changed while it was being fetched"
    ):
        fetch(given(), tmp_path / "f", replaced_midway(client, relay), quiet)
    assert bytes_of(fetch(given(), tmp_path / "f", say=quiet)) == {"b.parquet": BIG[::-1]}


def test_an_object_of_a_versioned_bucket_arrives_as_listed_though_it_is_replaced_meanwhile(store, tmp_path):
    client, relay = store
    client.put_bucket_versioning(Bucket=BUCKET, VersioningConfiguration={"Status": "Enabled"})
    put(client, **{"cm2/b.parquet": BIG})
    assert bytes_of(fetch(given(), tmp_path / "f", replaced_midway(client, relay), quiet)) == {
        "b.parquet": BIG
    }
    assert relay.ranges()  # it was taken up after the cut
    with pytest.raises(DataError, match="changed b.parquet"):
        fetch(given(), tmp_path / "f", say=quiet)


def test_an_account_that_may_not_read_versions_gets_the_listed_one_by_its_etag(store, tmp_path, monkeypatch):
    client, relay = store
    client.put_bucket_versioning(Bucket=BUCKET, VersioningConfiguration={"Status": "Enabled"})
    put(client, **{"cm2/a.jsonl": b"{}\n"})
    call = S3FileSystem.call_s3

    def no_versions(self, method, *args, **more):
        if "VersionId" in more:
            raise PermissionError("Access Denied")
        return call(self, method, *args, **more)

    monkeypatch.setattr(S3FileSystem, "call_s3", no_versions)
    fetched = fetch(given(), tmp_path / "f", say=quiet)
    assert bytes_of(fetched) == {"a.jsonl": b"{}\n"} and fetched.files[0].version
    assert b"if-match" in bytes(relay.sent).lower()


def test_versions_are_recorded_and_another_one_is_told(store, tmp_path):
    client, _ = store
    client.put_bucket_versioning(Bucket=BUCKET, VersioningConfiguration={"Status": "Enabled"})
    put(client, **{"cm2/a.jsonl": b"{}\n"})
    (before,) = fetch(given(), tmp_path / "f", say=quiet).files
    assert before.version and json.loads((tmp_path / "f/source.json").read_text())["files"][0]["version"]
    put(client, **{"cm2/a.jsonl": b"{}\n", "cm2/b.jsonl": b"{}\n"})
    with pytest.raises(DataError, match="changed a.jsonl; added b.jsonl; set data.revision or data.uri"):
        fetch(given(), tmp_path / "f", say=quiet)
    after = fetch(given(accept_changed=True), tmp_path / "f", say=quiet).files
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
