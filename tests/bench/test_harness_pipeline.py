"""A fake harness and a fake adapter through the whole evaluation, with the faults that real ones have."""

import base64
import json
import re
from pathlib import Path
from urllib.parse import quote

import harness_kit
import pytest

from envace.bench.harness import network, pipeline
from envace.bench.harness.pipeline import evaluate
from envace.bench.harness.spec import EvalRoles, HarnessJob
from envace.errors import EnvironmentUnready, StageFailed, UserError
from envace.types import Endpoint, SampleStatus, replace, to_json

KEY = "sk/canary+3456=xyz"
DEAD = Endpoint(base_url="http://127.0.0.1:9/v1", model="u")
MISSING, INFRA = SampleStatus.MISSING, SampleStatus.INFRA_FAILURE
A = ("a/0", "a/1", "a/2")


@pytest.fixture
def served():
    with harness_kit.server() as (url, seen):
        yield url, seen


def go(url, tmp_path, *, bench=None, said=None, policy_hash="p1", probe_s=60.0, faults=None, **more):
    if faults:
        more["options"] = {"faults": faults}
    asked = harness_kit.request(url, tmp_path / "out", **more)
    how = {"say": (said if said is not None else []).append, "probe_s": probe_s, "bootstrap": 10}
    bench = bench or harness_kit.FakeBench()
    whose = {"policy": "tiny", "policy_hash": policy_hash}
    (score,), samples, runs = evaluate(bench, asked, tmp_path / ".harness", **how, **whose)
    return score, samples, runs


def test_every_planned_sample_is_scored(served, tmp_path):
    score, samples, runs = go(served[0], tmp_path, options={"parallel": 2})
    assert score.score == 1.0 and score.n_scored == 6 and score.policy_hash == "p1"
    assert [s.task for s in samples] == [*A, "b/0", "b/1", "b/2"]
    assert [r.job.name for r in runs] == ["a-0", "b-0"]
    assert {r.isolated for r in runs} == {network.wrap() is not None}


@pytest.mark.parametrize(
    ("faults", "value", "scored", "lost"),
    [
        ({"a/1": "missing"}, None, 5, {"a/1": MISSING}),  # whatever the exit status
        ({"b/0": "infra"}, None, 5, {"b/0": INFRA}),
        ({"b/0": "agent"}, 5 / 6, 5, {}),  # counts as nothing and is not dropped
        # bug 30 of upstream: one success among failures is no score
        (dict.fromkeys([*A, "b/0", "b/1"], "infra"), None, 1, dict.fromkeys([*A, "b/0", "b/1"], INFRA)),
    ],
)
def test_who_is_in_the_score_and_when_there_is_none(served, tmp_path, faults, value, scored, lost):
    score, samples, runs = go(served[0], tmp_path, faults=faults)
    assert score.score == (value if value is None else pytest.approx(value)) and score.n_scored == scored
    assert {s.task: s.status for s in samples if s.status in (MISSING, INFRA)} == lost
    assert score.n_missing + score.n_infra_failure == len(lost) and len(samples) == 6
    again = [json.loads((r.folder / "again.json").read_text()) for r in runs]
    assert sum(again, []) == [[task, 0] for task in lost]  # for the next run


def test_a_bad_exit_with_complete_files_is_scored(served, tmp_path):
    score, _, runs = go(served[0], tmp_path, options={"code": 3})
    assert score.score == 1.0 and runs[0].code == 3 and "exit status 3" in runs[0].reason


def test_a_harness_that_hangs_is_ended_and_its_cause_named(served, tmp_path):
    score, samples, runs = go(served[0], tmp_path, subsets=("a",), deadline_s=3.0, faults={"a/1": "hang"})
    assert score.score is None and runs[0].code is None
    assert [s.status for s in samples[1:]] == [MISSING] * 2 and "deadline of 3 s" in samples[1].error


def test_a_dead_endpoint_is_named_before_any_harness_starts(tmp_path):
    with pytest.raises(EnvironmentUnready, match="no model server answers at http://127.0.0.1:9/v1/models"):
        go(DEAD.base_url, tmp_path, probe_s=0.3)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("role", ["user", "judge"])
