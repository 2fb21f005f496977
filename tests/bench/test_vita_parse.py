"""VitaBench's files as records: recorded outputs, cut small."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from envace.bench.harness.spec import EvalRequest, EvalRoles, HarnessEnv, HarnessJob, RawRun
from envace.bench.summary import complete_plan
from envace.bench.vita import scores
from envace.bench.vita.adapter import Vita
from envace.bench.vita.tasks import without_work
from envace.errors import DataError
from envace.types import Endpoint, SampleRecord, SampleStatus

DOMAINS = Vita.default
FIXTURES = Path(__file__).parent / "fixtures" / "vita"
TASKS = ("10711001", "10711002", "10714001")
FAULTY = ("60711001", "C0715001", "H0721002")
S = SampleStatus


def request_of(out: Path) -> EvalRequest:
    end = Endpoint(base_url="http://127.0.0.1:1/v1", model="m")
    roles = EvalRoles(agent=end, user=end, judge=end)
    return EvalRequest(roles=roles, subsets=("delivery",), trials=1, seed=1, out=out)


def parsed(
    out: Path, fixture: str | None, attempts: str | None = None, tasks=TASKS, trials: int = 1
) -> list[SampleRecord]:
    out.mkdir(parents=True, exist_ok=True)
    if fixture:
        shutil.copy(FIXTURES / fixture, out / "results.json")
    if attempts is not None:
        (out / "attempts.jsonl").write_text(attempts, encoding="utf-8")
    planned = tuple((f"delivery/{t}", k) for k in range(trials) for t in tasks)
    job = HarnessJob(name="delivery-0", argv=(), planned=planned)
    run = RawRun(job=job, folder=out, code=0, seconds=1.0, log=out / "log.txt", isolated=False)
    return complete_plan(Vita().parse(env_of(out), request_of(out), [run]), planned)


def env_of(root: Path) -> HarnessEnv:
    return HarnessEnv(spec=Vita().spec({}), root=root, python=root / "python", source=root)


def attempt(task: str, role: str = "agent", problem: str = "", ok: bool = False, error: str = "") -> str:
    line = {"task": task, "attempt": 1, "role": role, "problem": problem, "detail": "", "empty": 0, "ok": ok}
    return json.dumps(line | {"error": error}) + "\n"


def test_a_recorded_run_of_two_trials_parses_to_its_rewards(tmp_path):
    samples = parsed(tmp_path, "ok.json", trials=2)
    assert [s.status for s in samples] == [S.SCORED] * 6
    assert {s.reward for s in samples} == {1.0} and {s.stop for s in samples} == {"user_stop"}
    assert samples[0].metrics["upstream"] == samples[0].metrics["rubrics"] == 1.0
    assert samples[0].metrics["steps"] == 3 and samples[0].metrics["calls"] == 2


def test_a_task_that_upstream_drops_in_silence_is_missing(tmp_path):
    samples = parsed(tmp_path, "partial.json")
    assert [(s.task, s.status) for s in samples] == [
        ("delivery/10711001", S.SCORED),
        ("delivery/10711002", S.MISSING),
        ("delivery/10714001", S.SCORED),
    ]
    made = scores.records(("delivery",), samples, {"delivery": 0.0})
    strict, upstream = (next(r for r in made if r.source == x) for x in ("strict", "upstream"))
    assert strict.score is None is upstream.score and strict.n_missing == 1
    lenient = scores.records(("delivery",), samples, {"delivery": 0.0}, min_complete=0.5)
    assert (
        next(r for r in lenient if r.source == "upstream").score == 1.0
    )  # what its summary said of that run


def test_what_was_dropped_is_told_apart_by_whose_fault_it_was(tmp_path):
    text = (FIXTURES / "faults-attempts.jsonl").read_text()
    agent, server, fine = parsed(tmp_path, "faults.json", text, FAULTY)
    assert agent.status is S.AGENT_FAILURE and agent.error.startswith("agent: context_overflow")
    assert server.status is S.INFRA_FAILURE and server.error.startswith("agent: unreachable")
    assert fine.status is S.SCORED
    assert "upstream" not in agent.metrics and "upstream" not in server.metrics


def test_an_attempt_the_agent_spoiled_is_no_success_after_another_go(tmp_path):
    text = attempt(TASKS[0], problem="malformed_call") + attempt(TASKS[0], "judge", ok=True)
    first = parsed(tmp_path, "ok.json", text, TASKS, 2)[0]
    assert first.status is S.AGENT_FAILURE and first.reward is None and first.metrics["upstream"] == 1.0


def test_an_attempt_a_server_spoiled_costs_nothing_when_the_next_went_well(tmp_path):
    text = attempt(TASKS[0], problem="unreachable") + attempt(TASKS[0], "judge", ok=True)
    assert parsed(tmp_path, "ok.json", text, TASKS, 2)[0].status is S.SCORED


@pytest.mark.parametrize(
    ("role", "problem", "error", "named"),
    [
        ("user", "empty_message", "", "user: empty_message"),
        ("judge", "context_overflow", "", "judge: context_overflow"),
        ("judge", "", "JSONDecodeError: x", "judge: unreadable"),
        ("agent", "http_500", "", "agent: http_500"),
        ("agent", "", "KeyError: 'something new'", "harness: KeyError: 'something new'"),
    ],
)
def test_what_is_not_known_to_be_the_agents_fault_has_no_score(tmp_path, role, problem, error, named):
    sample = parsed(tmp_path, None, attempt(TASKS[0], role, problem, error=error))[0]
    assert (sample.status, sample.error) == (S.INFRA_FAILURE, named)


def edited(out: Path, **changes) -> str:
    data = json.loads((FIXTURES / "partial.json").read_text(encoding="utf-8"))
    for key, value in changes.items():
        data["simulations"][0][key] = value
    (out / "results.json").write_text(json.dumps(data), encoding="utf-8")
    return "results.json"


def test_a_judge_answer_that_names_no_rubric_is_no_zero(tmp_path):
    data = json.loads((FIXTURES / "partial.json").read_text(encoding="utf-8"))
    info = data["simulations"][0]["reward_info"]
    info["reward"], info["window_evaluations"][0]["assistant_message_content"] = (
        0.0,
        "Let me think about this.",
    )
    edited(tmp_path, reward_info=info)
    sample = parsed(tmp_path, None)[0]
    assert sample.status is S.INFRA_FAILURE and sample.error.startswith("judge: unreadable (1 of 1")
    assert sample.metrics["upstream"] == 0.0


def test_a_judge_answer_cut_at_its_token_limit_is_no_zero(tmp_path):
    data = json.loads((FIXTURES / "partial.json").read_text(encoding="utf-8"))
    edited(tmp_path, reward_info=data["simulations"][0]["reward_info"] | {"reward": 0.0})
    line = json.loads(attempt(TASKS[0], "judge", ok=True)) | {"judge_cut": 2}
    sample = parsed(tmp_path, None, json.dumps(line))[0]
    assert sample.status is S.INFRA_FAILURE and sample.error.startswith("judge: cut short (2 answers")


def test_an_agent_that_says_nothing_scores_zero_in_both(tmp_path):
    edited(tmp_path, termination_reason="invalid_agent_message", reward_info={"reward": 0.0, "info": {}})
    sample = parsed(tmp_path, None)[0]
    assert (sample.status, sample.error) == (S.AGENT_FAILURE, "agent: empty_message")
    assert sample.metrics["upstream"] == 0.0


def test_running_out_of_steps_is_an_ordinary_zero(tmp_path):
    edited(tmp_path, termination_reason="max_steps", reward_info={"reward": 0.0, "info": {}})
    sample = parsed(tmp_path, None)[0]
    assert (sample.status, sample.reward, sample.stop) == (S.SCORED, 0.0, "max_steps")


def test_a_results_file_cut_short_by_a_kill_is_missing_not_a_crash(tmp_path):
    (tmp_path / "results.json").write_text('{"simulations": [{"task_id"', encoding="utf-8")
    assert {s.status for s in parsed(tmp_path, None)} == {S.MISSING}


def test_an_attempt_that_quotes_a_line_separator_is_read_whole(tmp_path):
    line = json.loads(attempt(TASKS[0], problem="malformed_call")) | {"detail": "a\u2028b"}
    sample = parsed(tmp_path, None, json.dumps(line, ensure_ascii=False))[0]
    assert sample.status is S.AGENT_FAILURE and "a\u2028b" in sample.error


def test_a_task_twice_in_one_trial_is_refused(tmp_path):
    data = json.loads((FIXTURES / "partial.json").read_text(encoding="utf-8"))
    data["simulations"] *= 2
    (tmp_path / "results.json").write_text(json.dumps(data), encoding="utf-8")
    with pytest.raises(DataError, match="twice"):
        parsed(tmp_path, None)


def test_a_key_in_an_error_does_not_leave_the_raw_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("VITA_TEST_KEY", "canary-0123456789")
    text = attempt(TASKS[0], "agent", "", error="ValueError: sent canary-0123456789")
    out = tmp_path / "run"
    out.mkdir()
    (out / "attempts.jsonl").write_text(text)
    end = Endpoint(base_url="http://127.0.0.1:1/v1", model="m", key_env="VITA_TEST_KEY")
    request = EvalRequest(
        roles=EvalRoles(agent=end, user=end, judge=end), subsets=("delivery",), trials=1, seed=1, out=out
    )
    job = HarnessJob(name="delivery-0", argv=(), planned=((f"delivery/{TASKS[0]}", 0),))
    run = RawRun(job=job, folder=out, code=0, seconds=1.0, log=out / "log.txt", isolated=False)
    assert "canary" not in Vita().parse(env_of(out), request, [run])[0].error


def sample(task: str, trial: int, reward: float | None, status: S = S.SCORED) -> SampleRecord:
    metrics = {} if reward is None else {"reward": reward, "rubrics": reward, "steps": 1.0, "calls": 0.0}
    return SampleRecord(
        task=task,
        trial=trial,
        seed=0,
        status=status,
        reward=reward,
        metrics=metrics | ({} if reward is None else {"upstream": reward}),
    )


def test_scores_of_several_domains_and_trials_by_hand():
    samples = [
        sample("delivery/a", 0, 1.0),
        sample("delivery/a", 1, 0.0),
        sample("delivery/b", 0, 1.0),
        sample("delivery/b", 1, None, S.AGENT_FAILURE),
        sample("ota/a", 0, 1.0),
        sample("ota/a", 1, 1.0),
        sample("ota/c", 0, 0.0),
        sample("ota/c", 1, 0.0),
    ]
    made = scores.records(("delivery", "ota"), samples, {"delivery": 0.0, "ota": 0.1}, absent=("cross",))
    by = {(r.subset, r.metric, r.source): r for r in made}
    assert by["delivery", "reward", "strict"].score == 0.5
    assert by["delivery", "reward", "upstream"].score == pytest.approx(2 / 3)
    assert by["delivery", "pass_hat_2", "strict"].score == 0.0
    assert by["delivery", "pass_at_2", "strict"].score == 1.0
    assert by["ota", "pass_hat_2", "strict"].score == by["ota", "pass_at_2", "strict"].score == 0.5
    for name in ("macro", "micro"):
        average = by[name, "reward", "derived"]
        assert (average.score, average.low, average.high, average.floors) == (None, None, None, {})
        assert average.skipped == ("cross: not asked for",)
        assert average.n_tasks == 4 and average.n_agent_failure == 1


def test_vitabench_10_the_mean_over_domains_and_over_all_tasks_have_a_name_each():
    """Reports gave the cross-scenario score, others the mean of all tasks, both as "VitaBench"."""
    rewards = {
        "delivery": (1.0, 1.0, 1.0, 0.0),
        "instore": (0.0, 0.0),
        "ota": (1.0, 0.0),
        "cross": (0.0, 0.0),
    }
    samples = [sample(f"{d}/{k}", 0, r) for d, own in rewards.items() for k, r in enumerate(own)]
    floors = {"delivery": 0.5, "instore": 0.0, "ota": 0.0, "cross": 0.0}
    by = {(r.subset, r.metric, r.source): r for r in scores.records(DOMAINS, samples, floors)}
    macro, micro = (by[name, "reward", "derived"] for name in ("macro", "micro"))
    assert macro.score == pytest.approx((0.75 + 0 + 0.5 + 0) / 4) and micro.score == pytest.approx(4 / 10)
    assert macro.floors["do_nothing"] == 0.125 and micro.floors["do_nothing"] == pytest.approx(0.2)
    assert macro.low <= macro.score <= macro.high and micro.low <= micro.score <= micro.high
    assert by["cross", "reward", "strict"].score == 0.0 and (macro.skipped, micro.skipped) == ((), ())


def test_the_averages_over_domains_are_withheld_when_one_of_them_is():
    samples = [sample(f"{d}/a", 0, 1.0) for d in DOMAINS[1:]]
    samples.append(sample(f"{DOMAINS[0]}/a", 0, None, S.INFRA_FAILURE))
    made = scores.records(DOMAINS, samples, dict.fromkeys(DOMAINS, 0.0))
    assert [(r.subset, r.score, r.skipped) for r in made[-2:]] == [
        (name, None, (f"{DOMAINS[0]}: incomplete",)) for name in ("macro", "micro")
    ]


def test_a_task_without_rubrics_would_be_won_by_doing_nothing():
    assert without_work({"evaluation_criteria": {"expected_states": [{"required_orders": []}]}})
    assert not without_work({"evaluation_criteria": {"overall_rubrics": ["the order is paid"]}})
