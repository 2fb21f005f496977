"""A hub id becomes the commit it stands at, in the form params.yaml takes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from hub_kit import ID, REVISION, Hub, served

from envace.config import parse
from envace.errors import EnvironmentUnready
from envace.policy import hub

ROOT = Path(__file__).resolve().parents[2]


def test_the_command_prints_a_row_that_the_parameters_take():
    with served(Hub()) as kit:
        env = {**os.environ, "HF_ENDPOINT": kit.url, "HF_HUB_DISABLE_TELEMETRY": "1"}
        done = subprocess.run(
            [sys.executable, "-m", "envace.policy.hub", "resolve", ID],
            cwd=ROOT,
            env=env,
            capture_output=True,
            text=True,
        )
    assert done.returncode == 0, done.stderr
    row = yaml.safe_load(done.stdout)
    assert row == {"rows": {"uri": ID, "revision": REVISION}}
    assert parse({"bench": {"baselines": row}}).bench.baselines["rows"].revision == REVISION


def test_an_id_that_is_not_there_or_a_hub_that_is_away_is_one_sentence(monkeypatch):
    with served(Hub()) as kit:
        monkeypatch.setenv("HF_ENDPOINT", kit.url)
        with pytest.raises(EnvironmentUnready, match="acme/other at main could not be found on the hub"):
            hub.resolve("acme/other")
        with pytest.raises(EnvironmentUnready, match="correct the id"):
            hub.resolve("no/such/id")
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(EnvironmentUnready, match="allow access"):
        hub.resolve(ID)
