"""The files world's tools: hand-computed answers, refusals, and no way out of the tree."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envace.errors import DataError
from envace.types import Record, Source, ToolCall
from envace.worlds.files.tasks import generate
from envace.worlds.files.tools import SCHEMAS, TAKES
from envace.worlds.files.world import FilesWorld

TREE = {
    "dirs": ["docs", "docs/old", "logs"],
    "files": {
        "docs/kite.txt": {"text": "call lemon", "size": 12, "locked": False},
        "docs/old/dune.txt": {"text": "buy tulip", "size": 50, "locked": True},
        "logs/iris.txt": {"text": "", "size": 90, "locked": False},
    },
}


def ask(world, name, **arguments):
    return world.call(ToolCall(name=name, arguments=arguments))


@pytest.mark.parametrize(
    ("name", "arguments", "content"),
    [
        ("list_dir", {"path": "docs"}, {"path": "docs", "dirs": ["old"], "files": ["kite.txt"], "count": 1}),
        ("list_dir", {"path": "."}, {"path": ".", "dirs": ["docs", "logs"], "files": [], "count": 0}),
        ("read_file", {"path": "docs/kite.txt"}, {"path": "docs/kite.txt", "text": "call lemon"}),
        ("file_info", {"path": "logs/iris.txt"}, {"path": "logs/iris.txt", "size": 90, "locked": False}),
        (
            "find_text",
            {"path": "docs", "word": "tulip"},
            {"word": "tulip", "file": "docs/old/dune.txt", "count": 1},
        ),
        (
            "copy_file",
            {"path": "docs/old/dune.txt", "to": "logs/a.txt"},
            {"path": "docs/old/dune.txt", "to": "logs/a.txt"},
        ),
        (
            "move_file",
            {"path": "docs/kite.txt", "to": "kite.txt"},
            {"path": "docs/kite.txt", "to": "kite.txt"},
        ),
        ("delete_file", {"path": "docs/kite.txt"}, {"path": "docs/kite.txt", "deleted": True}),
        ("make_dir", {"path": "logs/new"}, {"path": "logs/new", "made": True}),
    ],
)
def test_each_tool_answers(name, arguments, content):
    answer = ask(FilesWorld(TREE), name, **arguments)
    assert answer.content == content and answer.source is Source.ENVIRONMENT and not answer.error


@pytest.mark.parametrize(
    ("name", "arguments", "error"),
    [
        ("read_file", {"path": "docs/nova.txt"}, "no such file"),
        ("read_file", {"path": "docs"}, "is a directory"),
        ("read_file", {"path": "logs/iris.txt"}, "too large"),
        ("read_file", {"path": "/etc/passwd"}, "outside the root"),
        ("read_file", {"path": "docs/../../secret.txt"}, "outside the root"),
        ("read_file", {"path": "..\\secret.txt"}, "outside the root"),
        ("read_file", {"path": "~/secret.txt"}, "outside the root"),
        ("read_file", {"path": "docs//kite.txt"}, "bad path"),
        ("read_file", {"path": "docs/kite.txt\n"}, "bad path"),
        ("read_file", {"path": "a" * 81}, "bad path"),
        ("list_dir", {"path": "music"}, "no such directory"),
        ("list_dir", {"path": "docs/kite.txt"}, "is a file"),
        ("list_dir", {"path": ".."}, "outside the root"),
        ("find_text", {"path": "docs", "word": "lem"}, "no match"),
        ("delete_file", {"path": "docs/old/dune.txt"}, "read only"),
        ("move_file", {"path": "docs/old/dune.txt", "to": "logs/a.txt"}, "read only"),
        ("move_file", {"path": "docs/kite.txt", "to": "logs/iris.txt"}, "exists already"),
        ("move_file", {"path": "docs/kite.txt", "to": "music/a.txt"}, "no such directory"),
        ("move_file", {"path": "docs/kite.txt", "to": "/tmp/a.txt"}, "outside the root"),
        ("copy_file", {"path": "logs/iris.txt", "to": "logs/a.txt"}, "too large"),
        ("make_dir", {"path": "docs"}, "exists already"),
        ("make_dir", {"path": "."}, "exists already"),
        ("read_file", {"path": 7}, "bad arguments"),
        ("read_file", {}, "bad arguments"),
        ("read_file", {"path": "docs/kite.txt", "x": "y"}, "bad arguments"),
        ("run", {"command": "ls"}, "unknown tool"),
    ],
)
def test_refusals_name_the_reason_and_change_nothing(name, arguments, error):
    world = FilesWorld(TREE)
    answer = ask(world, name, **arguments)
    assert answer.content == {"error": error} and answer.error
    assert world.state() == FilesWorld(TREE).state()


def test_changes_are_seen_by_later_calls_and_never_by_another_world():
    world = FilesWorld(TREE)
    ask(world, "copy_file", path="docs/old/dune.txt", to="logs/dune.txt")
    ask(world, "move_file", path="docs/kite.txt", to="logs/kite.txt")
    ask(world, "delete_file", path="logs/iris.txt")
    assert ask(world, "list_dir", path="logs").content["files"] == ["dune.txt", "kite.txt"]
    assert ask(world, "file_info", path="docs/kite.txt").content == {"error": "no such file"}
    copy = {"text": "buy tulip", "size": 50, "locked": False}  # a copy is not locked
    assert world.state()["files"]["logs/dune.txt"] == copy
    assert set(FilesWorld(TREE).state()["files"]) == set(TREE["files"])


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda v: st.lists(v) | st.dictionaries(st.text(), v),
    max_leaves=5,
)


@settings(deadline=None)
@given(st.sampled_from([*SCHEMAS, "", "__init__", "state"]), json_values)
def test_no_argument_raises(name, arguments):
    assert isinstance(FilesWorld(TREE).call(ToolCall(name=name, arguments=arguments)).content, dict)


@settings(deadline=None)
@given(
    st.sampled_from(sorted(SCHEMAS)),
    st.lists(st.text(alphabet="./\\~ab\x00", max_size=9), min_size=2, max_size=2),
)
def test_no_path_leaves_the_tree(name, texts):
    world = FilesWorld(TREE)
    ask(world, name, **dict(zip(TAKES[name], texts)))
    state = world.state()
    assert not [p for p in [*state["dirs"], *state["files"]] if p.startswith(("/", "~", "\\")) or ".." in p]
    assert FilesWorld(state).state() == state


def test_the_host_is_not_touched(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "kite.txt").write_text("host")
    world = FilesWorld({"dirs": [], "files": {}})
    assert ask(world, "read_file", path="kite.txt").content == {"error": "no such file"}
    ask(world, "make_dir", path="docs")
    assert [p.name for p in tmp_path.iterdir()] == ["kite.txt"]


def test_records_rebuild_the_initial_tree():
    for task in generate(3, 150):
        assert FilesWorld.from_records(task.records).state() == FilesWorld.from_task(task).state(), task.id


def test_what_a_recorded_call_made_is_not_part_of_the_initial_tree():
    world, records = FilesWorld(TREE), []
    for name, arguments in (
        ("file_info", {"path": "docs/kite.txt"}),
        ("move_file", {"path": "docs/kite.txt", "to": "logs/kite.txt"}),
        ("file_info", {"path": "logs/kite.txt"}),
        ("make_dir", {"path": "music"}),
        ("list_dir", {"path": "."}),
    ):
        call = ToolCall(name=name, arguments=arguments)
        records.append(Record(turn=0, call=call, result=world.call(call).content))
    state = FilesWorld.from_records([*records, look_at(FilesWorld(TREE), "docs")]).state()
    assert state["dirs"] == ["docs", "docs/old", "logs"] and list(state["files"]) == ["docs/kite.txt"]


def look_at(world, path):
    call = ToolCall(name="list_dir", arguments={"path": path})
    return Record(turn=0, call=call, result=world.call(call).content)


@pytest.mark.parametrize(
    "tree",
    [
        {},
        {"dirs": [], "files": {"a.txt": {"text": "x", "size": True, "locked": False}}},
        {"dirs": [], "files": {"docs/a.txt": {"text": "x", "size": 1, "locked": False}}},
        {"dirs": ["../up"], "files": {}},
    ],
)
def test_broken_trees_are_refused(tree):
    with pytest.raises(DataError, match="a files world"):
        FilesWorld(tree)
