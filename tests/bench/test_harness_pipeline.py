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


@pytest.fixture
def served():
    with harness_kit.server() as (url, seen):
        yield url, seen


def go(url, tmp_path, *, bench=None, said=None, policy_hash="p1", probe_s=60.0, **more):
    asked = harness_kit.request(url, tmp_path / "out", **more)
    say = (said if said is not None else []).append
    return evaluate(
        bench or harness_kit.FakeBench(),
        asked,
        tmp_path / ".harness",
        say=say,
        probe_s=probe_s,
        bootstrap=10,
        policy="tiny",
        policy_hash=policy_hash,
    )


def test_every_planned_sample_is_scored(served, tmp_path):
    (score,), samples, runs = go(served[0], tmp_path, options={"parallel": 2})
    assert score.score == 1.0 and score.n_scored == 6 and score.policy_hash == "p1"
    assert [s.task for s in samples] == ["a/0", "a/1", "a/2", "b/0", "b/1", "b/2"]
    assert [r.job.name for r in runs] == ["a-0", "b-0"] and all(
        r.isolated == (network.wrap() is not None) for r in runs
    )


def test_a_missing_sample_withholds_the_score_whatever_the_exit_status(served, tmp_path):
    (score,), samples, runs = go(served[0], tmp_path, options={"faults": {"a/1": "missing"}})
    assert score.score is None and score.n_missing == 1 and runs[0].code == 0
    assert samples[1].status is SampleStatus.MISSING and len(samples) == 6


def test_an_infrastructure_failure_withholds_the_score(served, tmp_path):
    (score,), samples, _ = go(served[0], tmp_path, options={"faults": {"b/0": "infra"}})
    assert (
        score.score is None and score.n_infra_failure == 1 and samples[3].status is SampleStatus.INFRA_FAILURE
    )


def test_an_agent_failure_counts_as_nothing_and_is_not_dropped(served, tmp_path):
    (score,), _, _ = go(served[0], tmp_path, options={"faults": {"b/0": "agent"}})
    assert score.score == pytest.approx(5 / 6) and score.n_agent_failure == 1


def test_a_bad_exit_with_complete_files_is_scored(served, tmp_path):
    (score,), _, runs = go(served[0], tmp_path, options={"code": 3})
    assert score.score == 1.0 and runs[0].code == 3 and "exit status 3" in runs[0].reason


def test_a_harness_that_hangs_is_ended_and_its_cause_named(served, tmp_path):
    (score,), samples, runs = go(
        served[0], tmp_path, subsets=("a",), deadline_s=3.0, options={"faults": {"a/1": "hang"}}
    )
    assert score.score is None and runs[0].code is None
    assert [s.status for s in samples[1:]] == [SampleStatus.MISSING, SampleStatus.MISSING]
    assert "deadline of 3 s" in samples[1].error


def test_a_dead_endpoint_is_named_before_any_harness_starts(tmp_path):
    with harness_kit.server() as (url, _):
        pass
    with pytest.raises(EnvironmentUnready, match="no model server answers at http://127.0.0.1"):
        go(url, tmp_path, probe_s=1.0)
    assert not (tmp_path / "out").exists()


def test_the_wrong_model_a_refused_key_and_a_missing_v1_are_named(tmp_path, monkeypatch):
    monkeypatch.setenv("CANARY_KEY", KEY)
    with harness_kit.server(model="other") as (url, _):
        with pytest.raises(EnvironmentUnready, match="serves other and not 'm'"):
            go(url, tmp_path)
        with pytest.raises(EnvironmentUnready, match="lacks /v1"):
            go(url.removesuffix("/v1"), tmp_path)
    with harness_kit.server(key="the right one") as (url, _):
        with pytest.raises(EnvironmentUnready, match="refuses the key in CANARY_KEY") as caught:
            go(url, tmp_path, key_env="CANARY_KEY")
        assert KEY not in str(caught.value)
        with pytest.raises(EnvironmentUnready, match="set the environment variable ABSENT_KEY"):
            go(url, tmp_path, key_env="ABSENT_KEY")


