"""docs/your-world.md does what it says: its code, rows and parameters, run as a reader would run them."""

import asyncio
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from envace.bench.committed import committed, floor_scores, true_episode
from envace.chat.calls import render_calls
from envace.chat.contract import render_result
from envace.chat.renderer import ByteRenderer
from envace.chat.transcript import exchanges
from envace.config import RolloutParams, parse
from envace.config.method import Method
from envace.data.stage import stage
from envace.data.store import read_tasks
from envace.errors import DataError
from envace.judge.base import RuleJudge
from envace.policy.scripted import ScriptedPolicy
from envace.rollout.episode import run_episode
from envace.rollout.prompts import load_prompt_set
from envace.rollout.sources import make_source
from envace.types import Answer, Role
from envace.worlds import registry as worlds

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/your-world.md").read_text()
CODE = re.findall(r"^```python\n(.*?)^```", PAGE, re.M | re.S)
[KEYS] = re.findall(r"^```yaml\n(.*?)^```", PAGE, re.M | re.S)
[COMMANDS] = re.findall(r"^```bash\n(.*?)^```", PAGE, re.M | re.S)


def merged(base, more):
    return {
        **base,
        **{k: merged(base.get(k, {}), v) if isinstance(v, dict) else v for k, v in more.items()},
    }


def run(here, *command, fails=False):
    """What a Python command in a folder says."""
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, *command], cwd=here, env=env, capture_output=True, text=True)
    assert bool(done.returncode) is fails, (command, done.stdout, done.stderr)
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The project's folder after the page's steps: my_shop.py, params.yaml, and the rows it wrote and
    checked."""
    here = tmp_path_factory.mktemp("shop")
    run(here, "-m", "envace.worlds", "shop")
    assert (here / "my_shop.py").read_text() == "\n".join(CODE)
    params = merged(yaml.safe_load((ROOT / "params.yaml").read_text()), yaml.safe_load(KEYS))
    (here / "params.yaml").write_text(yaml.safe_dump(params))
    for line in COMMANDS.splitlines():
        told = run(here, *line.split()[1:])
    assert "60 rows, 60 usable, 0 with faults" in told
    return here


@pytest.fixture
def shop(folder, monkeypatch):
    """The module, with its world registered as `rollout.worlds` does."""
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setattr(worlds, "_users", {})
    monkeypatch.delitem(sys.modules, "my_shop", raising=False)
    params = parse(yaml.safe_load((folder / "params.yaml").read_text()))
    worlds.load(params.rollout.worlds)
    yield sys.modules["my_shop"]
    sys.modules.pop("my_shop")


def scripted(shop, rehearse=None):
    """The page's expert as a policy; `rehearse(task, call)` plays its other role."""

    def speak(request):
        task = shop.make_task(int(request.task_id.removeprefix("shop-")))
        if request.role is Role.REHEARSE:
            return render_result(rehearse(task, request.call))
        seen = [(e.call, e.content) for e in exchanges(request.messages) if e.shown is not None]
        said = shop.expert(task.prefix[0].content.split()[-1])(0, seen)
        return said if isinstance(said, str) else render_calls(said)

    return ScriptedPolicy(speak)


def rehearsed(task, policy):
    method, renderer = Method(), ByteRenderer()
    params = RolloutParams(prompt_tokens=65536, response_tokens=4096)
    return asyncio.run(
        run_episode(
            task,
            policy=policy,
            source=make_source(task, method, policy, renderer, params),
            renderer=renderer,
            judge=RuleJudge(),
            method=method,
            params=params,
            episode_id="e",
            group_id="g",
            seed=0,
            prompt_set=load_prompt_set("compact"),
        )
    )


def test_the_code_is_about_thirty_lines():
    lines = [line for line in CODE[0].splitlines() if line.strip()]
    assert len(lines) <= 45


def test_rows_are_staged_and_come_back_as_they_were(shop, folder, tmp_path):
    data = {"source": "local", "uri": str(folder / "my_data"), "held_share": 0.2}
    counts = stage(parse({"data": data}), tmp_path)["counts"]
    assert counts["kept"] == 60 and counts["held"] + counts["train"] == 60 and counts["held"] > 4
    tasks = [*read_tasks(tmp_path / "train.parquet"), *read_tasks(tmp_path / "held.parquet")]
    assert sorted(t.id for t in tasks) == sorted(f"shop-{k}" for k in range(60))
    assert all(task == shop.make_task(int(task.id[5:])) for task in tasks)


def test_rows_of_an_unknown_world_are_refused_with_the_key_to_set(folder, monkeypatch):
    monkeypatch.setattr(worlds, "_users", {})
    with pytest.raises(DataError, match="must be one of desk, files; rollout.worlds adds your own"):
        read_tasks(folder / "my_data/shop.parquet")


def test_the_expert_succeeds_in_the_executor_and_doing_nothing_does_not(shop):
    tasks = [shop.make_task(k) for k in range(12)]
    for task in tasks:
        episode = asyncio.run(true_episode(task, scripted(shop), 0))
        assert episode.reward == pytest.approx(1) and committed(task, episode)["success"] == 1
        assert [c.name for c in episode.real_calls][:1] == ["look"]
    assert {s["success"] for s in asyncio.run(floor_scores(tasks, 1)).values()} == {0.0}


def test_a_true_rehearsal_is_grounded_and_asks_no_executor(shop):
    def truth(task, call):
        world = shop.Shop.from_task(task)
        return world.call(call).content

    for k in range(12):
        episode = rehearsed(shop.make_task(k), scripted(shop, truth))
        assert episode.reward == pytest.approx(1) and episode.real_calls == ()


def test_a_convenient_rehearsal_loses_the_grounding_item_only(shop):
    def convenient(task, call):
        return {"price": 1, "stock": 9} if call.name == "look" else {"paid": 1}

    for k in range(12):
        episode = rehearsed(shop.make_task(k), scripted(shop, convenient))
        assert [v.answer for v in episode.verdicts] == [Answer.YES, Answer.YES, Answer.NO]


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (("-m", "envace.worlds", "shop"), "my_shop.py is there already"),
        (("-m", "envace.worlds", "desk"), "'desk' cannot name a world"),
        (("-m", "envace.worlds", "My-Shop"), "'My-Shop' cannot name a world"),
        (
            ("-m", "envace.params", "bad.yaml"),
            "rollout.worlds.shop is 'my_shop:Chop': module",
        ),
    ],
)
def test_a_name_that_cannot_be_used_is_said_at_once(folder, command, words):
    text = (folder / "params.yaml").read_text()
    (folder / "bad.yaml").write_text(text.replace("my_shop:Shop", "my_shop:Chop"))
    assert words in run(folder, *command, fails=True)
