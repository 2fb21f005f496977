"""When stage_data runs again: after a change of what shapes the staged rows, and of nothing else."""

from dataclasses import fields
from pathlib import Path

import yaml

from envace.config import DataParams
from envace.data.manifest import NOT_WHAT_BUT_HOW

ROOT = Path(__file__).resolve().parents[2]
STAGE = yaml.safe_load((ROOT / "dvc.yaml").read_text())["stages"]["stage_data"]


def test_every_key_of_data_but_the_number_of_processes_is_watched():
    watched = {p.removeprefix("data.") for p in STAGE["params"] if p.startswith("data")}
    assert watched == {f.name for f in fields(DataParams)} - {"workers"}
    # Accepting changed files reads the source again; what is staged from it does not say that it was
    # accepted.
    assert set(NOT_WHAT_BUT_HOW) == {"workers", "accept_changed"}


def test_what_decides_the_length_of_a_prompt_is_watched():
    keys = {
        "policy.kind",
        "policy.uri",
        "policy.revision",
        "rollout.enable_thinking",
        "rollout.prompt_set",
        "method",
    }
    assert keys <= set(STAGE["params"])
    assert {"envace/chat", "envace/prompts", "envace/rollout/prompts.py"} <= set(STAGE["deps"])
    assert all((ROOT / path).exists() for path in STAGE["deps"] if not path.startswith("data/"))
