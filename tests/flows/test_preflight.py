"""What is looked at before the first stage, and what is said when something is missing."""

import time
from pathlib import Path

import pytest
from chat_server_kit import dead_url, raw_server, says, serving

from envace.config import load, parse
from envace.errors import EnvironmentUnready
from tasks import preflight as module
from tasks.preflight import preflight, servers

ROOT = Path(__file__).resolve().parents[2]
ALL = ["stage_data", "policy", "train@envace-1", "evaluate@start-desk", "bench@start-bfcl", "report"]
JUDGE = {"kind": "llm", "model": "m"}


def found(stages=ALL, root=ROOT, **sections):
    lines = []
    try:
        preflight(parse(sections), root, stages, lines.append)
    except EnvironmentUnready as e:
        return lines, str(e)
    return lines, ""


def test_a_laptop_is_ready_within_a_second_with_one_line_each():
    began = time.monotonic()
    lines, fix = found()
    assert not fix and time.monotonic() - began < 5.0  # a second where nothing else runs
    assert [line.split()[2] for line in lines] == ["device", "interpreter", "rows", "disk"]
    assert found(["report"])[0][0].split()[2] == "disk"


@pytest.mark.parametrize("size", ["gpu1", "paper", "paper-table"])
def test_a_gpu_size_fails_at_once_without_one(size, monkeypatch):
    monkeypatch.setattr(Path, "glob", lambda self, pattern: iter(()))
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(EnvironmentUnready, match=f"has no GPU .size {size}.: run this size .*make size NAME"):
        preflight(load(ROOT / f"sizes/{size}.yaml"), ROOT, ALL, lambda line: None)


@pytest.mark.parametrize(
    ("sections", "fix"),
    [
        ({"engine": {"python": "/no/such/python"}}, "cannot be started .* in engine.python"),
        (
            {"engine": {"python": "/my work/python"}},
            "/my work/python has a space in its path, which Ray .*a link",
        ),
        ({"train": {"prompts": 97}}, "96 to train on, 97 a step: lower train.prompts"),
        ({"judge": {**JUDGE, "base_url": dead_url()}}, "does not answer .*or correct judge.base_url"),
        ({"judge": {**JUDGE, "base_url": "http://h", "key_env": "NO_SUCH_KEY"}}, "variable NO_SUCH_KEY"),
    ],
)
def test_what_is_missing_is_one_sentence_with_the_fix(sections, fix):
    with pytest.raises(EnvironmentUnready, match=fix):
        preflight(parse(sections), ROOT, ALL, lambda line: None)


def test_an_interpreter_without_the_trainers_packages_is_named(tmp_path):
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho verl\n")
    python.chmod(0o755)
    assert "lacks verl: install them there" in found(engine={"python": str(python)})[1]


def test_servers_are_asked_side_by_side_and_given_three_seconds(monkeypatch):
    assert module.PATIENCE_S == 3.0
    monkeypatch.setattr(module, "PATIENCE_S", 0.5)
    with raw_server(lambda connection: time.sleep(1)) as slow, serving(says({})) as good:
        endpoints = {f"{slow}/{k}": 1.0 for k in range(15)} | {good.url: 1.0}
        began = time.monotonic()
        lines, fix = found(["tts"], judge={**JUDGE, "base_url": slow, "endpoints": endpoints})
        assert time.monotonic() - began < 5.0 and "and 15 more" in fix
    assert sum("does not answer" in line for line in lines) == 16 and f"{good.url} answers" in lines[-1]


def test_only_what_a_stage_asks_is_asked(monkeypatch):
    params = load(ROOT / "sizes/paper-table.yaml")
    assert {asked.what for asked in servers(params, {"bench"})} == {"bench user", "bench judge", "hub"}
    assert len([asked for asked in servers(params, {"bench"}) if asked.what == "hub"]) == 9
    assert servers(params, {"report"}) == []
