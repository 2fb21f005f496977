"""What a user may write into params.yaml, and what they are told when it cannot be used."""

import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from dvc.utils.serialize import modify_yaml

from envace.config import flatten, load, parse, to_dict
from envace.config.size import whole_text, write_size
from envace.errors import ParamsError, UserError
from envace.io.yaml_text import read_yaml

ROOT = Path(__file__).resolve().parents[2]
SIZES = sorted(path.stem for path in (ROOT / "sizes").glob("*.yaml"))


def committed() -> dict:
    return yaml.safe_load((ROOT / "params.yaml").read_text())


def complaint(change) -> str:
    data = committed()
    change(data)
    with pytest.raises(ParamsError) as e:
        parse(data)
    assert "\n" not in str(e.value)
    return str(e.value)


def test_the_committed_file_is_the_laptop_size():
    assert (ROOT / "params.yaml").read_text() == whole_text(ROOT / "sizes/laptop.yaml")


@pytest.mark.parametrize("size", SIZES)
def test_a_size_is_written_with_every_key_and_stays_as_it_is_when_dvc_changes_one_value(size, tmp_path):
    path = tmp_path / "params.yaml"
    write_size(size, path, ROOT / "sizes")
    before, params = path.read_text(), load(path)
    assert params.size == size and params == load(ROOT / f"sizes/{size}.yaml")
    assert set(flatten(yaml.safe_load(before))) == set(flatten(to_dict(params)))
    with modify_yaml(str(path)) as data:  # what `dvc exp run -S` does
        data["train"]["lr"] = 5e-4
    changed = [line for line in path.read_text().split("\n") if line not in before.split("\n")]
    assert len(changed) == 1 and load(path).train.lr == 5e-4


def test_a_size_that_is_not_there_is_answered_with_those_that_are(tmp_path):
    with pytest.raises(UserError, match="there are: .*laptop paper"):
        write_size("labtop", tmp_path / "params.yaml", ROOT / "sizes")


def test_a_key_given_twice_is_refused_wherever_yaml_is_read(tmp_path):
    path = tmp_path / "params.yaml"
    path.write_text("train:\n  steps: 3\n  steps: 4\n")
    for read in (load, lambda path: write_size("params", path, tmp_path)):
        with pytest.raises(ParamsError, match="line 3.*duplicate key"):
            read(path)
    with pytest.raises(yaml.YAMLError, match="the key steps is given twice"):
        read_yaml(path.read_text())
    assert read_yaml("a: {b: 1}\nc: {b: 2}\n") == {"a": {"b": 1}, "c": {"b": 2}}


@pytest.mark.parametrize(
    ("section", "key", "value", "words"),
    [
        ("train", "stepz", 3, "did you mean train.steps"),
        ("method", "override", {"basline": "trajectory"}, "did you mean baseline"),
        ("train", "runs", ["envace-1", "standard_gropo-2"], "did you mean standard_grpo"),
        ("train", "steps", "many", "whole number"),
        ("train", "steps", True, "whole number"),
        ("train", "steps", 0, "at least 1"),
        ("train", "lr", None, "finite number"),
        ("train", "lr", float("nan"), "finite number"),
        ("train", "shuffle", 1, "true or false"),
        ("judge", "max_unscored", 1.5, "at most 1"),
        ("engine", "device", "cpuu", "did you mean cpu"),
        ("train", "runs", [], "non-empty list"),
        ("train", "runs", ["envace-1", "envace-1"], "repeat"),
        ("train", "runs", ["envace"], "such as envace-1"),
        ("train", "runs", ["envace-1\n"], "such as envace-1"),
        ("sft", "seeds", [1, 1], "repeat"),
        ("sft", "seeds", 1, "list"),
        ("eval", "policies", ["start", "envace-2"], "did you mean envace-1"),
        ("prefect", "port", 80, "at least 1024"),
    ],
)
def test_bad_value_names_key_value_and_rule(section, key, value, words):
    text = complaint(lambda d: d[section].update({key: value}))
    assert f"{section}.{key}" in text and words in text


def test_an_unknown_section_is_refused_and_an_exponent_without_a_dot_is_a_number():
    assert "did you mean rollout" in complaint(lambda d: d.update(rolout={}))
    data = yaml.safe_load((ROOT / "params.yaml").read_text().replace("lr: 0.0002", "lr: 1e-6"))
    assert isinstance(data["train"]["lr"], str) and parse(data).train.lr == 1e-6  # as YAML 1.1 reads it


def test_supervised_training_is_no_arm_but_its_policies_can_be_evaluated():
    assert "sft" in complaint(lambda d: d["arms"].update(sft={}))
    data = committed()
    data["eval"]["policies"] = ["start", "envace-1", "sft-3"]
    data["sft"]["seeds"] = [3]
    assert parse(data).sft.seeds == (3,)
    assert "sft-3" in complaint(lambda d: d["eval"].update(policies=["sft-3"]))


def test_private_rehearsals_can_be_left_out_and_need_rows_with_a_world():
    data = committed()
    data["tts"]["points"] = []
    assert parse(data).tts.points == ()
    assert "lacks plain-0" in complaint(lambda d: d["tts"].update(points=["parallel-1"]))
    hub = {"source": "hub", "uri": "o/rows", "revision": "0" * 39 + "1"}
    assert "empty tts.points, or name the rows' world" in complaint(lambda d: d["data"].update(hub))
    data["data"].update(hub)
    assert parse(data).tts.points == ()


def test_arm_overrides_come_last():
    data = committed()
    data["method"]["override"] = {"baseline": "generation", "lone": "raw"}
    method = parse(data).resolved_method("standard_grpo")
    assert (method.source, method.roles, method.baseline, method.lone) == (
        "environment",
        ("act",),
        "trajectory",
        "raw",
    )


def test_the_check_imports_nothing_heavy():
    code = (
        "import sys, envace.config; envace.config.load('params.yaml');"
        "heavy = {'torch', 'verl', 'ray', 'prefect', 'mlflow', 'dvc', 'transformers'} & set(sys.modules);"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


def test_broken_yaml_names_the_line(tmp_path):
    path = tmp_path / "params.yaml"
    path.write_text("train:\n  steps: 3\n lr: [\n")
    with pytest.raises(ParamsError, match="line 3"):
        load(path)