def test_a_finished_job_is_not_run_again_and_an_unfinished_one_is(served, tmp_path):
    url, seen = served
    faults = {"b/1": "once"}  # missing the first time
    go(url, tmp_path, options={"faults": faults})
    assert (
        len(seen) == 5
        and (tmp_path / "out/a-0/done.json").exists()
        and not (tmp_path / "out/b-0/done.json").exists()
    )
    said: list[str] = []
    (score,), _, _ = go(url, tmp_path, options={"faults": faults}, said=said)
    assert len(seen) == 8 and score.score == 1.0 and any("1 of 2 jobs are done" in line for line in said)
    go(url, tmp_path, options={"faults": faults})
    assert len(seen) == 8


def test_a_finished_evaluation_needs_no_endpoint_and_a_new_port_does_not_matter(tmp_path):
    with harness_kit.server() as (url, _):
        go(url, tmp_path)
    with harness_kit.server() as (again, seen):
        pass
    (score,), _, _ = go(again, tmp_path)
    assert score.score == 1.0 and not seen and again != url


def test_another_policy_behind_the_same_address_is_run_anew(served, tmp_path):
    go(served[0], tmp_path)
    go(served[0], tmp_path, policy_hash="p2")
    assert len(served[1]) == 12


def test_bug_30_results_of_another_model_in_the_folder_are_not_read(served, tmp_path):
    go(served[0], tmp_path, policy_hash="strong")
    faults = {"a/0": "missing", "a/1": "missing", "a/2": "missing"}
    (score,), samples, _ = go(served[0], tmp_path, policy_hash="weak", options={"faults": faults})
    assert score.score is None and [s.status for s in samples[:3]] == [SampleStatus.MISSING] * 3


def test_bug_30_one_success_among_infrastructure_failures_is_no_score(served, tmp_path):
    faults = {f"{subset}/{i}": "infra" for subset in "ab" for i in range(3)} | {"b/2": "ok"}
    (score,), _, _ = go(served[0], tmp_path, options={"faults": faults})
    assert score.score is None and (score.n_scored, score.n_infra_failure) == (1, 5)


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
    (score,), _, _ = go(served[0], tmp_path)
    assert score.score == 1.0


def test_a_folder_that_is_not_an_evaluations_is_left_alone(served, tmp_path):
    (tmp_path / "out" / "a-0").mkdir(parents=True)
    (tmp_path / "out" / "a-0" / "thesis.txt").write_text("mine")
    with pytest.raises(UserError, match="remove it"):
        go(served[0], tmp_path)
    assert (tmp_path / "out" / "a-0" / "thesis.txt").read_text() == "mine"


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
        scores, samples, _ = go(url, tmp_path, key_env="CANARY_KEY", options={"faults": {"b/0": "infra"}})
    assert seen[0]["auth"] == f"Bearer {KEY}"  # it was used
    raw = KEY.encode()
    forms = [
        raw,
        json.dumps(KEY)[1:-1].encode(),
        quote(KEY, safe="").encode(),
        repr(KEY)[1:-1].encode(),
        b"canary+3456",
    ]
    forms += [base64.b64encode(b"xyz"[:n] + raw)[4:-4] for n in range(3)]
    files = [p for p in tmp_path.rglob("*") if p.is_file()]
    assert {"log.txt", "info.json", "b64.txt", "results.jsonl"} <= {p.name for p in files}
    for path in files:
        content = str(path).split(str(tmp_path))[1].encode() + path.read_bytes().replace(b"CANARY_KEY", b"")
        assert not [form for form in forms if form in content], path
    assert KEY not in json.dumps([to_json(r) for r in (*scores, *samples)])


@pytest.mark.parametrize(("role", "warned"), [("user", True), ("judge", True), ("", False)])
def test_a_user_that_is_the_agent_itself_is_warned_of(served, tmp_path, role, warned):
    agent = Endpoint(base_url=served[0], model="m")
    other = {role: replace(agent, base_url=served[0] + "/")} if role else {}
    asked = replace(harness_kit.request(served[0], tmp_path), roles=EvalRoles(agent=agent, **other))
    said: list[str] = []
    jobs = [HarnessJob(name="j", argv=(), planned=(), reaches=(served[0],))]
    pipeline.check_roles("fake", asked, jobs, 60.0, said.append)
    assert (f"fake: warning: the {role} is the agent's own model" in said[0]) is warned


