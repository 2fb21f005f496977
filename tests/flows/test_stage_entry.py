"""What a stage says and does when something is wrong, without servers."""

import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path

import pytest

from envace.errors import DataError, EnvironmentUnready, UserError
from envace.io import processes
from flows import _dvc, _entry, reproduce, services
from tasks.run import state_dir

ROOT = Path(__file__).resolve().parents[2]


def run_stage(folder, *args, **env):
    return subprocess.run(
        [sys.executable, "-m", *args],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "PYTHONPATH": str(ROOT), **env},
    )


def test_broken_parameters_stop_a_stage_with_one_sentence(tmp_path):
    (tmp_path / "params.yaml").write_text("trian: {steps: 2}\n")
    done = run_stage(tmp_path, "flows.stage_data")
    assert done.returncode == 2
    assert "trian" in done.stderr and "did you mean train?" in done.stderr and "Traceback" not in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1 and ".state/logs/stage_data.log" in done.stderr


def test_a_dead_prefect_server_is_named_at_once(tmp_path):
    (tmp_path / "params.yaml").write_text("seed: 1\n")
    done = run_stage(tmp_path, "flows.stage_data", PREFECT_API_URL="http://127.0.0.1:9/api")
    assert done.returncode == 3 and "Prefect at http://127.0.0.1:9/api does not answer" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_dead_mlflow_server_is_named_at_once(tmp_path):
    (tmp_path / "params.yaml").write_text("seed: 1\n")
    done = run_stage(tmp_path, "flows.stage_data", MLFLOW_TRACKING_URI="http://127.0.0.1:9")
    assert done.returncode == 3 and "MLflow at http://127.0.0.1:9 does not answer" in done.stderr
    assert not (tmp_path / "data").exists()


def test_failures_are_told_in_one_line_with_the_log(tmp_path, capsys):
    try:
        raise DataError("row 3 has no uuid") from ValueError("bad")
    except DataError as e:
        code = _entry.report_failure(e, "stage_data", tmp_path)
    assert code == 2
    assert json.loads((tmp_path / "failed" / "stage_data.json").read_text())["message"].startswith(
        "row 3 has no uuid"
    )
    assert len(capsys.readouterr().err.splitlines()) == 1
    assert "Traceback" in (tmp_path / "logs" / "stage_data.log").read_text()


def test_the_pipeline_refuses_to_run_inside_a_stage(monkeypatch):
    monkeypatch.setenv(reproduce.INSIDE, "1")
    with pytest.raises(UserError, match="inside a stage"):
        reproduce.refuse_reentry()


def test_a_second_pipeline_names_the_first(tmp_path):
    code = (
        "import sys; from pathlib import Path; from flows import reproduce\n"
        "with reproduce.only_pipeline(Path(sys.argv[1])): pass"
    )
    with reproduce.only_pipeline(tmp_path):
        done = subprocess.run(
            [sys.executable, "-c", code, str(tmp_path)], cwd=ROOT, capture_output=True, text=True
        )
    assert done.returncode and f"already running here (pid {os.getpid()})" in done.stderr
    with reproduce.only_pipeline(tmp_path):
        pass


def test_leftovers_of_a_killed_owner_are_ended_and_others_are_not(tmp_path):
    sleeper = [sys.executable, "-c", "import time; time.sleep(60)"]
    code = (
        "import subprocess, sys, time; from pathlib import Path; from envace.io import processes\n"
        "with processes.owner(Path(sys.argv[1]), 'pipeline', 'reproduce'):\n"
        "    c = subprocess.Popen(['sleep', '60'], start_new_session=True)\n"
        "    print(c.pid, flush=True); time.sleep(60)"
    )
    bystander = subprocess.Popen(sleeper)
    owner = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    try:
        left = int(owner.stdout.readline())
        assert processes.reap_dead_owners(tmp_path) == []  # alive
        owner.kill()
        owner.wait()
        notes = processes.reap_dead_owners(tmp_path)
        assert len(notes) == 1 and "ended 1 process(es) left by a killed pipeline" in notes[0]
        assert not _running(left) and bystander.poll() is None
        assert processes.reap_dead_owners(tmp_path) == []
    finally:
        owner.kill()
        bystander.kill()


def _running(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().split(")")[1].split()[0] != "Z"
    except OSError:
        return False


def test_cancelled_commands_report_their_signal(tmp_path):
    commands, sleep = _dvc.Commands(tmp_path, tmp_path, dict(os.environ)), ["sleep", "60"]
    with ThreadPoolExecutor() as pool:
        answer = pool.submit(commands.run, sleep, "x", {})
        time.sleep(1)
        commands.end()
        assert answer.result(20)[0] == -15  # the exit status is not lost to whoever waited first
    with pytest.raises(EnvironmentUnready, match="cancelled"):
        commands.run(["true"], "x", {})


@pytest.mark.parametrize(
    ("said", "ran"),
    [
        ("Stage 'a' didn't change, skipping", False),
        ("Stage 'a' is cached - skipping run, checking out outputs", False),
        ("Stage 'b' didn't change, skipping", True),
        ("Running stage 'a':", True),
    ],
)
def test_dvcs_words_for_unchanged_are_understood(said, ran, tmp_path, monkeypatch):
    commands = _dvc.Commands(tmp_path, tmp_path, dict(os.environ))
    monkeypatch.setattr(commands, "run", lambda *_: (0, f"{said}\n"))
    assert commands.reproduce("a", False, {}) is ran


def test_a_port_in_use_names_port_and_key():
    import socket

    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        s.listen()
        port = s.getsockname()[1]
        with pytest.raises(
            EnvironmentUnready, match=rf"port {port} for mlflow is in use.*change mlflow.port in params.yaml"
        ):
            services.check_port("mlflow", port)


def test_servers_that_are_gone_are_not_used(tmp_path, monkeypatch, capsys):
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    entry = {"url": "http://x/api", **asdict(processes.identify()), "start": 1}
    (tmp_path / "services.json").write_text(json.dumps({"prefect": entry}))
    assert services.use(tmp_path) == {} and "gone" in capsys.readouterr().err


def test_state_of_a_copied_folder_is_the_projects(tmp_path, monkeypatch):
    monkeypatch.delenv("ENVACE_STATE", raising=False)
    assert state_dir(tmp_path / ".dvc" / "tmp" / "exps" / "x") == tmp_path / ".state"