def test_any_roles_dead_server_is_named_before_the_harness_starts(served, tmp_path, role):
    roles = EvalRoles(agent=Endpoint(base_url=served[0], model="m"), **{role: DEAD})
    with pytest.raises(EnvironmentUnready, match="no model server answers at http://127.0.0.1:9/v1/models"):
        go(served[0], tmp_path, roles=roles, probe_s=0.3)
    assert served[1] == [] and not list(tmp_path.rglob("log.txt"))


class Alone(harness_kit.FakeBench):
    asks = ()


def test_a_role_that_a_benchmark_does_not_ask_is_neither_probed_nor_part_of_what_is_done(served, tmp_path):
    for judge in (DEAD, replace(DEAD, model="another")):
        roles = EvalRoles(agent=Endpoint(base_url=served[0], model="m"), user=DEAD, judge=judge)
        score, _, _ = go(served[0], tmp_path, bench=Alone(), roles=roles)
        assert score.score == 1.0 and len(served[1]) == 6


def told_of_roles(url, *reached, **others) -> list[str]:
    roles = EvalRoles(agent=Endpoint(base_url=url, model="m"), **others)
    asked = replace(harness_kit.request(url, Path()), roles=roles)
    said: list[str] = []
    jobs = [HarnessJob(name="j", argv=(), planned=(), reaches=reached)]
    pipeline.check_roles("fake", asked, jobs, 5.0, said.append)
    return said


def test_a_role_that_no_job_reaches_is_not_probed(served):
    assert told_of_roles(served[0], served[0], judge=DEAD) == [
        "fake: asking the agent's endpoint for its models"
    ]


@pytest.mark.parametrize(("role", "warned"), [("user", True), ("judge", True), ("", False)])
def test_a_user_that_is_the_agent_itself_is_warned_of(served, role, warned):
    other = {role: Endpoint(base_url=served[0] + "/", model="m")} if role else {}
    said = told_of_roles(served[0], served[0], **other)
    assert (f"fake: warning: the {role} is the agent's own model" in said[0]) is warned


@pytest.mark.parametrize(
    ("server", "cut", "variable", "says"),
    [
        ({"model": "other"}, "", "", "serves other and not 'm'"),
        ({}, "/v1", "", "lacks /v1"),
        ({"key": "the right one"}, "", "CANARY_KEY", "refuses the key in CANARY_KEY"),
        ({"key": "the right one"}, "", "ABSENT_KEY", "set the environment variable ABSENT_KEY"),
    ],
)
def test_what_is_wrong_with_a_server_is_named(tmp_path, monkeypatch, server, cut, variable, says):
    monkeypatch.setenv("CANARY_KEY", KEY)
    with harness_kit.server(**server) as (url, _), pytest.raises(EnvironmentUnready, match=says) as caught:
        go(url.removesuffix(cut), tmp_path, key_env=variable)
    assert KEY not in str(caught.value)


def test_a_finished_job_is_not_run_again_and_an_unfinished_one_is(served, tmp_path):
    (url, seen), said, faults = served, [], {"b/1": "once"}  # missing the first time
    go(url, tmp_path, faults=faults, said=said)
    done = [(tmp_path / f"out/{job}/done.json").exists() for job in ("a-0", "b-0")]
    assert len(seen) == 5 and done == [True, False]
    assert any(re.match(r"fake: 1 of 2 jobs have ended, about \d+ s left", line) for line in said)
    score, _, _ = go(url, tmp_path, faults=faults, said=said)
    assert len(seen) == 8 and score.score == 1.0 and any("1 of 2 jobs are done" in line for line in said)
    go(url, tmp_path, faults=faults)
    assert len(seen) == 8


def test_a_finished_evaluation_needs_no_endpoint_and_a_new_port_does_not_matter(tmp_path):
    with harness_kit.server() as (url, _):
        go(url, tmp_path)
    score, _, _ = go(DEAD.base_url, tmp_path)
    assert score.score == 1.0


def test_another_policy_is_run_anew_and_reads_nothing_of_the_earlier_one(served, tmp_path):
    go(served[0], tmp_path, policy_hash="strong")
    score, samples, _ = go(served[0], tmp_path, policy_hash="weak", faults=dict.fromkeys(A, "missing"))
    assert len(served[1]) == 9
    assert score.score is None and [s.status for s in samples[:3]] == [MISSING] * 3