@pytest.mark.parametrize("role", ["user", "judge"])
def test_any_roles_dead_server_is_named_before_the_harness_starts(served, tmp_path, role):
    roles = EvalRoles(
        agent=Endpoint(base_url=served[0], model="m"),
        **{role: Endpoint(base_url="http://127.0.0.1:9/v1", model="u")},
    )
    asked = replace(harness_kit.request(served[0], tmp_path / "out"), roles=roles)
    with pytest.raises(EnvironmentUnready, match="no model server answers at http://127.0.0.1:9/v1/models"):
        evaluate(harness_kit.FakeBench(), asked, tmp_path / ".harness", say=[].append, probe_s=0.3)
    assert served[1] == [] and not list(tmp_path.rglob("log.txt"))


def test_other_keys_of_the_options_are_no_part_of_a_sample(served, tmp_path, monkeypatch):
    """The key of a tool or search server, quoted in an error in base64."""
    monkeypatch.setenv("TOOL_KEY", KEY)
    quoted = base64.b64encode(KEY.encode()).decode()

    class Quoting(harness_kit.FakeBench):
        def parse(self, env, request, runs):
            made = super().parse(env, request, runs)
            return [replace(s, error=f"{quoted} {KEY}") for s in made]

    _, samples, _ = go(served[0], tmp_path, bench=Quoting(), options={"mcp_key_env": "TOOL_KEY"})
    assert {s.error for s in samples} == {"[redacted] [redacted]"}


def test_a_crashed_job_without_samples_is_run_again_though_every_sample_is_there(served, tmp_path):
    class WithFloor(harness_kit.FakeBench):
        def plan(self, env, request):
            code = (
                "import os; n = open('n', 'a'); n.write('x'); n.flush(); raise "
                "SystemExit(os.path.getsize('n') < 2)"
            )
            argv = (str(env.python), "-c", code)
            return [
                *super().plan(env, request),
                HarnessJob(name="floor", argv=argv, planned=(), goes_on=True),
            ]

    url, seen = served
    for code in (1, 0, 0):
        (score,), _, runs = go(url, tmp_path, bench=WithFloor())
        assert score.score == 1.0 and runs[-1].code == code and len(seen) == 6
    assert (tmp_path / "out/floor/n").read_text() == "xx"


class Alone(harness_kit.FakeBench):
    asks = ()


def test_a_role_that_a_benchmark_does_not_ask_is_neither_probed_nor_part_of_what_is_done(served, tmp_path):
    dead = Endpoint(base_url="http://127.0.0.1:9/v1", model="u")
    for judge in (dead, replace(dead, model="another")):
        roles = EvalRoles(agent=Endpoint(base_url=served[0], model="m"), user=dead, judge=judge)
        (score,), _, _ = go(served[0], tmp_path, bench=Alone(), roles=roles)
        assert score.score == 1.0 and len(served[1]) == 6


def test_a_role_that_no_job_reaches_is_not_probed(served):
    dead = Endpoint(base_url="http://127.0.0.1:9/v1", model="u")
    roles = EvalRoles(agent=Endpoint(base_url=served[0], model="m"), judge=dead)
    asked = replace(harness_kit.request(served[0], Path()), roles=roles)
    jobs = [HarnessJob(name="j", argv=(), planned=(), reaches=(served[0],))]
    said: list[str] = []
    pipeline.check_roles("fake", asked, jobs, 5.0, said.append)
    assert said == ["fake: asking the agent's endpoint for its models"]


def test_samples_without_a_score_are_named_for_the_next_run_and_it_says_how_many_jobs_are_left(
    served, tmp_path
):
    said: list[str] = []
    go(served[0], tmp_path, options={"faults": {"a/1": "infra", "a/2": "agent", "b/0": "missing"}}, said=said)
    again = {job: json.loads((tmp_path / f"out/{job}/again.json").read_text()) for job in ("a-0", "b-0")}
    assert again == {"a-0": [["a/1", 0]], "b-0": [["b/0", 0]]}
    assert any(re.match(r"fake: 1 of 2 jobs have ended, about \d+ s left", line) for line in said)
