"""docs/data.md does what it says: its example is run, its tables and commands are held against the code."""

import argparse
import os
import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest
import test_published_files
import yaml
from test_select import AUTHORS

from envace.config import DataParams, load, parse, to_dict
from envace.data.__main__ import main
from envace.data.annotate.arguments import fill_annotate
from envace.data.faults import Reject
from envace.data.select import read_ratios
from envace.data.source_files import Wanted
from envace.data.stage import stage
from envace.data.store import read_tasks
from envace.judge.rules import judge_item
from envace.types import Answer, replace

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/data.md").read_text()
[CODE] = re.findall(r"^```python\n(.*?)^```", PAGE, re.M | re.S)
[COMMANDS] = re.findall(r"^```bash\n(.*?)^```", PAGE, re.M | re.S)
LAPTOP, PAPER = (to_dict(load(ROOT / f"sizes/{name}.yaml")) for name in ("laptop", "paper"))
KEYS, PUBLISHED, DEALT, RATIOS, RAW = map(
    yaml.safe_load, re.findall(r"^```yaml\n(.*?)^```", PAGE, re.M | re.S)
)


def section(title):
    return PAGE.split(f"## {title}\n")[1].split("\n## ")[0]


def first_cells(title):
    """What stands in the first column of a section's tables, in order."""
    return re.findall(r"^\| `(\w+)` \|", section(title), re.M)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The project's folder after the page's steps."""
    here = tmp_path_factory.mktemp("rows")
    (here / "make_rows.py").write_text(CODE)
    (here / "params.yaml").write_text(yaml.safe_dump(LAPTOP | {"data": LAPTOP["data"] | KEYS["data"]}))
    for line in COMMANDS.splitlines():
        done = subprocess.run(
            [sys.executable, *line.split()[1:]],
            cwd=here,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, (line, done.stdout, done.stderr)
    assert all(f"`{told}`" in PAGE for told in done.stdout.splitlines())
    return here


@pytest.fixture(scope="module")
def staged(folder, tmp_path_factory):
    params = yaml.safe_load((folder / "params.yaml").read_text())
    params["data"]["uri"] = str(folder / params["data"]["uri"])
    out = tmp_path_factory.mktemp("staged")
    return stage(parse(params), out), out


def test_the_example_is_staged_whole(staged):
    manifest, out = staged
    counts = manifest["counts"]
    assert counts["kept"] == counts["train"] + counts["held"] == 40 and counts["held"] > 2
    assert {f.name for f in out.iterdir()} == {
        "train.parquet",
        "held.parquet",
        "rejects.jsonl",
        "manifest.json",
    }


def test_the_examples_dialogue_keeps_its_checklist_and_a_wrong_reply_does_not(staged):
    for task in read_tasks(staged[1] / "train.parquet"):
        wrong = [*task.reference[:-1], replace(task.reference[-1], content="99 m.")]
        answers = [
            [judge_item(i, task, 0, talk).answer for i in task.checklist[0]]
            for talk in (task.reference, wrong)
        ]
        assert answers == [[Answer.YES, Answer.YES], [Answer.YES, Answer.NO]]


def test_every_reason_code_is_explained_once():
    assert first_cells("What is checked") == [str(reason) for reason in Reject]


def test_every_key_of_data_is_explained():
    assert [
        f.name for f in fields(DataParams) if f"`{f.name}`" not in PAGE and f"data.{f.name}" not in PAGE
    ] == []


def test_every_part_of_the_manifest_is_explained(staged):
    assert {*first_cells("The manifest"), "format"} == set(staged[0])


def test_the_published_ratios_and_keys_are_those_of_the_code():
    assert read_ratios(RATIOS["select"]) == AUTHORS
    assert PUBLISHED["data"] | {"revision": ""} == {k: PAPER["data"][k] for k in PUBLISHED["data"]} | {
        "revision": ""
    }


def test_the_dealt_files_are_those_that_a_test_stages():
    assert {key: DEALT["data"][key] for key in ("patterns", "splits")} == test_published_files.DEALT
    parse({"data": DEALT["data"] | {"revision": "0" * 40}})


def test_the_raw_set_is_named_by_a_block_that_parameters_take():
    data = parse(RAW).data
    assert (data.source, data.uri, len(data.revision)) == (
        "hub",
        "nvidia/Nemotron-Post-Training-Dataset-v1",
        40,
    )
    want = Wanted.of(parse(RAW))
    assert want.matches("data/tool-00000-of-00001.parquet") and not want.matches(
        "data/math-00000-of-00001.parquet"
    )


def test_the_table_of_agreement_is_what_the_command_prints(capsys, monkeypatch):
    monkeypatch.chdir(ROOT)
    shown = re.search(
        r"^\$ python -m envace.data (agree .*)\n((?:.*\n)*?)```", section("Annotate raw rows"), re.M
    )
    assert main(shown[1].split()) == 0 and capsys.readouterr().out == shown[2]


def test_every_option_of_annotate_that_is_named_exists():
    cli = argparse.ArgumentParser()
    fill_annotate(cli)
    named = set(re.findall(r"--[a-z][a-z-]+", section("Annotate raw rows")))
    assert len(named) > 10 and named <= set(re.findall(r"--[a-z-]+", cli.format_help()))


def test_the_commands_for_a_remote_are_those_of_the_other_page():
    """Which a test runs."""
    other = (ROOT / "docs/operations.md").read_text()
    lines = re.findall(r"^\.venv/bin/dvc .*", section("Keep staged rows on S3"), re.M)
    assert len(lines) == 3 and all(line.partition("#")[0].strip() in other for line in lines)
