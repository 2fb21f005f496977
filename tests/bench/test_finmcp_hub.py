"""FinMCP-Bench's rows from a hub on loopback: pinned commit, checksums, no network once they are here."""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path

import pytest
from kit_finmcp import rows

from envace.bench.finmcp import data
from envace.bench.finmcp.adapter import FinMcp
from envace.bench.finmcp.rows import read
from envace.bench.harness.registry import lacking
from envace.bench.harness.spec import HarnessEnv
from envace.errors import DataError, UserError

sys.path.append(str(Path(__file__).parents[1] / "data"))
from hub_kit import ID, REVISION, Hub, served  # noqa: E402

FILE = "test/benchmark_multi_tool.json"


@pytest.fixture
def hub(monkeypatch, tmp_path):
    body = json.dumps(rows()).encode()
    with served(Hub({"README.md": b"# data", FILE: body, "train/other.json": b"[]"})) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        monkeypatch.setenv("ENVACE_STATE", str(tmp_path / "state"))
        monkeypatch.delenv("HF_TOKEN", raising=False)
        monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", str(tmp_path / "no-token"))
        data._fetched.cache_clear()
        yield hub


def options(hub: Hub, **changes) -> data.FinMcpOptions:
    sums = {FILE: hashlib.sha256(hub.files[FILE]).hexdigest()}
    return data.FinMcpOptions(**{"uri": ID, "revision": REVISION, "sha256": sums} | changes)


def test_rows_come_from_the_pinned_commit_and_stay_below_the_state_folder(hub, tmp_path):
    paths = data.files(options(hub))
    assert len(read(paths)) == 8 and not hub.asked("other.json")
    assert all(p.is_relative_to(tmp_path / "state") for p in paths)
    data._fetched.cache_clear()
    hub.fails = 503  # gone; what is here and verified serves on
    assert data.files(options(hub)) == paths


def test_rows_that_are_not_here_are_asked_for_in_words(hub, monkeypatch):
    def said():
        return lacking(HarnessEnv(spec=FinMcp().spec({}), root=Path("r"), python=Path("p"), source=Path("s")))

    own = options(hub)
    monkeypatch.setattr(data, "FinMcpOptions", lambda: own)
    assert len(said()) == 1 and "python -m envace.bench.finmcp.data" in said()[0]
    data.files(own)
    assert said() == []


def test_a_file_with_another_checksum_is_refused(hub):
    with pytest.raises(DataError, match="has sha256"):
        data.files(options(hub, sha256={FILE: "0" * 64}))


def test_the_checksums_of_our_pin_are_not_asked_of_another_data_set(hub):
    assert len(read(data.files(options(hub, sha256=dict(data.SUMS))))) == 8


def test_a_branch_is_no_revision(hub):
    with pytest.raises(UserError, match="40-digit commit"):
        data.files(options(hub, revision="main"))