def test_a_run_interrupted_between_jobs_goes_on(served, tmp_path, monkeypatch):
    real, started = pipeline.run_job, []

    def once(job, *args, **more):
        started.append(job.name)
        if len(started) == 2:
            raise KeyboardInterrupt
        return real(job, *args, **more)

    monkeypatch.setattr(pipeline, "run_job", once)
    with pytest.raises(KeyboardInterrupt):
        go(served[0], tmp_path)
    assert go(served[0], tmp_path)[0].score == 1.0


def test_a_folder_that_is_not_an_evaluations_is_left_alone(served, tmp_path):
    file = tmp_path / "out/a-0/thesis.txt"
    file.parent.mkdir(parents=True)
    file.write_text("mine")
    with pytest.raises(UserError, match="remove it"):
        go(served[0], tmp_path)
    assert file.read_text() == "mine"


def test_samples_of_another_run_fail_the_stage(served, tmp_path):
    class Stray(harness_kit.FakeBench):
        def parse(self, env, request, runs):
            found = super().parse(env, request, runs)
            return [*found, found[0]]

    with pytest.raises(StageFailed, match="do not fit the plan"):
        go(served[0], tmp_path, bench=Stray())


@pytest.mark.parametrize("isolated", [True, False])
def test_a_canary_key_is_in_no_file_of_the_outputs(tmp_path, monkeypatch, isolated):
    monkeypatch.setenv("CANARY_KEY", KEY)
    if not isolated:
        monkeypatch.setattr(network, "wrap", lambda: None)
    with harness_kit.server(key=KEY) as (url, seen):
        score, samples, _ = go(url, tmp_path, key_env="CANARY_KEY", faults={"b/0": "infra"})
    assert seen[0]["auth"] == f"Bearer {KEY}"  # it was used
    texts = [KEY, json.dumps(KEY)[1:-1], quote(KEY, safe=""), repr(KEY)[1:-1], "canary+3456"]
    inner = [base64.b64encode(b"xyz"[:n] + KEY.encode())[4:-4] for n in range(3)]
    forms = [*(text.encode() for text in texts), *inner]
    files = [p for p in tmp_path.rglob("*") if p.is_file()]
    assert {"log.txt", "info.json", "b64.txt", "results.jsonl"} <= {p.name for p in files}
    for path in files:
        content = str(path).split(str(tmp_path))[1].encode() + path.read_bytes().replace(b"CANARY_KEY", b"")
        assert not [form for form in forms if form in content], path
    assert KEY not in json.dumps([to_json(r) for r in (score, *samples)])


def test_other_keys_of_the_options_are_no_part_of_a_sample(served, tmp_path, monkeypatch):
    """The key of a tool or search server, quoted in an error in base64."""
    monkeypatch.setenv("TOOL_KEY", KEY)
    quoted = base64.b64encode(KEY.encode()).decode()

    class Quoting(harness_kit.FakeBench):
        def parse(self, env, request, runs):
            return [replace(s, error=f"{quoted} {KEY}") for s in super().parse(env, request, runs)]

    _, samples, _ = go(served[0], tmp_path, bench=Quoting(), options={"mcp_key_env": "TOOL_KEY"})
    assert {s.error for s in samples} == {"[redacted] [redacted]"}


def test_a_crashed_job_without_samples_is_run_again_though_every_sample_is_there(served, tmp_path):
    code = "import os; n = open('n', 'a'); n.write('x'); n.flush(); exit(os.path.getsize('n') < 2)"

    class WithFloor(harness_kit.FakeBench):
        def plan(self, env, request):
            floor = HarnessJob(name="floor", argv=(str(env.python), "-c", code), planned=(), goes_on=True)
            return [*super().plan(env, request), floor]

    for status in (1, 0, 0):
        score, _, runs = go(served[0], tmp_path, bench=WithFloor())
        assert score.score == 1.0 and runs[-1].code == status and len(served[1]) == 6
    assert (tmp_path / "out/floor/n").read_text() == "xx"
