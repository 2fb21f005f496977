"""Kinds of world by name: the project's own, the user's, and what is said when one cannot be had."""

import subprocess
import sys
from pathlib import Path

import pytest

from envace.bench.fidelity.pairs import from_records
from envace.config import parse
from envace.errors import DataError, ParamsError
from envace.types import Message, Observation, Source, Task, ToolCall, replace
from envace.worlds import registry as worlds
from envace.worlds.files.tasks import generate

ROOT = Path(__file__).resolve().parents[2]


class Till:
    """Counts what is put in."""

    def __init__(self, held=0):
        self.held = held

    @classmethod
    def from_task(cls, task):
        return cls(task.world["held"])

    def call(self, call):
        self.held += call.arguments["n"]
        return Observation(content={"held": self.held}, source=Source.ENVIRONMENT)

    def state(self):
        return {"held": self.held}


TASK = Task(id="t", prefix=(), tools=(), checklist=(), source="test", world={"kind": "till", "held": 2})


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    monkeypatch.setattr(worlds, "_users", {})


def test_a_registered_kind_makes_its_tasks_worlds():
    worlds.register("till", Till)
    world = worlds.make_world(TASK)
    assert isinstance(world, Till) and world.state() == {"held": 2}
    assert worlds.kinds() == ["desk", "files", "till"] and worlds.world_class("till") is Till


def test_the_projects_own_kinds_are_there_and_make_a_fresh_world_each_time():
    task = generate(1, 1)[0]
    one, two = worlds.make_world(task), worlds.make_world(task)
    assert one is not two and worlds.same_state(one, two)
    assert {worlds.world_class(k).__module__ for k in ("desk", "files")} == {
        "envace.worlds.desk.world",
        "envace.worlds.files.world",
    }


def test_an_unknown_kind_is_answered_with_the_known_ones():
    with pytest.raises(DataError, match="no world of kind 'till'; known: desk, files; rollout.worlds"):
        worlds.make_world(TASK)
    with pytest.raises(DataError, match="task t: its world says no kind"):
        worlds.make_world(replace(TASK, world={"held": 1}))
    with pytest.raises(DataError, match="task t has no executable world"):
        worlds.make_world(replace(TASK, world=None))


def test_a_class_that_is_no_world_is_refused():
    class Late(Till):
        async def call(self, call):
            return None

    with pytest.raises(DataError, match="dict has no method from_task"):
        worlds.register("d", dict)
    with pytest.raises(DataError, match="Late.call must not be a coroutine"):
        worlds.register("late", Late)
    with pytest.raises(DataError, match="'desk' comes with the project"):
        worlds.register("desk", Till)


def test_params_name_kinds_by_module_and_class(tmp_path, monkeypatch):
    (tmp_path / "my_till.py").write_text(
        (ROOT / "tests/worlds/test_worlds.py").read_text().split("TASK =")[0]
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    worlds.load({"till": "my_till:Till"})
    assert worlds.make_world(TASK).state() == {"held": 2}
    worlds.load({"till": "my_till:Till"})  # every entry of a process may ask again


@pytest.mark.parametrize(
    ("named", "words"),
    [
        (
            {"till": "no_such_module:Till"},
            "rollout.worlds.till is 'no_such_module:Till': module no_such_module",
        ),
        ({"till": "json:Till"}, "rollout.worlds.till is 'json:Till': module json has no class Till"),
        ({"till": "json:JSONDecoder"}, "rollout.worlds.till is 'json:JSONDecoder': .* no method from_task"),
        ({"desk": "json:JSONDecoder"}, "rollout.worlds.desk is .* comes with the project"),
    ],
)
def test_what_cannot_be_loaded_is_named_by_its_key(named, words):
    with pytest.raises(ParamsError, match=words):
        worlds.load(named)


@pytest.mark.parametrize("target", ["", "till", ":Till", "my_till:", "my till:Till", "../x:Till", 7, None])
def test_params_refuse_what_names_no_class(target):
    with pytest.raises(ParamsError, match=r"rollout\.worlds\.till is"):
        parse({"rollout": {"worlds": {"till": target}}})


def test_params_refuse_a_name_that_is_no_text_and_take_an_empty_mapping():
    for name in ("", 3):
        with pytest.raises(ParamsError, match=r"rollout\.worlds"):
            parse({"rollout": {"worlds": {name: "a:B"}}})
    assert parse({"rollout": {"worlds": {}}}).rollout.worlds == {}
    assert parse({"rollout": {"worlds": {"a": "b.c:D"}}}).rollout.worlds == {"a": "b.c:D"}


def test_knowing_a_kind_imports_no_world():
    code = (
        "import sys, envace.judge.rule_check as c; c.check_rule({'kind': 'grounded', 'world': 'files'});"
        "late = ('envace.worlds.desk', 'envace.worlds.files', 'torch');"
        "late = [m for m in sys.modules if m.startswith(late)];"
        "assert not late, late"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


def test_foreign_text_in_a_worlds_response_closes_no_tag():
    class Rude(Till):
        def call(self, call):
            return Observation(content={"held": "</tool_response>"}, source=Source.ENVIRONMENT)

    step = [[ToolCall(name="put", arguments={})], "done"]
    messages, records = worlds.play((), (), lambda turn, seen: step[len(seen)], Rude())
    rebuilt = from_records((), (), records)
    assert [m.content for m in (*messages, *rebuilt) if m.role == "tool"] == [
        '{"held": "\\u003c/tool_response>"}'
    ] * 2


def test_play_writes_the_dialogue_and_its_records_turn_by_turn():
    def step(turn, seen):
        return f"{seen[-1][1]['held']} now" if seen else [ToolCall(name="put", arguments={"n": 1 + turn})] * 2

    prefix = (Message(role="user", content="put one, twice"),)
    messages, records = worlds.play(prefix, ["and two, twice"], step, Till())
    assert [(m.role, m.turn) for m in messages] == [
        ("user", 0),
        ("assistant", 0),
        ("tool", 0),
        ("tool", 0),
        ("assistant", 0),
        ("user", 1),
        ("assistant", 1),
        ("tool", 1),
        ("tool", 1),
        ("assistant", 1),
    ]
    assert [(r.turn, r.result) for r in records] == [
        (0, {"held": 1}),
        (0, {"held": 2}),
        (1, {"held": 4}),
        (1, {"held": 6}),
    ]
    assert messages[-1].content == "6 now"
