"""Files of a hub data set: chosen, resumed, verified, and every refusal in one sentence."""

import hashlib
import json
import random

import fetch_kit
import pytest
from hub_kit import Hub, params, served

from envace.data.fetch import fetch
from envace.errors import DataError, EnvironmentUnready

MB = 1 << 20


def noise(n, seed=0):
    return random.Random(seed).randbytes(n)


@pytest.fixture
def hub(monkeypatch, tmp_path):
    files = {
        "README.md": b"# rows",
        "data/a.jsonl": b'{"a": 1}\n' * 99,
        "data/b.parquet": noise(3 * MB),
        "other/c.json": b"[]",
    }
    with served(Hub(files, large={"data/b.parquet"})) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        monkeypatch.delenv("HF_TOKEN", raising=False)
        monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", str(tmp_path / "no-token"))
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
        yield hub


def bytes_of(fetched):
    return {f.name: (fetched.folder / f.name).read_bytes() for f in fetched.files}


def test_files_that_match_arrive_with_checksums_and_licence_and_no_second_copy(hub, tmp_path):
    fetched = fetch(params(patterns=["data/"]), tmp_path / "f", say=lambda t: None)
    assert bytes_of(fetched) == {n: b for n, b in hub.files.items() if n.startswith("data/")}
    assert all(f.sha256 == hashlib.sha256(hub.files[f.name]).hexdigest() for f in fetched.files)
    assert fetched.about()["licence"] == "cc-by-4.0" and fetched.about()["files"][0]["etag"]
    assert [f["verified"] for f in fetched.about()["files"]] == ["git", "sha256"]
    assert not hub.asked("c.json") and not hub.asked("README.md")
    assert not (tmp_path / "cache").exists() and not (tmp_path / "f/parts").exists()
    record = json.loads((tmp_path / "f/source.json").read_text())
    assert record["complete"] and [f["name"] for f in record["files"]] == ["data/a.jsonl", "data/b.parquet"]


def test_what_is_here_is_not_fetched_again(hub, tmp_path):
    first = fetch(params(), tmp_path / "f", say=lambda t: None)
    hub.log.clear()
    said = []
    assert fetch(params(), tmp_path / "f", say=said.append) == first
    assert not any("/resolve/" in path for _, path, _ in hub.log) and said == []


def test_a_killed_fetch_leaves_no_half_file_under_its_name_and_is_gone_on_with(hub, tmp_path):
    hub.files["data/d.parquet"] = noise(8 * MB, 1)
    hub.pause_s = 0.005
    process = fetch_kit.start(tmp_path / "f", patterns=["data/*"])
    whole = "parts/*/.cache/huggingface/download/data/a.jsonl.metadata"  # written behind the file
    fetch_kit.kill_when(process, lambda: [*(tmp_path / "f").glob(whole)] and hub.asked("d.parquet"))
    assert not (tmp_path / "f/files").exists() and not (tmp_path / "f/source.json").exists()
    hub.log.clear()
    hub.pause_s = 0
    fetched = fetch(params(patterns=["data/*"]), tmp_path / "f", say=lambda t: None)
    assert bytes_of(fetched) == {n: b for n, b in hub.files.items() if n.startswith("data/")}
    assert not hub.asked("a.jsonl") and not (tmp_path / "f/parts").exists()


