"""The MLflow client against a real SQLite store."""

import asyncio
import json
import subprocess
import sys
import time
from dataclasses import replace

import pytest

from envace.errors import EnvironmentUnready
from envace.io.processes import identify, proven_dead
from envace.track import client as c


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    state = tmp_path_factory.mktemp("store")
    client = c.connect(c.default_uri(state), state)
    return client, c.experiment(client, "envace", state), state


def start(store, name="r", **more):
    client, experiment, state = store
    return c.start_run(client, experiment, name, state, kind="stage", **more)


def test_bug_29_concurrent_tasks_write_to_their_own_runs(store):
    async def work(log, value):
        for step in range(5):
            await asyncio.to_thread(log.metrics, {"train/reward": value}, step)
        await asyncio.to_thread(log.end, c.FINISHED if value == 1 else c.FAILED)

    async def both():
        await asyncio.gather(work(logs[0], 1), work(logs[1], 2))

    logs = [start(store, "one"), start(store, "two")]
    before = len(store[0].search_runs([store[1]]))
    asyncio.run(both())
    for log, value, status in zip(logs, (1, 2), ("FINISHED", "FAILED")):
        history = store[0].get_metric_history(log.run_id, "train/reward")
        assert [m.value for m in history] == [value] * 5
        assert store[0].get_run(log.run_id).info.status == status
    assert len(store[0].search_runs([store[1]])) == before  # no phantom runs


def test_bug_28_changed_parameters_on_resume_become_tags(store):
    log = start(store)
    log.params({"train.lr": 1e-4, "train.steps": 6})
    resumed = c.RunLog.attach(store[0], log.run_id, store[2])
    resumed.params({"train.lr": 3e-4, "train.steps": 6, "train.group": 4})
    data = store[0].get_run(log.run_id).data
    assert data.params == {"train.lr": "0.0001", "train.steps": "6", "train.group": "4"}
    assert data.tags["param.train.lr"] == "0.0003"


def test_illegal_metric_names_arrive_under_legal_ones(store):
    log = start(store)
    log.metrics({"timing(s)/gen": 1.0, "timing[s]/gen": 2.0, "mean@1": float("nan"), "text": "no"}, step=3)
    metrics = store[0].get_run(log.run_id).data.metrics
    assert metrics["timing_s/gen"] == 1.0 and len(metrics) == 3 and "run/mean_at_1" in metrics


def test_an_unreachable_server_refuses_at_the_start(tmp_path):
    with pytest.raises(EnvironmentUnready, match=r"http://127.0.0.1:9 does not answer.*refused.*make up"):
        c.connect("http://127.0.0.1:9", tmp_path)


def test_a_broken_local_store_refuses_at_the_start(tmp_path):
    (tmp_path / "mlflow.db").write_text("not a database, but long enough to look at" * 30)
    with pytest.raises(EnvironmentUnready, match="does not answer.*move the file away"):
        c.connect(c.default_uri(tmp_path), tmp_path)


class Away:
    """A store that stopped answering."""

    def __getattr__(self, name):
        from mlflow.exceptions import MlflowException

        def gone(*_, **__):
            raise MlflowException("API request failed: connection refused")

        return gone


def test_a_store_lost_in_mid_run_is_buffered_and_replayed(store, capsys):
    client, _, state = store
    log = start(store)
    log.metrics({"train/reward": 0.1}, 1)
    log.client = Away()
    log.metrics({"train/reward": 0.2}, 2)
    log.tags({"a": "b"})
    log.end(c.FINISHED)
    assert log.degraded and capsys.readouterr().err.count("MLflow went away") == 1
    assert c.replay(client, state) == 0  # its process is alive: this one
    declare_dead(state, log.run_id)
    assert c.replay(client, state) == 3
    run = client.get_run(log.run_id)
    assert run.info.status == "FINISHED" and run.data.tags["a"] == "b"
    assert [m.value for m in client.get_metric_history(log.run_id, "train/reward")] == [0.1, 0.2]
    assert not list((state / "mlflow-buffer").glob("*.jsonl"))


def declare_dead(state, run_id):
    """Rewrite the owner of a buffer as a process that never was."""
    for path in (state / "mlflow-buffer").glob(f"{run_id}*.jsonl"):
        lines = path.read_text().splitlines()
        owner = json.loads(lines[0])
        owner["data"]["start"] = 1.0
        path.write_text("\n".join([json.dumps(owner), *lines[1:], '{"op": "metrics", "torn']) + "\n")


def test_a_buffer_for_another_store_is_kept(store):
    client, _, state = store
    folder = state / "mlflow-buffer"
    folder.mkdir(exist_ok=True)
    path = folder / "elsewhere.jsonl"
    path.write_text(json.dumps({"op": "tags", "run_id": "0" * 32, "data": [["a", "b"]]}) + "\n")
    assert c.replay(client, state) == 0 and path.exists()
    path.unlink()


def test_a_run_left_by_a_kill_is_marked_killed(store):
    client, experiment, _ = store
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    me = identify(child.pid)
    tags = {"owner.host": me.host, "owner.pid": str(me.pid), "owner.start": str(me.start)}
    log, own = start(store, "left", tags=tags), start(store, "mine")
    assert log.run_id not in c.reap(client, experiment)
    child.kill()
    child.wait()
    assert log.run_id in c.reap(client, experiment)
    assert client.get_run(log.run_id).info.status == "KILLED"
    assert client.get_run(own.run_id).info.status == "RUNNING"


def test_a_reused_pid_is_not_the_same_process():
    me = identify()
    assert not proven_dead(me)
    assert proven_dead(replace(me, start=me.start - 100))
    assert proven_dead(replace(me, boot="an earlier one"))
    assert not proven_dead(replace(me, host="elsewhere", start=1))  # cannot be judged from here


def test_stages_of_one_lineage_share_a_parent(store):
    client, experiment, state = store
    tags = {"envace.lineage": "k1"}
    first = c.find_or_start_parent(client, experiment, "p", state, key="k1", tags=tags)
    first.end(c.FINISHED)
    again = c.find_or_start_parent(client, experiment, "p", state, key="k1", tags=tags)
    other = c.find_or_start_parent(client, experiment, "p", state, key="k2", tags={"envace.lineage": "k2"})
    assert again.run_id == first.run_id != other.run_id
    assert client.get_run(first.run_id).info.status == "RUNNING"


def test_secrets_do_not_reach_the_store(store):
    log = start(store, tags={"note": "Authorization: Bearer abcdefgh1234"})
    log.params({"header": "Authorization: Bearer abcdefgh1234"})
    data = store[0].get_run(log.run_id).data
    assert "abcdefgh" not in str(data.params) + str(data.tags)


@pytest.mark.heavy
def test_processes_that_start_together_make_one_database(tmp_path):
    code = "import sys; from pathlib import Path; from envace.track import client as c; s=Path(sys.argv[1]); c.experiment(c.connect(c.default_uri(s), s), 'e', s)"
    began = time.time()
    children = [subprocess.Popen([sys.executable, "-c", code, str(tmp_path)]) for _ in range(3)]
    assert [child.wait(timeout=120) for child in children] == [0, 0, 0], time.time() - began
