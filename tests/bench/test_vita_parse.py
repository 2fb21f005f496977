"""VitaBench's files as records: recorded outputs, cut small; and what they are worth."""

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


def parsed(out: Path, fixture: str | None, attempts: str = "", tasks=TASKS, trials=1) -> list[SampleRecord]:
    out.mkdir(parents=True, exist_ok=True)
    if fixture:
        shutil.copy(FIXTURES / fixture, out / "results.json")
    (out / "attempts.jsonl").write_text(attempts, encoding="utf-8")
    planned = tuple((f"delivery/{t}", k) for k in range(trials) for t in tasks)
    job = HarnessJob(name="delivery-0", argv=(), planned=planned)
    run = RawRun(job=job, folder=out, code=0, seconds=1.0, log=out / "log.txt", isolated=False)
    env = HarnessEnv(spec=Vita().spec({}), root=out, python=out / "python", source=out)
    end = Endpoint(base_url="http://127.0.0.1:1/v1", model="m", key_env="VITA_TEST_KEY")
    roles = EvalRoles(agent=end, user=end, judge=end)
    request = EvalRequest(roles=roles, subsets=("delivery",), trials=1, seed=1, out=out)
    return complete_plan(Vita().parse(env, request, [run]), planned)


def attempt(role: str = "agent", problem: str = "", ok: bool = False, **more) -> str:
    line = {"task": TASKS[0], "attempt": 1, "role": role, "problem": problem, "detail": "", "empty": 0}
    return json.dumps(line | {"ok": ok} | more, ensure_ascii=False) + "\n"


def test_a_recorded_run_of_two_trials_parses_to_its_rewards(tmp_path):
    samples = parsed(tmp_path, "ok.json", trials=2)
    assert [s.status for s in samples] == [S.SCORED] * 6
    assert {s.reward for s in samples} == {1.0} and {s.stop for s in samples} == {"user_stop"}
    expected = {"upstream": 1.0, "rubrics": 1.0, "steps": 3, "calls": 2}
    assert expected.items() <= samples[0].metrics.items()


def test_a_task_that_upstream_drops_in_silence_is_missing(tmp_path):
    samples = parsed(tmp_path, "partial.json")
    statuses = dict(zip(TASKS, (S.SCORED, S.MISSING, S.SCORED)))
    assert {s.task: s.status for s in samples} == {f"delivery/{t}": status for t, status in statuses.items()}
    for least, printed in ((1.0, None), (0.5, 1.0)):  # what its summary said of that run
        made = scores.records(("delivery",), samples, {"delivery": 0.0}, min_complete=least)
        strict, upstream = (next(r for r in made if r.source == x) for x in ("strict", "upstream"))
        assert upstream.score == printed and strict.n_missing == 1
        assert least < 1 or strict.score is None


def test_what_was_dropped_is_told_apart_by_whose_fault_it_was(tmp_path):
    text = (FIXTURES / "faults-attempts.jsonl").read_text()
    agent, server, fine = parsed(tmp_path, "faults.json", text, FAULTY)
    assert agent.status is S.AGENT_FAILURE and agent.error.startswith("agent: context_overflow")
    assert server.status is S.INFRA_FAILURE and server.error.startswith("agent: unreachable")
    assert fine.status is S.SCORED
    assert "upstream" not in agent.metrics and "upstream" not in server.metrics


@pytest.mark.parametrize(
    ("problem", "status"), [("malformed_call", S.AGENT_FAILURE), ("unreachable", S.SCORED)]
)
def test_only_an_attempt_the_agent_spoiled_is_no_success_after_another_go(tmp_path, problem, status):
    first = parsed(tmp_path, "ok.json", attempt(problem=problem) + attempt("judge", ok=True), TASKS, 2)[0]
    assert first.status is status and first.metrics["upstream"] == 1.0
    assert first.reward == (1.0 if status is S.SCORED else None)


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
    sample = parsed(tmp_path, None, attempt(role, problem, error=error))[0]
    assert (sample.status, sample.error) == (S.INFRA_FAILURE, named)


def unread(info):
    info["window_evaluations"][0]["assistant_message_content"] = "Let me think about this."
    return {"reward_info": info | {"reward": 0.0}}


