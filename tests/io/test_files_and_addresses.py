"""JSON lines after a kill, damaged state files, and proxies that stand before this machine."""

import json
import os

import pytest

from envace.engine.run_files import read_steps
from envace.errors import EnvironmentUnready
from envace.io import addresses
from envace.io.files import append_jsonl, read_jsonl, read_state


def test_a_line_after_a_stump_begins_anew_and_the_stump_is_counted(tmp_path):
    path = tmp_path / "metrics.jsonl"
    append_jsonl(path, {"step": 1})
    with path.open("a") as f:
        f.write('{"step": 2, "train/rew')  # killed here
    assert [s["step"] for s in read_steps(tmp_path)] == [1]
    for step in (2, 3):
        append_jsonl(path, {"step": step, "text": "é\ud800"})
    assert [s["step"] for s in read_steps(tmp_path)] == [1, 2, 3]
    found, torn = read_jsonl(path)
    assert [r["step"] for r in found] == [1, 2, 3] and torn == 1


@pytest.mark.parametrize("text", ["", "{", "[]", '"x"', "\ufffd"])
def test_a_damaged_state_file_is_one_named_sentence(tmp_path, text):
    path = tmp_path / "services.json"
    assert read_state(path, dict) is None
    path.write_text(text)
    with pytest.raises(EnvironmentUnready, match=r"services.json .*; delete it"):
        read_state(path, dict)
    path.write_text(json.dumps({"a": 1}))
    assert read_state(path, dict) == {"a": 1}


@pytest.fixture
def clean(monkeypatch):
    """No proxy in the environment; what is set is put back."""
    for name in (*addresses.PROXIES, "no_proxy"):
        for variable in (name, name.upper()):
            monkeypatch.setenv(variable, "")
            monkeypatch.delenv(variable)
    return monkeypatch


@pytest.mark.parametrize("given", [{}, {"no_proxy": "a.test"}, {"NO_PROXY": "a.test, localhost"}])
def test_this_machine_is_asked_directly_whatever_proxy_is_set(clean, given):
    import httpx

    for name, value in {"http_proxy": "http://127.0.0.1:9", **given}.items():
        clean.setenv(name, value)
    addresses.ask_this_machine_directly()
    names = set(os.environ["NO_PROXY"].split(","))
    assert names >= set(addresses.LOOPBACK) and ("a.test" in names) == bool(given)
    with httpx.Client() as client:
        for url in ("http://127.0.0.1:1/x", "http://localhost:1/x", "http://[::1]:1/x"):
            assert client._transport_for_url(httpx.URL(url)) is client._transport
        assert client._transport_for_url(httpx.URL("http://other.test")) is not client._transport


@pytest.mark.parametrize("variable", ["ALL_PROXY", "https_proxy"])
def test_a_socks_proxy_nobody_speaks_is_named(clean, variable):
    clean.setenv(variable, "socks5://127.0.0.1:9")
    clean.setattr(addresses, "find_spec", lambda name: None)
    with pytest.raises(EnvironmentUnready, match=f"^{variable} names a SOCKS proxy"):
        addresses.ask_this_machine_directly()
