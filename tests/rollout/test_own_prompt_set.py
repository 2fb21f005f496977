"""A prompt set of one's own: a folder beside those that come with the project, named in params.yaml."""

import shutil
from pathlib import Path

import pytest
import yaml

from envace.errors import ParamsError
from envace.params import check_prompt_set
from envace.rollout import prompts

PROJECT = Path(__file__).parents[2]


@pytest.fixture
def root(tmp_path, monkeypatch):
    """A folder of sets that may be changed."""
    folder = tmp_path / "prompts"
    shutil.copytree(prompts.ROOT, folder)
    shutil.copytree(folder / "full", folder / "mine")
    monkeypatch.setattr(prompts, "ROOT", folder)
    prompts.load_prompt_set.cache_clear()
    yield folder
    prompts.load_prompt_set.cache_clear()


def named(name):
    check_prompt_set(name)
    return name


def test_a_folder_beside_the_others_is_a_set(root):
    assert [named(name) for name in ("compact", "full", "mine")] == ["compact", "full", "mine"]


@pytest.mark.parametrize("name", ["compat", "", "..", "/tmp", "envace/prompts/full", "mine/../full"])
def test_what_is_no_folder_there_is_refused_with_those_that_are(name, root):
    with pytest.raises(
        ParamsError, match="rollout.prompt_set is .* a folder of envace/prompts: compact, full, mine"
    ):
        named(name)


def test_a_misspelt_name_gets_the_nearest(root):
    with pytest.raises(ParamsError, match="did you mean compact?"):
        named("compat")


def test_every_stage_that_plays_depends_on_the_prompt_sets():
    stages = yaml.safe_load((PROJECT / "dvc.yaml").read_text())["stages"]
    deps = {name: stage.get("do", stage)["deps"] for name, stage in stages.items()}
    playing = {
        name: found for name, found in deps.items() if any(d.startswith("envace/rollout") for d in found)
    }
    assert {"policy", "train", "evaluate", "tts", "fidelity"} <= set(playing)
    assert [name for name, found in playing.items() if "envace/prompts" not in found] == []


def test_what_stands_in_the_place_of_a_file_and_cannot_be_read_is_named(root):
    (root / "mine/act.txt").unlink(missing_ok=True)
    (root / "mine/act.txt").mkdir()
    with pytest.raises(ParamsError, match="rollout.prompt_set: prompt set 'mine': act.txt cannot be read"):
        named("mine")