@pytest.mark.parametrize(
    ("change", "attempts", "status", "error", "stop"),
    [
        (unread, "", S.INFRA_FAILURE, "judge: unreadable (1 of 1", "user_stop"),
        (
            lambda info: {"reward_info": info | {"reward": 0.0}},
            attempt("judge", ok=True, judge_cut=2),
            S.INFRA_FAILURE,
            "judge: cut short (2 answers",
            "user_stop",
        ),
        (
            lambda info: {"termination_reason": "invalid_agent_message", "reward_info": {"reward": 0.0}},
            "",
            S.AGENT_FAILURE,
            "agent: empty_message",
            "invalid_agent_message",
        ),
        (
            lambda info: {"termination_reason": "max_steps", "reward_info": {"reward": 0.0, "info": {}}},
            "",
            S.SCORED,
            "",
            "max_steps",
        ),
    ],
)
def test_a_zero_is_the_agents_own_or_no_score(tmp_path, change, attempts, status, error, stop):
    data = json.loads((FIXTURES / "partial.json").read_text(encoding="utf-8"))
    data["simulations"][0] |= change(data["simulations"][0]["reward_info"])
    (tmp_path / "results.json").write_text(json.dumps(data), encoding="utf-8")
    sample = parsed(tmp_path, None, attempts)[0]
    assert (sample.status, sample.stop) == (status, stop) and sample.error.startswith(error)
    assert sample.metrics["upstream"] == 0.0 and sample.reward == (0.0 if status is S.SCORED else None)


def test_a_results_file_cut_short_by_a_kill_is_missing_and_one_of_two_runs_refused(tmp_path):
    (tmp_path / "results.json").write_text('{"simulations": [{"task_id"', encoding="utf-8")
    assert {s.status for s in parsed(tmp_path, None)} == {S.MISSING}
    data = json.loads((FIXTURES / "partial.json").read_text(encoding="utf-8"))
    data["simulations"] *= 2
    (tmp_path / "results.json").write_text(json.dumps(data), encoding="utf-8")
    with pytest.raises(DataError, match="twice"):
        parsed(tmp_path, None)


def test_an_attempt_is_quoted_whole_but_for_keys(tmp_path, monkeypatch):
    monkeypatch.setenv("VITA_TEST_KEY", "canary-0123456789")
    sample = parsed(tmp_path, None, attempt(problem="malformed_call", detail="a\u2028b"))[0]
    assert sample.status is S.AGENT_FAILURE and "a\u2028b" in sample.error
    sample = parsed(tmp_path, None, attempt(error="ValueError: sent canary-0123456789"))[0]
    assert sample.error.startswith("harness: ValueError") and "canary" not in sample.error


def sample(task: str, trial: int, reward: float | None, status: S = S.SCORED) -> SampleRecord:
    numbers = {} if reward is None else dict.fromkeys(("reward", "rubrics", "upstream"), reward)
    metrics = numbers and numbers | {"steps": 1.0, "calls": 0.0}
    return SampleRecord(task=task, trial=trial, seed=0, status=status, reward=reward, metrics=metrics)


def test_scores_of_several_domains_and_trials_by_hand():
    rewards = {"delivery/a": (1.0, 0.0), "delivery/b": (1.0, None), "ota/a": (1.0, 1.0), "ota/c": (0.0, 0.0)}
    samples = [
        sample(task, k, r, S.AGENT_FAILURE if r is None else S.SCORED)
        for task, trials in rewards.items()
        for k, r in enumerate(trials)
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
    rewards = dict(zip(DOMAINS, ((1.0, 1.0, 1.0, 0.0), (0.0, 0.0), (1.0, 0.0), (0.0, 0.0))))
    samples = [sample(f"{d}/{k}", 0, r) for d, own in rewards.items() for k, r in enumerate(own)]
    floors = dict.fromkeys(DOMAINS, 0.0) | {"delivery": 0.5}
    by = {(r.subset, r.metric, r.source): r for r in scores.records(DOMAINS, samples, floors)}
    macro, micro = (by[name, "reward", "derived"] for name in ("macro", "micro"))
    assert macro.score == pytest.approx((0.75 + 0 + 0.5 + 0) / 4) and micro.score == pytest.approx(4 / 10)
    assert macro.floors["do_nothing"] == 0.125 and micro.floors["do_nothing"] == pytest.approx(0.2)
    assert macro.low <= macro.score <= macro.high and micro.low <= micro.score <= micro.high
    assert by["cross", "reward", "strict"].score == 0.0 and (macro.skipped, micro.skipped) == ((), ())
    lost = [s for s in samples if s.task != "delivery/0"] + [sample("delivery/0", 0, None, S.INFRA_FAILURE)]
    made = scores.records(DOMAINS, lost, floors)[-2:]
    assert [(r.subset, r.score, r.skipped) for r in made] == [
        (name, None, ("delivery: incomplete",)) for name in ("macro", "micro")
    ]


def test_a_task_without_rubrics_would_be_won_by_doing_nothing():
    assert without_work({"evaluation_criteria": {"expected_states": [{"required_orders": []}]}})
    assert not without_work({"evaluation_criteria": {"overall_rubrics": ["the order is paid"]}})
