"""A small DVC project through the real pipeline: cached stages, a retried failure, one parent run."""

import os
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

from envace.io import processes

ROOT = Path(__file__).resolve().parents[2]
STAGE = '''
import pathlib
from flows._entry import stage
from tasks.run import Run

@stage("toy")
def toy(run: Run, name: str) -> None:
    """Write a file; fail once when asked to."""
    once = run.path(".state", "fail-once")
    if name == "b" and once.exists():
        once.unlink()
        raise OSError(28, "No space left on device")
    run.path(name).write_text(name)
    run.metrics({"toy/done": 1})

if __name__ == "__main__":
    toy.main()
'''
DVC = """
stages:
  toy:
    matrix: {name: [a, b]}
    cmd: python -m toyflow ${item.name}
    params: ["${item.name}x"]
    outs: ["${item.name}"]
  last:
    cmd: python -m toyflow c
    deps: [a, b]
    outs: [c]
"""


def environment(folder):
    path = str(Path(sys.executable).parent) + os.pathsep + os.environ["PATH"]
    env = {k: v for k, v in os.environ.items() if not k.startswith(("PREFECT_", "MLFLOW_", "envace"))}
    return env | {"PATH": path, "PYTHONPATH": f"{folder}{os.pathsep}{ROOT}", "DVC_NO_ANALYTICS": "1"}


def sh(folder, *args):
    env = environment(folder)
    return subprocess.run(args, cwd=folder, env=env, capture_output=True, text=True, timeout=400)


@pytest.fixture
def project(tmp_path):
    (tmp_path / "toyflow.py").write_text(STAGE)
    (tmp_path / "dvc.yaml").write_text(DVC.replace('["${item.name}x"]', "[seed]"))
    (tmp_path / "params.yaml").write_text("seed: 1\nprefect: {retries: 1, retry_delay_s: 0}\n")
    (tmp_path / ".gitignore").write_text(".state/\n__pycache__/\n")
    for command in (
        ["git", "init", "-q"],
        [sys.executable, "-m", "dvc", "init", "-q"],
        ["git", "add", "."],
        ["git", "-c", "user.name=t", "-c", "user.email=t@t", "commit", "-qm", "x"],
    ):
        assert sh(tmp_path, *command).returncode == 0
    return tmp_path


@pytest.mark.heavy
def test_the_pipeline_caches_retries_and_leaves_one_parent(project):
    (project / ".state").mkdir()
    (project / ".state" / "fail-once").touch()
    first = sh(project, sys.executable, "-m", "flows.reproduce")
    assert first.returncode == 0, first.stdout + first.stderr
    assert "3 stage(s) ran, 0 unchanged" in first.stdout and "No space left on device" in first.stdout
    again = sh(project, sys.executable, "-m", "flows.reproduce")
    assert again.returncode == 0 and "nothing to do" in again.stdout
    (project / "b").unlink()
    (project / "dvc.yaml").write_text((project / "dvc.yaml").read_text().replace("toyflow c", "toyflow  c"))
    third = sh(project, sys.executable, "-m", "flows.reproduce")
    assert third.returncode == 0, third.stdout + third.stderr
    assert runs(project)["parents"] == ["FINISHED", "FINISHED"]
    assert runs(project)["children"].count("FAILED") == 1
    states = [s for (s,) in rows(project / ".state/prefect/prefect.db", "select state_name from task_run")]
    assert "Cached" in states
    nested = rows(
        project / ".state/prefect/prefect.db",
        "select count(*) from flow_run where parent_task_run_id is not null",
    )
    assert nested[0][0] >= 4


def runs(project):
    kinds = "tags t on t.run_uuid = r.run_uuid where t.key = 'envace.kind'"
    tag = f"select r.status, t.value from runs r join {kinds}"
    found = rows(project / ".state/mlflow.db", tag)
    return {
        "parents": [s for s, k in found if k == "pipeline"],
        "children": [s for s, k in found if k == "stage"],
    }


def rows(database, query):
    with sqlite3.connect(database) as connection:
        return connection.execute(query).fetchall()


@pytest.mark.heavy
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_every_run_as_killed_and_every_process(number, project):
    source = (project / "toyflow.py").read_text()
    (project / "toyflow.py").write_text(
        source.replace("run.path(name)", "__import__('time').sleep(300)\n    run.path(name)")
    )
    pipeline = subprocess.Popen(
        [sys.executable, "-m", "flows.reproduce"], cwd=project, env=environment(project)
    )
    try:
        until = time.monotonic() + 120
        while not running(project) and time.monotonic() < until:
            time.sleep(0.5)
        pipeline.send_signal(number)
        assert pipeline.wait(60) == 130
    finally:
        pipeline.kill()
    assert runs(project) == {"parents": ["KILLED"], "children": ["KILLED"]}
    assert processes.others(lambda p: str(project) in p.environ().get("PYTHONPATH", "")) == []


def running(project):
    try:
        return (project / ".state/mlflow.db").exists() and runs(project)["children"] == ["RUNNING"]
    except sqlite3.OperationalError:  # the store has no tables yet
        return False
