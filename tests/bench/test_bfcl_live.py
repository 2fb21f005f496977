"""BFCL itself against a loopback endpoint that replays the ground truth. Builds the harness on first use."""

import csv
import json
import os
import socket
import subprocess
import threading
from collections import Counter
from contextlib import contextmanager
from pathlib import Path

import pytest
from kit_bfcl import MODEL, Replay, serving
from kit_drivers import driver_of

from envace.bench.bfcl import tasks as bfcl_tasks
from envace.bench.bfcl.adapter import DRIVER, Bfcl
from envace.bench.bfcl.tasks import AGENTIC, COUNTS, MULTI_TURN
from envace.bench.harness.build import build
from envace.bench.harness.pipeline import evaluate
from envace.bench.harness.planning import choose
from envace.bench.harness.spec import EvalRequest, EvalRoles
from envace.types import Endpoint, SampleStatus, Sampling, ToolCall

pytestmark = pytest.mark.heavy
NAME = driver_of("bfcl").NAME
ROOT = Path(__file__).resolve().parents[2] / ".harness"
AGENT, INFRA, SCORED = SampleStatus.AGENT_FAILURE, SampleStatus.INFRA_FAILURE, SampleStatus.SCORED


@pytest.fixture(scope="module")
def harness():
    return build(Bfcl().spec({}), ROOT)


@contextmanager
def replaying(harness, *subsets, **how):
    replay = Replay(harness.source, subsets, **how)
    with serving(replay) as url:
        yield replay, url


def ask(url, out, *subsets, limit, key_env="", trials=1, options=None, **changes):
    agent = Endpoint(base_url=url, model=MODEL, key_env=key_env, sampling=Sampling(temperature=0.5))
    asked = {
        "subsets": subsets,
        "trials": trials,
        "limit": limit,
        "options": {"retries": 0} | (options or {}),
    }
    request = EvalRequest(roles=EvalRoles(agent=agent), seed=0, out=out, concurrency=4, **asked, **changes)
    scores, samples, runs = evaluate(Bfcl(), request, ROOT, bootstrap=50, probe_s=10.0)
    return {(s.subset, s.source): s for s in scores}, samples, runs


@pytest.mark.parametrize(
    ("raw", "names", "limit"),
    [
        (True, ("simple_python",), 20),
        (True, ("multi_turn_base", "memory_rec_sum"), 3),
        (True, ("memory_kv",), 2),
        (False, ("simple_python", "memory_kv"), 2),
    ],
    ids=["raw-single", "raw-turns-memory", "raw-memory-kv", "json"],
)
def test_the_ground_truth_scores_one(raw, names, limit, harness, tmp_path):
    with replaying(harness, *names, raw=raw) as (_, url):
        scores, samples, runs = ask(url, tmp_path, *names, limit=limit)
    for name in names:
        assert scores[name, "strict"].score == scores[name, "upstream"].score == 1
    assert all(s.status is SCORED for s in samples) and len(samples) == limit * len(names)
    assert not any(r.code for r in runs) and scores["overall", "derived"].score is None


def test_gorilla_1077_raw_text_and_json_give_the_same_scores(harness, tmp_path):
    """The tool-call text of a policy, read by the serving layer, is worth what the same calls are worth as
    JSON."""
    entries = choose(bfcl_tasks.question_ids(harness.source, "simple_python"), 8, 0)
    faults = dict.fromkeys(entries, "") | dict(zip(entries, ("malformed", "empty", "text")))
    seen = []
    for raw in (True, False):
        with replaying(harness, "simple_python", raw=raw, fault=faults.__getitem__) as (_, url):
            scores, samples, _ = ask(url, tmp_path / str(raw), "simple_python", limit=8)
        seen.append([(s.task, s.status, s.reward, s.metrics["upstream"]) for s in samples])
        assert scores["simple_python", "strict"].score == pytest.approx(5 / 8)
    assert seen[0] == seen[1]


def test_doing_nothing_scores_its_floor(harness, tmp_path):
    with replaying(harness, "irrelevance", fault=lambda entry: "text") as (_, url):
        scores, _, _ = ask(url, tmp_path, "irrelevance", limit=5)
    assert scores["irrelevance", "strict"].score == scores["irrelevance", "strict"].floors["do_nothing"] == 1


def test_faults_lower_the_strict_score_and_stop_the_gate_and_nothing_is_dropped(harness, tmp_path):
    entries = choose(bfcl_tasks.question_ids(harness.source, "simple_python"), 6, 0)
    faults = dict(zip(entries, ("", "malformed", "empty", "overflow", "server", "hang-up")))
    with replaying(harness, "simple_python", raw=True, fault=faults.__getitem__) as (_, url):
        scores, samples, _ = ask(url, tmp_path, "simple_python", limit=6)
    strict = scores["simple_python", "strict"]
    assert strict.score is None and (strict.n_scored, strict.n_agent_failure, strict.n_infra_failure) == (
        1,
        3,
        2,
    )
    assert len(samples) == 6 and Counter(s.status for s in samples) == {SCORED: 1, AGENT: 3, INFRA: 2}
    assert scores["simple_python", "upstream"].score is None  # BFCL would print 1 of 6


