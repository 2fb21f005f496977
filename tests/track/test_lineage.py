"""Lineage: what a run says about where it came from."""

import subprocess

import pytest

from envace.config import Params
from envace.track import lineage


def git(root, *args):
    done = subprocess.run(
        ["git", "-c", "user.name=t", "-c", "user.email=t@t", *args],
        cwd=root,
        check=True,
        capture_output=True,
        text=True,
    )
    return done.stdout.strip()


@pytest.fixture
def project(tmp_path):
    git(tmp_path, "init", "-q")
    (tmp_path / "params.yaml").write_text("seed: 1\n")
    (tmp_path / ".gitignore").write_text(".state/\n")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "x")
    return tmp_path


def test_key_follows_parameters_and_commit(project):
    first = lineage.lineage_key(project)
    assert lineage.lineage_key(project) == first
    (project / "params.yaml").write_text("seed: 2\n")
    assert lineage.lineage_key(project) != first


def test_dirty_means_code_or_parameters_not_outputs(project):
    assert lineage.git_dirty(project) == "false"
    (project / "dvc.lock").write_text("x")
    (project / "results").mkdir()
    (project / "results" / "scores.json").write_text("{}")
    assert lineage.git_dirty(project) == "false"
    (project / "new.py").write_text("")
    assert lineage.git_dirty(project) == "true"


def test_stage_hash_is_that_of_its_lock_entry(project):
    assert lineage.stage_hash(project, "a") == "none"
    (project / "dvc.lock").write_text("stages: {a: {cmd: x}, b: {cmd: y}}")
    assert lineage.stage_hash(project, "a") != lineage.stage_hash(project, "b")
    assert lineage.stage_hash(project, "c") == "none"


def test_tags_hold_what_the_design_asks_for(project):
    (project / "models" / "start").mkdir(parents=True)
    (project / "models" / "start" / "card.json").write_text('{"hash": "abc"}')
    tags = lineage.lineage_tags(project, Params(), "train@envace-1", "start")
    assert tags["checkpoint.hash"] == "abc" and tags["dvc.stage"] == "train@envace-1"
    assert {
        "git.commit",
        "git.dirty",
        "data.manifest",
        "prompts.hash",
        "envace.preset",
        "envace.seed",
        "version.torch",
        "dvc.lock_before",
    } <= set(tags)


def test_outside_git_nothing_is_guessed(tmp_path):
    assert lineage.git_commit(tmp_path) == "none" and lineage.git_dirty(tmp_path) == "none"
