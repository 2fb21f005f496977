"""Traces and a store that is away, slow, rude, or a server of its own."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest
from trace_kit import episodes, named, read, unscored, write

from envace.errors import EnvironmentUnready
from envace.io.redact import Redactor
from envace.track import client as c
from envace.track import traces
from envace.types import replace


def test_a_store_that_is_gone_is_left_after_a_few_faults_and_named(log, monkeypatch):
    from mlflow.exceptions import MlflowException

    asked = []

    def gone(uri, info, spans):
        asked.append(info)
        raise MlflowException("API request failed: connection refused by api_key=s3cret99")

    monkeypatch.setattr(traces, "send", gone)
    books = write(log, episodes(10, 1))
    assert len(asked) == traces.FAULTS_TO_STOP and (books.written, books.lost) == (0, 10)
    assert (
        "warning" in books.sentence()
        and "connection refused" in books.sentence()
        and "s3cret99" not in books.cause
    )


def test_one_episode_that_cannot_be_shown_costs_its_own_trace_alone(log):
    class Odd:
        def __getattr__(self, name):
            raise RuntimeError("odd")

    found = list(traces.of_episodes(episodes(3, 1), {}))
    found[1] = replace(found[1], load=Odd)
    books = traces.log_traces(log, found, sample=5, failed=5, tags={})
    assert (books.written, books.lost, books.cause) == (2, 1, "RuntimeError: odd")


def test_a_server_that_never_answers_is_left_at_the_deadline(store):
    from mlflow import MlflowClient

    listener = socket.create_server(("127.0.0.1", 0))
    held = []
    threading.Thread(target=lambda: held.append(listener.accept()), daemon=True).start()
    slow = MlflowClient(tracking_uri=f"http://127.0.0.1:{listener.getsockname()[1]}")
    log, began = c.RunLog(slow, "0" * 32, store[2]), time.monotonic()
    books = write(log, episodes(4, 1), deadline_s=0.3)
    listener.close()
    assert time.monotonic() - began < 5
    assert (books.written, books.lost, books.cause) == (0, 4, "no answer within 0.3 s")


def test_a_log_that_has_lost_its_store_is_not_asked_again(log, monkeypatch):
    monkeypatch.setattr(log, "_buffer", "somewhere")
    books = write(log, episodes(2, 1))
    assert (books.lost, books.cause) == (2, "MLflow went away earlier")


# --- a server -------------------------------------------------------------------------------------------------


@pytest.mark.heavy
def test_traces_reach_a_server_and_one_that_dies_costs_only_what_was_left(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as s:
        port = s.getsockname()[1]
    backend = c.default_uri(tmp_path)
    c.connect(backend, tmp_path)
    command = [
        sys.executable,
        "-m",
        "mlflow",
        "server",
        "--backend-store-uri",
        backend,
        "--port",
        str(port),
        "--workers",
        "1",
    ]
    with (tmp_path / "server.log").open("w") as out:
        server = subprocess.Popen(command, stdout=out, stderr=out, start_new_session=True)
    try:
        client = when_up(f"http://127.0.0.1:{port}", tmp_path)
        experiment = c.experiment(client, "envace", tmp_path)
        log = c.start_run(client, experiment, "r", tmp_path, kind="stage", redactor=Redactor(environ={}))
        books = write(log, [*episodes(2, 2), unscored(id="lost")])
        assert (books.written, books.lost) == (5, 0), books.cause
        by_id = {t.info.tags["envace.episode"]: t for t in read(log)}
        assert len(by_id) == 5 and len(by_id["g0-0"].data.spans) == 10
        assert {a.name: a.value for a in by_id["g0-0"].info.assessments}["reward"] == 0.75
        assert named(by_id["lost"])["JUDGE turn 1"].status.status_code == "ERROR"
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()
    books = write(log, episodes(30, 1), deadline_s=60)
    assert books.written == 0 and books.lost == 30 and "refused" in books.cause


def when_up(url, state):
    ends = time.monotonic() + 300
    while True:
        try:
            return c.connect(url, state)
        except EnvironmentUnready:
            if time.monotonic() > ends:
                raise
            time.sleep(1)
