"""`python -m envace.play` as a user runs it."""

import io
import json
import subprocess
import sys

import pytest
from rollout_kit import TASK, call, play, two_roles

from envace.config import parse
from envace.data.store import write_tasks
from envace.errors import DataError
from envace.play import find_task, main
from envace.rollout.show import Printer, wants_colour
from envace.types import Message
from envace.worlds.files.tasks import generate as files

HEAVY = ("torch", "transformers", "ray", "verl", "dvc", "prefect", "mlflow")
NOWHERE = ["--data", "/nowhere/held.parquet"]


def test_an_experts_episode_imports_nothing_heavy():
    code = (
        "import sys; from envace.play import main; "
        "main(['--task', 'desk-held-3', '--data', '/nowhere']); "
        f"heavy = [m for m in {HEAVY} if m in sys.modules]; sys.exit(f'imported {{heavy}}' if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "reward 1.00" in done.stdout and "\033[" not in done.stdout  # no terminal, no colour


@pytest.mark.parametrize("source", ["rehearse", "environment", "recorded"])
def test_every_source_plays(source, capsys):
    main(["--task", "desk-held-1", "--source", source, "--json", *NOWHERE])
    episode = json.loads(capsys.readouterr().out)
    assert (episode["stop"], episode["reward"]) == ("done", 1.0)
    assert bool(episode["real_calls"]) == (source == "environment")


@pytest.mark.parametrize("task", ["desk-held-1", "desk-held-3", "files-held-3"])
def test_a_tasks_own_dialogue_plays_as_it_was_recorded(task, capsys):
    main(["--task", task, "--policy", "reference", "--json", *NOWHERE])
    episode = json.loads(capsys.readouterr().out)
    assert (episode["stop"], episode["reward"], episode["counters"].get("errors", 0)) == ("done", 1.0, 0)


def test_the_second_world_plays_too(capsys):
    main(["--task", "files-held-3", "--source", "environment", "--json", *NOWHERE])
    assert json.loads(capsys.readouterr().out)["reward"] == 1.0


def test_a_task_is_found_in_any_split_beside_the_file(tmp_path):
    params = parse({})
    write_tasks(tmp_path / "held.parquet", files(1, 3)[:1])
    write_tasks(tmp_path / "files.parquet", files(1, 3)[1:])
    assert find_task("files-held-2", tmp_path / "held.parquet", params) == files(1, 3)[2]
    with pytest.raises(DataError, match="did you mean 'files-held-0'"):
        find_task("files-held-9", tmp_path / "held.parquet", params)


def test_list(capsys):
    main(["--list", *NOWHERE])
    assert capsys.readouterr().out.startswith("desk-held-0")


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--task", "foo", *NOWHERE], "'foo' is no desk task"),
        (["--task", "desk-held-1", "--policy", "nowhere", *NOWHERE], "'reference', a URL nor a folder"),
        (["--task", "desk-held-1", "--policy", "http://127.0.0.1:9", *NOWHERE], "say with --model"),
        (["--task", "desk-held-1", "--params", "nowhere.yaml"], "nowhere.yaml does not exist"),
        (
            ["--task", "desk-held-1", "--source", "simulator", *NOWHERE],
            "rollout.simulator.base_url or .model is empty",
        ),
        (["--task", "desk-held-1", "--source", "mcp", *NOWHERE], "rollout.mcp.url is empty"),
        (["--task", "files-held-x", *NOWHERE], "'files-held-x' is no desk task"),
    ],
)
def test_a_users_mistake_is_one_sentence(argv, words, capsys):
    with pytest.raises(SystemExit) as caught:
        main(argv)
    told = capsys.readouterr().err
    assert caught.value.code in (2, 3) and words in told and "Traceback" not in told


def test_a_dead_server_ends_with_a_message_and_a_status(capsys):
    with pytest.raises(SystemExit) as caught:
        main(["--task", "desk-held-1", "--policy", "http://127.0.0.1:9", "--model", "m", *NOWHERE])
    assert caught.value.code == 4
    assert "http://127.0.0.1:9/v1/chat/completions" in capsys.readouterr().err


def test_model_text_cannot_drive_the_terminal():
    lines = []
    printer = Printer(TASK, lines.append, colour=False)
    printer.prefix()
    printer.summary(play(two_roles([call("get"), "\033[2Jgone\r", "bye"]), watch=printer.watch))
    assert not any("\033" in line or "\r" in line for line in lines)
    del lines[:]
    printer.watch(Message(role="user", content="a\tb\nc\x9b"))
    assert lines == ["user       a\tb", "           c\ufffd"]


def test_colour_only_on_a_terminal(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.delenv("NO_COLOR", raising=False)
    assert wants_colour(Terminal()) and not wants_colour(io.StringIO())
    monkeypatch.setenv("NO_COLOR", "1")
    assert not wants_colour(Terminal())
