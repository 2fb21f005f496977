"""tau²'s result files, real ones cut short, become the right records; nothing is dropped."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from envace.bench.summary import complete_plan, lost
from envace.bench.tau2.parse import cause_of, parse_folder
from envace.bench.tau2.tasks import Tau2Options
from envace.types import SampleRecord, SampleStatus

FIXTURES = Path(__file__).parent / "fixtures" / "tau2"


def by_task(folder: Path, subset: str = "mock") -> dict[str, SampleRecord]:
    return {record.task.split("/", 1)[1]: record for record in parse_folder(folder, subset)}


def test_upstreams_good_run_parses_to_scored_records_of_both_trials() -> None:
    records = parse_folder(FIXTURES / "upstream_ok", "airline")
    assert {(r.task, r.trial) for r in records} == {(f"airline/{i}", t) for i in "0123" for t in (0, 1)}
    assert all(r.status is SampleStatus.SCORED and r.reward == 1.0 for r in records)
    assert all(r.metrics["upstream"] == 1.0 and r.stop == "user_stop" for r in records)
    assert len({r.seed for r in records}) == 2


def test_a_call_that_is_no_json_counts_zero_although_upstream_drops_it() -> None:
    records = parse_folder(FIXTURES / "upstream_bad_call", "airline")
    assert [r.status for r in records] == [SampleStatus.AGENT_FAILURE] * 2
    assert all(r.error == "agent: malformed call" and "upstream" not in r.metrics for r in records)
    assert all(r.stop == "infrastructure_error" and r.reward is None for r in records)


def test_the_forks_flat_file_parses_like_upstreams() -> None:
    records = parse_folder(FIXTURES / "fork_ok", "airline")
    said = json.loads((FIXTURES / "fork_ok" / "results_results.json").read_text())
    assert len(records) == said["num_simulations"] == 4
    assert {r.reward for r in records} == {said["metrics"]["avg_reward"]} == {1.0}
    assert by_task(FIXTURES / "fork_ok", "airline")["1"].metrics["calls"] == 2


EXPECTED = {  # mock tasks of the recorded runs with one fault each
    "update_task_1": (SampleStatus.AGENT_FAILURE, "agent: malformed call"),
    "create_task_1_nl_eval": (SampleStatus.AGENT_FAILURE, "agent: context overflow"),
    "update_task_with_message_history": (SampleStatus.AGENT_FAILURE, "agent: empty message"),
    "create_task_1_with_env_assertions": (SampleStatus.AGENT_FAILURE, "agent: asserted state is absent"),
    "create_task_1": (SampleStatus.SCORED, ""),
    "update_task_with_initialization_data": (SampleStatus.INFRA_FAILURE, "user: empty message"),
    "impossible_task_1": (SampleStatus.INFRA_FAILURE, "agent: InternalServerError"),
}


@pytest.mark.parametrize("source", ["upstream", "fork"])
def test_tau2_159_each_fault_is_laid_at_the_right_door(source: str) -> None:
    """tau² files a full context under the infrastructure and plays the dialogue again."""
    records = by_task(FIXTURES / f"{source}_faults")
    for task, (status, error) in EXPECTED.items():
        assert records[task].status is status, task
        assert records[task].error.startswith(error), task
    assert records["create_task_1"].reward == 0.0


def test_tau2_159_a_full_context_is_neither_played_again_nor_forgotten_on_resuming(tmp_path: Path) -> None:
    assert Tau2Options().retries == 0  # whole dialogues; tau²'s own default is 3
    file = json.loads((FIXTURES / "upstream_faults" / "results.json").read_text())
    (first,) = [s for s in file["simulations"] if s["task_id"] == "create_task_1_nl_eval"]
    write(tmp_path, [first], "before-1.json")
    write(tmp_path, [first | {"termination_reason": "user_stop", "reward_info": {"reward": 1.0}}])
    (record,) = parse_folder(tmp_path, "mock")
    assert (record.status, record.error) == (SampleStatus.AGENT_FAILURE, "agent: context overflow")
    assert not lost([record])  # its job is done: nothing asks for it again


def test_upstream_counts_none_of_its_exceptions_and_the_fork_counts_all_of_them_zero() -> None:
    upstream, fork = (by_task(FIXTURES / f"{source}_faults") for source in ("upstream", "fork"))
    died = [task for task, (status, _) in EXPECTED.items() if status is not SampleStatus.SCORED]
    assert all("upstream" not in upstream[task].metrics for task in died)
    assert all(fork[task].metrics["upstream"] == 0.0 for task in died)
    said = json.loads((FIXTURES / "fork_faults" / "results_termination_summary.json").read_text())
    assert said["skipped_samples"] == sum(r.stop == "agent_error" for r in fork.values())


def test_a_skipped_dialogue_without_a_recorded_cause_fails_the_gate(tmp_path: Path) -> None:
    shutil.copy(FIXTURES / "fork_faults" / "results.json", tmp_path)
    records = by_task(tmp_path)
    skipped = [r for r in records.values() if r.stop == "agent_error"]
    assert skipped and all(r.status is SampleStatus.INFRA_FAILURE for r in skipped)
    assert {r.error for r in skipped} == {"failed, and the harness recorded no cause"}


def test_a_judge_that_fails_or_grades_too_little_is_no_score() -> None:
    records = by_task(FIXTURES / "upstream_judge", "retail")
    assert records["19"].status is SampleStatus.INFRA_FAILURE
    assert records["19"].error.startswith("judge: JSONDecodeError")
    assert records["67"].error == "judge: graded 0 of 1 assertions"
    assert records["67"].metrics["upstream"] == 1.0  # upstream takes silence for consent
    assert records["79"].reward == 1.0


def row(stop: str, reward: float | None, **more: object) -> dict[str, object]:
    return {
        "task_id": "7",
        "trial": 0,
        "seed": 1,
        "id": "x",
        "messages": [],
        "termination_reason": stop,
        "reward_info": None if reward is None else {"reward": reward},
        **more,
    }


def write(folder: Path, rows: list[dict[str, object]], name: str = "results.json") -> Path:
    (folder / name).write_text(json.dumps({"info": {}, "tasks": [], "simulations": rows}))
    return folder


@pytest.mark.parametrize(
    ("stop", "status", "reward"),
    [
        ("max_steps", SampleStatus.SCORED, 0.0),
        ("too_many_errors", SampleStatus.AGENT_FAILURE, None),
        ("agent_error", SampleStatus.AGENT_FAILURE, None),
        ("user_error", SampleStatus.INFRA_FAILURE, None),
        ("timeout", SampleStatus.INFRA_FAILURE, None),
        ("unexpected_error", SampleStatus.INFRA_FAILURE, None),
        ("a_word_of_tomorrow", SampleStatus.INFRA_FAILURE, None),
    ],
)
def test_tau2_82_endings_that_upstream_does_not_grade(
    tmp_path: Path, stop: str, status: SampleStatus, reward: float | None
) -> None:
    (record,) = parse_folder(write(tmp_path, [row(stop, 0.0)]), "airline")
    assert (record.status, record.reward) == (status, reward)
    assert record.metrics["upstream"] == 0.0
    assert bool(record.error) is (status is not SampleStatus.SCORED)


@pytest.mark.parametrize("stop", ["max_steps", "too_many_errors"])
def test_tau2_82_an_ending_without_sub_rewards_is_read_as_it_stands(tmp_path: Path, stop: str) -> None:
    """tau² grades no part of a dialogue that ran out: no checks, no breakdown, a note and a reward of 0."""
    checks = ("db_check", "env_assertions", "nl_assertions", "communicate_checks", "reward_breakdown")
    bare = dict.fromkeys(checks) | {"reward": 0.0, "info": {"note": "ended early"}}
    judged = {
        "id": "7",
        "evaluation_criteria": {"reward_basis": ["DB", "NL_ASSERTION"], "nl_assertions": ["said so"]},
    }
    ended = row(stop, 0.0) | {"reward_info": bare}
    (tmp_path / "results.json").write_text(json.dumps({"tasks": [judged], "simulations": [ended]}))
    (record,) = parse_folder(tmp_path, "retail")
    wanted = (SampleStatus.SCORED, 0.0) if stop == "max_steps" else (SampleStatus.AGENT_FAILURE, None)
    assert (record.status, record.reward) == wanted and record.metrics["upstream"] == 0.0


def test_an_ending_without_a_reward_is_no_zero(tmp_path: Path) -> None:
    (record,) = parse_folder(write(tmp_path, [row("user_stop", None)]), "airline")
    assert record.status is SampleStatus.INFRA_FAILURE and "upstream" not in record.metrics


def test_a_file_cut_off_in_the_middle_names_what_it_owed(tmp_path: Path) -> None:
    text = json.dumps({"tasks": [], "simulations": [row("user_stop", 1.0)]})
    (tmp_path / "results.json").write_text(text[: len(text) // 2])
    (record,) = parse_folder(tmp_path, "airline", [("airline/7", 0)])
    assert record.status is SampleStatus.INFRA_FAILURE and "not readable" in record.error


def test_a_run_that_left_no_file_leaves_missing_samples(tmp_path: Path) -> None:
    planned = [("airline/7", 0), ("airline/8", 0)]
    full = complete_plan(parse_folder(tmp_path, "airline", planned), planned)
    assert [r.status for r in full] == [SampleStatus.MISSING] * 2


def test_resuming_gives_the_agent_no_second_chance_and_the_server_one(tmp_path: Path) -> None:
    died = json.loads((FIXTURES / "upstream_faults" / "results.json").read_text())["simulations"]
    info = {s["task_id"]: s["info"] for s in died}
    first = [
        row("infrastructure_error", None, task_id="a", info=info["update_task_1"]),
        row("infrastructure_error", None, task_id="b", info=info["impossible_task_1"]),
    ]
    write(tmp_path, first, "before-1.json")
    write(tmp_path, [row("user_stop", 1.0, task_id="a"), row("user_stop", 1.0, task_id="b")])
    records = by_task(tmp_path, "airline")
    assert records["a"].status is SampleStatus.AGENT_FAILURE
    assert records["b"].status is SampleStatus.SCORED and records["b"].reward == 1.0


def test_what_a_server_says_about_keys_is_not_repeated(tmp_path: Path) -> None:
    info = {
        "error_type": "AuthenticationError",
        "error": "Incorrect API key: sk-abcdefghijklmnopqrstuv",
        "error_traceback": "",
    }
    write(tmp_path, [row("infrastructure_error", None, info=info)])
    (record,) = parse_folder(tmp_path, "airline")
    assert record.status is SampleStatus.INFRA_FAILURE and "abcdefgh" not in record.error


def test_an_unknown_exception_is_never_the_agents() -> None:
    trace = 'File "x/tau2/agent/llm_agent.py", line 1, in generate\n    generate(\n'
    assert (
        cause_of("BadRequestError", "tool choice auto needs a parser", trace).verdict[0]
        is SampleStatus.INFRA_FAILURE
    )
    assert cause_of("KeyError", "'x'", "").role == "harness"
    judge = 'File "x/tau2/evaluator/evaluator_nl_assertions.py", line 1, in f\n    generate(\n'
    assert cause_of("ContextWindowExceededError", "too long", judge).verdict[0] is SampleStatus.INFRA_FAILURE