@pytest.mark.parametrize("resets", [False, True])
def test_a_connection_that_breaks_is_taken_up(hub, tmp_path, resets):
    hub.cuts, hub.resets = [MB, MB // 2], resets
    fetched = fetch(params(patterns=["*/b.parquet"]), tmp_path / "f", say=lambda t: None)
    assert bytes_of(fetched) == {"data/b.parquet": hub.files["data/b.parquet"]}


def test_a_server_that_stays_broken_is_one_sentence(hub, tmp_path):
    hub.cuts = [2 * MB] + [0] * 40
    with pytest.raises(DataError, match="data.uri 'acme/rows': .*run again") as e:
        fetch(params(patterns=["*.parquet"]), tmp_path / "f", say=lambda t: None)
    assert "\n" not in str(e.value) and not (tmp_path / "f/files").exists()


def test_the_token_comes_from_the_environment_and_reaches_the_hub_only(hub, tmp_path, monkeypatch):
    hub.token = "hf_secret"
    with pytest.raises(DataError, match="no such data set, or it is private; .* HF_TOKEN"):
        fetch(params(), tmp_path / "f")
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    fetch(params(), tmp_path / "f", say=lambda t: None)
    assert hub.asked("b.parquet") and not any("Authorization" in h for h in hub.asked("b.parquet"))
    assert "hf_secret" not in (tmp_path / "f/source.json").read_text()


def test_the_token_of_a_login_on_this_machine_is_never_sent(hub, tmp_path, monkeypatch):
    (tmp_path / "login").write_text("hf_login")
    monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", str(tmp_path / "login"))
    hub.token = "hf_login"  # it would open the door
    with pytest.raises(DataError, match="no such data set, or it is private"):
        fetch(params(), tmp_path / "f", say=lambda t: None)
    hub.token = ""
    fetch(params(), tmp_path / "f", say=lambda t: None)
    assert hub.asked("a.jsonl") and not any("hf_login" in str(h) for _, _, h in hub.log)


def test_more_than_the_disk_holds_is_refused_before_anything_is_fetched(hub, tmp_path):
    hub.sizes["data/b.parquet"] = 10**18
    with pytest.raises(
        EnvironmentUnready, match="needs 1000000000.0 GB and .* set data.patterns to fewer files"
    ):
        fetch(params(), tmp_path / "f", say=lambda t: None)
    assert not hub.asked("a.jsonl")


@pytest.mark.parametrize("name", ["data/a.jsonl", "data/b.parquet"])
def test_bytes_that_are_not_those_listed_are_refused_and_thrown_away(hub, tmp_path, name):
    body = hub.files[name]
    hub.lies[name] = body[:-1] + b"!"
    with pytest.raises(DataError, match=f"{name} arrived damaged"):
        fetch(params(), tmp_path / "f", say=lambda t: None)
    hub.lies.clear()
    assert bytes_of(fetch(params(), tmp_path / "f", say=lambda t: None))[name] == body


def test_expected_checksums_are_held_against_the_files(hub, tmp_path):
    right = hashlib.sha256(hub.files["data/a.jsonl"]).hexdigest()
    with pytest.raises(
        DataError, match=f"data/a.jsonl .* has sha256 {right}, data.sha256 expects {'0' * 64}"
    ):
        fetch(params(sha256={"data/a.jsonl": "0" * 64}), tmp_path / "f", say=lambda t: None)
    with pytest.raises(DataError, match="data.sha256 names 'a.jsonl', which is not among"):
        fetch(params(sha256={"a.jsonl": right}), tmp_path / "f", say=lambda t: None)
    hub.log.clear()
    fetch(params(sha256={"data/a.jsonl": right.upper()}), tmp_path / "f", say=lambda t: None)
    assert not hub.asked("a.jsonl")


def test_a_complete_copy_serves_while_the_hub_is_away(hub, tmp_path):
    first = fetch(params(), tmp_path / "f", say=lambda t: None)
    hub.fails = 503
    said = []
    assert fetch(params(), tmp_path / "f", say=said.append) == first
    assert len(said) == 1 and "status 503" in said[0] and "verified copy" in said[0]
    (tmp_path / "f/files/data/a.jsonl").write_bytes(b"{}")
    with pytest.raises(DataError, match="status 503"):
        fetch(params(), tmp_path / "f", say=said.append)


def test_a_damaged_copy_is_fetched_again(hub, tmp_path):
    fetched = fetch(params(), tmp_path / "f", say=lambda t: None)
    path, body = fetched.folder / "data/a.jsonl", hub.files["data/a.jsonl"]
    path.write_bytes(b"!" + body[1:])
    said = []
    fetch(params(), tmp_path / "f", say=said.append)
    assert path.read_bytes() == body and "is damaged or gone; it is fetched again" in said[0]


def test_two_fetches_at_once_bring_a_file_once(hub, tmp_path):
    hub.pause_s = 0.01
    both = [fetch_kit.start(tmp_path / "f", patterns=["*.parquet"]) for _ in range(2)]
    said = [p.communicate(timeout=60)[0] for p in both]
    assert [p.returncode for p in both] == [0, 0]
    assert len(hub.asked("b.parquet")) == 1 and any("waiting for it" in s for s in said)
