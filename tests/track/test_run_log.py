"""The MLflow client against a real SQLite store."""

import asyncio
import json
import subprocess
import sys
import time
from dataclasses import asdict, replace

import pytest

from envace.errors import EnvironmentUnready
from envace.io.processes import identify, proven_dead
from envace.track.run_log import FAILED, FINISHED, RunLog, replay
from envace.track.store import connect, default_uri


def start(store, name="r", **more):
    return store.start_run(name, kind="stage", **more)


def data_of(store, log):
    return store.client.get_run(log.run_id).data


def status_of(store, log):
    return store.client.get_run(log.run_id).info.status


def test_bug_29_concurrent_tasks_write_to_their_own_runs(store):
    async def work(log, value):
        for step in range(5):
            await asyncio.to_thread(log.metrics, {"train/reward": value}, step)
        await asyncio.to_thread(log.end, FINISHED if value == 1 else FAILED)

    async def both():
        await asyncio.gather(work(logs[0], 1), work(logs[1], 2))

    logs = [start(store, "one"), start(store, "two")]
    before = len(store.client.search_runs([store.experiment]))
    asyncio.run(both())
    for log, value, status in zip(logs, (1, 2), ("FINISHED", "FAILED")):
        history = store.client.get_metric_history(log.run_id, "train/reward")
        assert [m.value for m in history] == [value] * 5
        assert status_of(store, log) == status
    assert len(store.client.search_runs([store.experiment])) == before  # no phantom runs


def test_bug_28_changed_parameters_on_resume_become_tags(store):
    log = start(store)
    log.params({"train.lr": 1e-4, "train.steps": 6})
    resumed = RunLog.attach(store.client, log.run_id, store.state)
    resumed.params({"train.lr": 3e-4, "train.steps": 6, "train.group": 4})
    data = data_of(store, log)
    assert data.params == {"train.lr": "0.0001", "train.steps": "6", "train.group": "4"}
    assert data.tags["param.train.lr"] == "0.0003"


def test_illegal_metric_names_arrive_under_legal_ones(store):
    log = start(store)
    log.metrics({"timing(s)/gen": 1.0, "timing[s]/gen": 2.0, "mean@1": float("nan"), "text": "no"}, step=3)
    metrics = data_of(store, log).metrics
    assert metrics["timing_s/gen"] == 1.0 and len(metrics) == 3 and "run/mean_at_1" in metrics


def test_an_unreachable_server_refuses_at_the_start(tmp_path):
    with pytest.raises(EnvironmentUnready, match=r"http://127.0.0.1:9 does not answer.*refused.*make up"):
        connect("http://127.0.0.1:9", tmp_path)


def test_a_broken_local_store_refuses_at_the_start(tmp_path):
    (tmp_path / "mlflow.db").write_text("not a database, but long enough to look at" * 30)
    with pytest.raises(EnvironmentUnready, match="does not answer.*move the file away"):
        connect(default_uri(tmp_path), tmp_path)


class Away:
    """A store that stopped answering."""

    def __getattr__(self, name):
        from mlflow.exceptions import MlflowException

        def gone(*_, **__):
            raise MlflowException("API request failed: connection refused")

        return gone


def test_a_store_lost_in_mid_run_is_buffered_and_replayed(store, capsys):
    log = start(store)
    log.metrics({"train/reward": 0.1}, 1)
    log.client = Away()
    log.metrics({"train/reward": 0.2}, 2)
    log.tags({"a": "b"})
    log.end(FINISHED)
    assert log.degraded and capsys.readouterr().err.count("MLflow went away") == 1
    assert replay(store.client, store.state) == 0  # its process is alive: this one
    declare_dead(store.state, log.run_id)
    assert replay(store.client, store.state) == 3
    run = store.client.get_run(log.run_id)
    assert run.info.status == "FINISHED" and run.data.tags["a"] == "b"
    assert [m.value for m in store.client.get_metric_history(log.run_id, "train/reward")] == [0.1, 0.2]
    assert not list((store.state / "mlflow-buffer").glob("*.jsonl"))


def declare_dead(state, run_id):
    """Rewrite the owner of a buffer as a process that never was."""
    for path in (state / "mlflow-buffer").glob(f"{run_id}*.jsonl"):
        lines = path.read_text().splitlines()
        owner = json.loads(lines[0])
        owner["data"]["start"] = 1.0
        path.write_text("\n".join([json.dumps(owner), *lines[1:], '{"op": "metrics", "torn']) + "\n")


def test_a_buffer_for_another_store_is_kept(store):
    folder = store.state / "mlflow-buffer"
    folder.mkdir(exist_ok=True)
    path = folder / "elsewhere.jsonl"
    path.write_text(json.dumps({"op": "tags", "run_id": "0" * 32, "data": [["a", "b"]]}) + "\n")
    assert replay(store.client, store.state) == 0 and path.exists()
    path.unlink()


def test_a_run_left_by_a_kill_is_marked_killed(store):
    child = subprocess.Popen(["sleep", "60"])
    tags = {f"owner.{k}": str(v) for k, v in asdict(identify(child.pid)).items()}
    log, own = start(store, "left", tags=tags), start(store, "mine")
    assert log.run_id not in store.mark_killed()
    child.kill()
    child.wait()
    assert log.run_id in store.mark_killed()
    assert (status_of(store, log), status_of(store, own)) == ("KILLED", "RUNNING")


def test_a_reused_pid_is_not_the_same_process():
    me = identify()
    assert not proven_dead(me)
    assert proven_dead(replace(me, start=me.start - 100))
    assert proven_dead(replace(me, boot="an earlier one"))
    assert not proven_dead(replace(me, host="elsewhere", start=1))  # cannot be judged from here


def test_stages_of_one_lineage_share_a_parent(store):
    first = store.shared_parent("p", key="k1", tags={"envace.lineage": "k1"})
    first.end(FINISHED)
    again = store.shared_parent("p", key="k1", tags={"envace.lineage": "k1"})
    other = store.shared_parent("p", key="k2", tags={"envace.lineage": "k2"})
    assert again.run_id == first.run_id != other.run_id and status_of(store, first) == "RUNNING"


def test_secrets_do_not_reach_the_store(store):
    log = start(store, tags={"note": "Authorization: Bearer abcdefgh1234"})
    log.params({"header": "Authorization: Bearer abcdefgh1234"})
    data = data_of(store, log)
    assert "abcdefgh" not in str(data.params) + str(data.tags)


@pytest.mark.heavy
def test_processes_that_start_together_make_one_database(tmp_path):
    code = (
        "import sys; from pathlib import Path; from envace.track.store import Store, default_uri\n"
        "state = Path(sys.argv[1]); Store(default_uri(state), 'e', state)"
    )
    began = time.time()
    children = [subprocess.Popen([sys.executable, "-c", code, str(tmp_path)]) for _ in range(3)]
    assert [child.wait(timeout=120) for child in children] == [0, 0, 0], time.time() - began
