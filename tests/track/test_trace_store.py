"""Traces and a store that is away, slow, rude, or a server of its own."""

import os
import socket
import sys
import threading
import time

import pytest
from trace_kit import episodes, named, read, unscored, write

from envace.errors import EnvironmentUnready
from envace.io import children
from envace.io.redact import Redactor
from envace.track import traces
from envace.track.run_log import RunLog
from envace.track.store import Store, connect, default_uri
from envace.types import replace


def test_a_store_that_is_gone_is_left_after_a_few_faults_and_named(log, monkeypatch):
    from mlflow.exceptions import MlflowException

    asked = []

    def gone(uri, info, spans):
        asked.append(info)
        raise MlflowException("API request failed: connection refused by api_key=s3cret99")

    monkeypatch.setattr(traces, "send", gone)
    counts = write(log, episodes(10, 1))
    assert len(asked) == traces.FAULTS_TO_STOP and (counts.written, counts.lost) == (0, 10)
    assert (
        "warning" in counts.sentence()
        and "connection refused" in counts.sentence()
        and "s3cret99" not in counts.cause
    )


def test_one_episode_that_cannot_be_shown_costs_its_own_trace_alone(log):
    class Odd:
        def __getattr__(self, name):
            raise RuntimeError("odd")

    found = list(traces.of_episodes(episodes(3, 1), {}))
    found[1] = replace(found[1], load=Odd)
    counts = traces.log_traces(log, found, sample=5, failed=5, tags={})
    assert (counts.written, counts.lost, counts.cause) == (2, 1, "RuntimeError: odd")


def test_a_server_that_never_answers_is_left_at_the_deadline(store):
    from mlflow import MlflowClient

    listener = socket.create_server(("127.0.0.1", 0))
    held = []
    threading.Thread(target=lambda: held.append(listener.accept()), daemon=True).start()
    slow = MlflowClient(tracking_uri=f"http://127.0.0.1:{listener.getsockname()[1]}")
    log, began = RunLog(slow, "0" * 32, store.state), time.monotonic()
    counts = write(log, episodes(4, 1), deadline_s=0.3)
    listener.close()
    assert time.monotonic() - began < 5
    assert (counts.written, counts.lost, counts.cause) == (0, 4, "no answer within 0.3 s")


def test_a_log_that_has_lost_its_store_is_not_asked_again(log, monkeypatch):
    monkeypatch.setattr(log, "_buffer", "somewhere")
    counts = write(log, episodes(2, 1))
    assert (counts.lost, counts.cause) == (2, "MLflow went away earlier")


# --- a server ---


@pytest.mark.heavy
def test_traces_reach_a_server_and_one_that_dies_costs_only_what_was_left(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as s:
        port = s.getsockname()[1]
    backend = default_uri(tmp_path)
    connect(backend, tmp_path)
    address = ["--port", str(port), "--workers", "1", "--backend-store-uri", backend]
    with (tmp_path / "server.log").open("wb") as out:
        server = children.start(
            [sys.executable, "-m", "mlflow", "server", *address], env=os.environ, output=out
        )
    try:
        log = when_up(f"http://127.0.0.1:{port}", tmp_path).start_run("r", kind="stage")
        counts = write(log, [*episodes(2, 2), unscored(id="lost")])
        assert (counts.written, counts.lost) == (5, 0), counts.cause
        by_id = {t.info.tags["envace.episode"]: t for t in read(log)}
        assert len(by_id) == 5 and len(by_id["g0-0"].data.spans) == 10
        assert {a.name: a.value for a in by_id["g0-0"].info.assessments}["reward"] == 0.75
        assert named(by_id["lost"])["JUDGE turn 1"].status.status_code == "ERROR"
    finally:
        server.end()
    counts = write(log, episodes(30, 1), deadline_s=60)
    assert counts.written == 0 and counts.lost == 30 and "refused" in counts.cause


def when_up(url, state):
    ends = time.monotonic() + 300
    while True:
        try:
            return Store(url, "envace", state, Redactor(environ={}))
        except EnvironmentUnready:
            if time.monotonic() > ends:
                raise
            time.sleep(1)
