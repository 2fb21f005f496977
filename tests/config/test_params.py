"""What a user may write into params.yaml, and what they are told when it cannot be used."""

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from envace.config import Params, flatten, load, parse, to_dict
from envace.errors import ParamsError

ROOT = Path(__file__).resolve().parents[2]


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
    assert (ROOT / "params.yaml").read_text() == (ROOT / "sizes/laptop.yaml").read_text()


@pytest.mark.parametrize("size", ["laptop", "study", "bench", "gpu1", "paper"])
def test_every_size_is_valid_and_names_every_key(size):
    params = load(ROOT / f"sizes/{size}.yaml")
    written = yaml.safe_load((ROOT / f"sizes/{size}.yaml").read_text())
    assert params.size == size
    named = set(flatten(written))
    missing = set(flatten(to_dict(Params()))) - named - {"arms", "method.override"}
    assert not [key for key in missing if not any(name.startswith(f"{key}.") for name in named)]


def test_misspelt_key_is_answered_with_the_nearest_one():
    text = complaint(lambda d: d["train"].update(stepz=3))
    assert "train.stepz" in text and "3" in text and "did you mean train.steps" in text


def test_unknown_section_is_refused():
    assert "did you mean rollout" in complaint(lambda d: d.update(rolout={}))


@pytest.mark.parametrize(
    ("section", "key", "value", "words"),
    [
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


def test_exponent_without_a_dot_is_a_number():
    data = yaml.safe_load((ROOT / "params.yaml").read_text().replace("lr: 2.0e-4", "lr: 1e-6"))
    assert isinstance(data["train"]["lr"], str)  # what YAML makes of it
    assert parse(data).train.lr == 1e-6


def test_method_switch_is_checked_too():
    text = complaint(lambda d: d["method"].update(override={"basline": "trajectory"}))
    assert "basline" in text and "did you mean baseline" in text
    assert "rows" not in complaint(lambda d: d["method"].update(override={"lone": "one"}))


def test_an_arm_is_defined_before_it_is_trained():
    text = complaint(lambda d: d["train"].update(runs=["envace-1", "standard_gropo-2"]))
    assert "standard_gropo-2" in text and "did you mean standard_grpo" in text


def test_supervised_training_is_no_arm_but_its_policies_can_be_evaluated():
    assert "sft" in complaint(lambda d: d["arms"].update(sft={}))
    data = committed()
    data["eval"]["policies"] = ["start", "envace-1", "sft-3"]
    data["sft"]["seeds"] = [3]
    assert parse(data).sft.seeds == (3,)
    assert "sft-3" in complaint(lambda d: d["eval"].update(policies=["sft-3"]))


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
        "heavy = {'torch', 'verl', 'ray', 'prefect', 'mlflow', 'dvc', 'transformers', 'pydantic'} & set(sys.modules);"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


def test_broken_yaml_names_the_line(tmp_path):
    path = tmp_path / "params.yaml"
    path.write_text("train:\n  steps: 3\n lr: [\n")
    with pytest.raises(ParamsError, match="line 3"):
        load(path)


def test_presets_differ_in_the_table_alone():
    data = committed()
    tables = {}
    for preset in ("authors", "paper", "envace"):
        data["method"]["preset"] = preset
        tables[preset] = parse(data).resolved_method()
    assert tables["paper"].kl == 1e-4 and tables["authors"].kl == 0
    assert tables["authors"].empty_penalty == 0.1 and tables["paper"].empty_penalty == 0
    assert tables["envace"].baseline == "trajectory" and tables["paper"].baseline == "generation"
