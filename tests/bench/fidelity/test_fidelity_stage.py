"""The fidelity stage from policy to files, on a world of one shelf."""

import json

import pytest
from shelf_kit import player, shelf_task

from envace.chat.renderer import ByteRenderer
from envace.config import parse
from envace.io.files import read_jsonl
from envace.types import PolicyRef, replace
from tasks import fidelity
from tasks.serving import Served

TASKS = [shelf_task(k, left=left) for k, left in enumerate((1, 2, 0))]


class Run:
    def __init__(self, root, **own):
        rollout = {"prompt_tokens": 20000, "response_tokens": 2000}
        self.root, self.said, self.logged = root, [], {}
        self.params = parse(
            {"fidelity": {"limit": 0, "trials": 1, **own}, "rollout": rollout, "report": {"bootstrap": 100}}
        )

    def path(self, *parts):
        return self.root.joinpath(*parts)

    def say(self, text):
        self.said.append(text)

    def metrics(self, values, step=0):
        self.logged |= values

    def artifact(self, name, content):
        self.logged[name] = content


def measured(run, monkeypatch, tasks=TASKS):
    policy = player(lambda call: {"item": "kite", "left": 1})
    monkeypatch.setattr(fidelity, "read_split", lambda run, split: tasks)
    monkeypatch.setattr(
        fidelity,
        "open_policy",
        lambda run, name: Served(
            policy=policy, renderer=ByteRenderer(), ref=PolicyRef(kind="tiny", uri="", name=name)
        ),
    )
    fidelity.measure_fidelity.fn(run, "start")
    out = run.path("results/fidelity/start")
    lines = {name: read_jsonl(out / f"{name}.jsonl")[0] for name in ("calls", "plays")}
    return json.loads((out / "scores.json").read_text()), lines


def test_scores_spread_calls_and_plays_are_written(tmp_path, monkeypatch):
    run = Run(tmp_path)
    data, lines = measured(run, monkeypatch)
    out = tmp_path / "results/fidelity/start"
    assert sorted(f.name for f in out.iterdir()) == [
        "calls.jsonl",
        "metrics.json",
        "plays.jsonl",
        "scores.json",
    ]
    assert data["scores"]["gap/collusion"] == pytest.approx(1 / 3)
    assert data["spread"]["gap/collusion"]["calls"] == 3 and data["spread"]["up_to_turn/exact"]["tasks"] == 3
    assert set(data["scores"]) == set(data["spread"])
    assert len(lines["plays"]) == 3
    assert run.logged["gap/true"] == pytest.approx(2 / 3) and "fidelity/up_to_turn/exact" in run.logged
    assert run.said[-1].startswith("gap/collusion 0.333 [") and run.said[-1].endswith("3 over 3 tasks")


def test_the_gap_is_left_out_when_switched_off_or_without_a_world(tmp_path, monkeypatch):
    assert not measured(Run(tmp_path, episodes=0), monkeypatch)[1]["plays"]
    plain = [replace(t, world=None) for t in TASKS]
    data, lines = measured(Run(tmp_path), monkeypatch, plain)
    assert not lines["plays"] and not any(name.startswith("gap/") for name in data["scores"])
    assert {r["kind"] for r in lines["calls"]} == {"reference"}  # nobody could answer a spoilt call
