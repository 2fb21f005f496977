"""A tiny policy through DVC: served for real under BFCL, and two steps of its training on the curve.

Training itself is replaced by shards as the trainer writes them; the merger, the server, the harness and DVC
are real.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from envace.bench.harness.build import build
from envace.bench.harness.registry import harness
from envace.config import load, to_dict
from envace.engine import checkpoints
from envace.policy.card import BUNDLED

ROOT = Path(__file__).resolve().parents[2]
PARTS = (
    "dvc.yaml",
    ".dvc/config",
    ".dvc/.gitignore",
    ".dvcignore",
    ".gitignore",
    "envace",
    "flows",
    "tasks",
    "locks",
)
HERE = {  # of the bench size, smaller still
    "desk": {"train_tasks": 8, "held_tasks": 4, "unseen_tasks": 0, "files_tasks": 0},
    "train": {"steps": 2, "save_every": 1, "keep_every": 1},  # step 1 is promised, and will not be there
    "bench": {"policies": ["start"], "benchmarks": ["bfcl"], "limit": 3},
    "dynamics": {"steps": [0, 1, 2], "limit": 2},
}


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """The project's code with small parameters, rows and start policy staged by DVC."""
    folder = tmp_path_factory.mktemp("bench")
    for part in PARTS:
        (folder / part).parent.mkdir(parents=True, exist_ok=True)
        whole = (ROOT / part).is_dir()
        shutil.copytree(ROOT / part, folder / part) if whole else shutil.copy(ROOT / part, folder / part)
    params = to_dict(load(ROOT / "sizes/bench.yaml"))
    for section, values in HERE.items():
        params[section] |= values
    (folder / "params.yaml").write_text(yaml.safe_dump(params))
    (ROOT / ".harness").mkdir(exist_ok=True)
    (folder / ".harness").symlink_to(ROOT / ".harness")
    for command in (
        ["init", "-q"],
        ["add", "-A"],
        ["-c", "user.name=t", "-c", "user.email=t@t", "commit", "-qm", "x"],
    ):
        assert run(folder, "git", *command).returncode == 0
    repro(folder, "stage_data", "policy")
    return folder


def run(folder: Path, *argv: str) -> subprocess.CompletedProcess:
    env = {k: v for k, v in os.environ.items() if not k.startswith(("PREFECT_", "MLFLOW_", "envace"))}
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    env |= {"PATH": path, "PYTHONPATH": str(folder), "DVC_NO_ANALYTICS": "1"}
    env["PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS"] = "300"  # a busy machine is no failure
    return subprocess.run(argv, cwd=folder, env=env, capture_output=True, text=True, timeout=1500)


def repro(folder: Path, *stages: str) -> None:
    done = run(folder, sys.executable, "-m", "dvc", "repro", "-s", *stages)
    assert done.returncode == 0, done.stdout + done.stderr


def trained(folder: Path) -> None:
    """What two steps of training leave: a checkpoint of step 2, kept.json. The weights moved a little."""
    import torch
    from transformers import AutoModelForCausalLM

    work = folder / ".state/train/key"
    actor = work / "checkpoints/global_step_2/actor"
    (actor / "huggingface").mkdir(parents=True)
    state = AutoModelForCausalLM.from_pretrained(BUNDLED, dtype=torch.float32).state_dict()
    torch.save({name: value * 1.01 for name, value in state.items()}, actor / "model_world_size_1_rank_0.pt")
    (actor / "fsdp_config.json").write_text(json.dumps({"FSDP_version": 2, "world_size": 1}))
    for file in BUNDLED.iterdir():
        if file.suffix in (".json", ".jinja") and file.name != "card.json":
            shutil.copy(file, actor / "huggingface" / file.name)
    checkpoints.finish(actor.parent, work, 2, rolling=1, keep_every=2)
    start = json.loads((folder / "models/start/card.json").read_text())["hash"]
    out = folder / "runs/train/envace-1"
    out.mkdir(parents=True)
    (out / "kept.json").write_text(json.dumps(checkpoints.manifest(work, 2, start)))


def scores(folder: Path, name: str) -> dict:
    return json.loads((folder / "results" / name / "scores.json").read_text())


def logged(folder: Path, query: str) -> list[tuple]:
    import sqlite3

    with sqlite3.connect(folder / ".state/mlflow.db") as connection:
        return connection.execute(query).fetchall()


@pytest.mark.heavy
def test_the_tiny_policy_is_served_and_scored_by_bfcl_as_a_stage(project):
    build(harness("bfcl"), ROOT / ".harness", print)
    repro(project, "bench@start-bfcl")
    said = scores(project, "bench/start-bfcl")
    strict = next(s for s in said["scores"] if (s["subset"], s["source"]) == ("simple_python", "strict"))
    assert (strict["n_tasks"], strict["n_missing"], strict["n_infra_failure"]) == (3, 0, 0)
    assert strict["score"] is not None and strict["policy"] == "start"
    samples = (project / "results/bench/start-bfcl/samples.jsonl").read_text().splitlines()
    assert len(samples) == 3 and list(
        (project / "results/bench/start-bfcl/raw").glob("simple_python-0/root/**/*_result.json")
    )
    tags = dict(
        logged(project, "select key, value from tags where key like 'bench.%' or key = 'version.harness'")
    )
    assert tags["version.harness"].startswith("bfcl-2026.3.23") and tags["bench.trials"] == "1"
    names = {n for (n,) in logged(project, "select distinct key from metrics where key like 'bench/%'")}
    assert {"bench/bfcl.simple_python.reward.strict", "bench/bfcl_start"} <= names
    again = run(project, sys.executable, "-m", "dvc", "repro", "-s", "bench@start-bfcl")
    assert "didn't change" in again.stdout


@pytest.mark.heavy
def test_kept_steps_are_points_of_a_curve_and_a_lost_one_says_what_to_set(project):
    trained(project)
    repro(project, "dynamics@envace-1-0-desk", "dynamics@envace-1-2-desk")
    first, last = (scores(project, f"dynamics/envace-1-{k}-desk")["scores"][0] for k in (0, 2))
    assert (first["policy"], last["policy"]) == ("envace-1@0", "envace-1@2")
    assert first["policy_hash"] != last["policy_hash"] and last["n_tasks"] == 2
    curve = logged(project, "select step, value from metrics where key = 'dynamics/envace-1.desk.success'")
    assert {(0, first["score"]), (2, last["score"])} <= set(curve)
    assert not list((project / ".state/dynamics").iterdir())
    lost = run(project, sys.executable, "-m", "dvc", "repro", "-s", "dynamics@envace-1-1-desk")
    assert (
        lost.returncode and "step 1 of envace-1 was not kept (train.keep_every); kept are 0, 2" in lost.stderr
    )