def test_a_run_that_failed_for_one_task_of_three_asks_only_for_that_one_again(harness, tmp_path):
    broken = []

    def fault(entry):
        if not broken:
            broken.append(entry)
        return "server" if entry == broken[0] else ""

    with replaying(harness, "multi_turn_base", fault=fault) as (replay, url):
        scores, samples, _ = ask(url, tmp_path, "multi_turn_base", limit=3)
        assert scores["multi_turn_base", "strict"].score is None
        assert Counter(s.status for s in samples) == {SCORED: 2, INFRA: 1}
        broken[0] = "none"
        before = len(replay.requests)
        scores, samples, _ = ask(url, tmp_path, "multi_turn_base", limit=3)
        asked = {replay.find(r)[0] for r in replay.requests[before:]}
        assert scores["multi_turn_base", "strict"].score == 1 and len(asked) == 1
        before = len(replay.requests)
        again, _, _ = ask(url, tmp_path, "multi_turn_base", limit=3)
        assert again == scores and len(replay.requests) == before, "a finished job is not run again"


def test_trials_have_their_seed_and_no_file_holds_the_key(harness, tmp_path, monkeypatch):
    monkeypatch.setenv("SOME_KEY", "canary-8f2e61")

    with replaying(harness, "simple_python") as (replay, url):
        scores, samples, _ = ask(
            url, tmp_path, "simple_python", limit=1, trials=2, key_env="SOME_KEY", thinking=True
        )
    assert scores["simple_python", "strict"].score == 1, "a single row is scored"
    assert [(s.trial, s.seed) for s in samples] == [(0, 0), (1, 1)]
    assert [r["seed"] for r in replay.requests] == [0, 1]
    asked = replay.requests[0]
    assert (asked["model"], asked["temperature"], asked["max_tokens"]) == (MODEL, 0.5, 512)
    assert asked["chat_template_kwargs"] == {"enable_thinking": True} and "store" not in asked
    assert replay.seen[0][0]["Authorization"] == "Bearer canary-8f2e61"
    assert all("canary" not in json.dumps(body) and url not in json.dumps(body) for body in replay.requests)
    assert not [f for f in tmp_path.rglob("*") if f.is_file() and b"canary-8f2e61" in f.read_bytes()]


def test_code_in_a_models_call_reaches_no_other_address(harness, tmp_path):
    """BFCL evaluates the name a model calls as Python."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        other.settimeout(0.2)
        reached, stop = [], threading.Event()

        def watch():
            while not stop.is_set():
                try:
                    reached.append(other.accept()[1])
                except TimeoutError:
                    continue

        watcher = threading.Thread(target=watch, daemon=True)
        watcher.start()
        port = other.getsockname()[1]
        evil = f"(lambda: __import__('socket').create_connection(('127.0.0.1', {port})))"

        class Attack(Replay):
            def answer(self, request):
                text, calls = super().answer(request)
                return text, [ToolCall(name=evil, arguments={})] if calls else []

        replay = Attack(harness.source, ("multi_turn_base",))
        with serving(replay) as url:
            _, samples, runs = ask(url, tmp_path, "multi_turn_base", limit=1)
        stop.set()
        watcher.join()
    results = [m["content"] for r in replay.requests for m in r["messages"] if m["role"] == "tool"]
    assert results and samples[0].status is SCORED and samples[0].reward == 0
    if runs[0].isolated:
        assert not reached and any("Error during execution" in r for r in results)


def test_bfcls_own_tables_are_those_of_the_fixture(harness, tmp_path):
    wanted = json.loads((Path(__file__).parent / "fixtures" / "bfcl" / "tables.json").read_text())["full"]
    for category, correct in wanted["correct"].items():
        file = tmp_path / "root" / "score" / NAME / place(category) / f"BFCL_v4_{category}_score.json"
        file.parent.mkdir(parents=True, exist_ok=True)
        head = {
            "accuracy": correct / COUNTS[category],
            "correct_count": correct,
            "total_count": COUNTS[category],
        }
        file.write_text(json.dumps(head) + "\n")
    (tmp_path / "job.json").write_text(
        json.dumps({"model": "m", "category": "all_scoring", "phases": ["evaluate"]})
    )
    environ = {"OPENAI_API_KEY": "none", "PATH": os.defpath}
    command = [harness.python, "-I", DRIVER, tmp_path / "job.json"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=environ)
    for table, text in wanted["tables"].items():
        made = (tmp_path / "root" / "score" / f"data_{table}.csv").read_text()
        assert list(csv.reader(made.splitlines())) == list(csv.reader(text.splitlines()))


def place(category):
    if category.startswith("memory_"):
        return f"agentic/memory/{category.removeprefix('memory_')}"
    if category in AGENTIC or category in MULTI_TURN:
        return "agentic" if category in AGENTIC else "multi_turn"
    return "live" if category.startswith("live_") else "non_live"


def test_two_versions_stand_side_by_side_and_name_themselves(harness, tmp_path):
    options = {"version": "2025.12.17.1"}
    with replaying(harness, "simple_python") as (_, url):
        scores, _, _ = ask(url, tmp_path, "simple_python", limit=2, options=options)
    earlier = build(Bfcl().spec(options), ROOT)
    assert earlier.root != harness.root and harness.python.exists()
    assert scores["simple_python", "strict"].score == 1
    assert scores["simple_python", "strict"].harness == earlier.identity != harness.identity
