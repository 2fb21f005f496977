"""tau²'s result files, real ones cut short, become the right records; nothing is dropped."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
from kit_drivers import driver_of

from envace.bench.summary import complete_plan, lost
from envace.bench.tau2.parse import cause_of, parse_folder
from envace.bench.tau2.tasks import Tau2Options
from envace.types import SampleRecord, SampleStatus

FIXTURES = Path(__file__).parent / "fixtures" / "tau2"
AGENT, INFRA, SCORED = SampleStatus.AGENT_FAILURE, SampleStatus.INFRA_FAILURE, SampleStatus.SCORED


def by_task(folder: Path, subset: str = "mock") -> dict[str, SampleRecord]:
    return {record.task.split("/", 1)[1]: record for record in parse_folder(folder, subset)}


def row(stop: str, reward: float | None, **more: object) -> dict[str, object]:
    graded = None if reward is None else {"reward": reward}
    plain = {"task_id": "7", "trial": 0, "seed": 1, "id": "x", "messages": []}
    return plain | {"termination_reason": stop, "reward_info": graded} | more


def write(folder: Path, rows: list[dict[str, object]], name: str = "results.json", tasks: tuple = ()) -> Path:
    (folder / name).write_text(json.dumps({"info": {}, "tasks": list(tasks), "simulations": rows}))
    return folder


def test_upstreams_good_run_parses_to_scored_records_of_both_trials() -> None:
    records = parse_folder(FIXTURES / "upstream_ok", "airline")
    assert {(r.task, r.trial) for r in records} == {(f"airline/{i}", t) for i in "0123" for t in (0, 1)}
    assert {(r.status, r.reward, r.metrics["upstream"], r.stop) for r in records} == {
        (SCORED, 1.0, 1.0, "user_stop")
    }
    assert len({r.seed for r in records}) == 2


def test_a_call_that_is_no_json_counts_zero_although_upstream_drops_it() -> None:
    records = parse_folder(FIXTURES / "upstream_bad_call", "airline")
    said = (AGENT, "agent: malformed call", "infrastructure_error", None)
    assert [(r.status, r.error, r.stop, r.reward) for r in records] == [said] * 2
    assert not any("upstream" in r.metrics for r in records)


def test_the_forks_flat_file_parses_like_upstreams() -> None:
    records = parse_folder(FIXTURES / "fork_ok", "airline")
    said = json.loads((FIXTURES / "fork_ok" / "results_results.json").read_text())
    assert len(records) == said["num_simulations"] == 4
    assert {r.reward for r in records} == {said["metrics"]["avg_reward"]} == {1.0}
    assert by_task(FIXTURES / "fork_ok", "airline")["1"].metrics["calls"] == 2


EXPECTED = {  # mock tasks of the recorded runs with one fault each
    "update_task_1": (AGENT, "agent: malformed call"),
    "create_task_1_nl_eval": (AGENT, "agent: context overflow"),
    "update_task_with_message_history": (AGENT, "agent: empty message"),
    "create_task_1_with_env_assertions": (AGENT, "agent: asserted state is absent"),
    "create_task_1": (SCORED, ""),
    "update_task_with_initialization_data": (INFRA, "user: empty message"),
    "impossible_task_1": (INFRA, "agent: InternalServerError"),
}


@pytest.mark.parametrize("moved", ["", "C:/x/", "lib/python3.12/site-packages/bench/a.py"])
@pytest.mark.parametrize("source", ["upstream", "fork"])
def test_tau2_159_each_fault_is_laid_at_the_right_door_wherever_the_files_lay(
    source: str, moved: str, tmp_path: Path
) -> None:
    """tau² files a full context under the infrastructure and plays the dialogue again."""
    for file in (FIXTURES / f"{source}_faults").glob("*.json*"):
        text = file.read_text()
        if moved:  # a path before it or another one in its place
            other = f"{moved}\\1" if moved.endswith("/") else moved
            text = re.sub(r'(?<=File \\")([^"\\]+)(?=\\")', other, text)
        (tmp_path / file.name).write_text(text)
    records = by_task(tmp_path)
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
    assert (record.status, record.error) == (AGENT, "agent: context overflow")
    assert not lost([record])  # its job is done: nothing asks for it again


def test_upstream_counts_none_of_its_exceptions_and_the_fork_counts_all_of_them_zero() -> None:
    upstream, fork = (by_task(FIXTURES / f"{source}_faults") for source in ("upstream", "fork"))
    died = [task for task, (status, _) in EXPECTED.items() if status is not SCORED]
    assert all("upstream" not in upstream[task].metrics for task in died)
    assert all(fork[task].metrics["upstream"] == 0.0 for task in died)
    said = json.loads((FIXTURES / "fork_faults" / "results_termination_summary.json").read_text())
    assert said["skipped_samples"] == sum(r.stop == "agent_error" for r in fork.values())


def test_a_skipped_dialogue_without_a_recorded_cause_fails_the_gate(tmp_path: Path) -> None:
    shutil.copy(FIXTURES / "fork_faults" / "results.json", tmp_path)
    skipped = [r for r in by_task(tmp_path).values() if r.stop == "agent_error"]
    assert {(r.status, r.error) for r in skipped} == {(INFRA, "failed, and the harness recorded no cause")}


def test_a_torn_line_of_causes_is_left_out_and_counted(tmp_path: Path) -> None:
    write(tmp_path, [row("user_stop", 1.0)])
    whole = {"task_id": "2", "seed": 7, "error_type": "Timeout", "error": "no answer", "error_traceback": ""}
    (tmp_path / "errors.jsonl").write_text(json.dumps(whole) + "\n" + json.dumps(whole)[:40])
    with pytest.warns(UserWarning, match="errors.jsonl: 1 torn lines"):
        assert [r.status for r in parse_folder(tmp_path, "airline")] == [SCORED]


def test_a_judge_that_fails_or_grades_too_little_is_no_score() -> None:
    records = by_task(FIXTURES / "upstream_judge", "retail")
    assert records["19"].status is INFRA and records["19"].error.startswith("judge: JSONDecodeError")
    assert records["67"].error == "judge: graded 0 of 1 assertions"
    assert records["67"].metrics["upstream"] == 1.0  # upstream takes silence for consent
    assert records["79"].reward == 1.0


@pytest.mark.parametrize(
    ("stop", "status", "reward"),
    [
        ("max_steps", SCORED, 0.0),
        ("too_many_errors", AGENT, None),
        ("agent_error", AGENT, None),
        ("user_error", INFRA, None),
        ("timeout", INFRA, None),
        ("unexpected_error", INFRA, None),
        ("a_word_of_tomorrow", INFRA, None),
    ],
)
def test_tau2_82_endings_that_upstream_does_not_grade(
    tmp_path: Path, stop: str, status: SampleStatus, reward: float | None
) -> None:
    """No part of a dialogue that ran out is graded: no checks, no breakdown, a note and a reward of 0."""
    checks = ("db_check", "env_assertions", "nl_assertions", "communicate_checks", "reward_breakdown")
    bare = dict.fromkeys(checks) | {"reward": 0.0, "info": {"note": "ended early"}}
    criteria = {"reward_basis": ["DB", "NL_ASSERTION"], "nl_assertions": ["said so"]}
    ended, task = row(stop, 0.0) | {"reward_info": bare}, {"id": "7", "evaluation_criteria": criteria}
    (record,) = parse_folder(write(tmp_path, [ended], tasks=(task,)), "retail")
    assert (record.status, record.reward, record.metrics["upstream"]) == (status, reward, 0.0)
    assert bool(record.error) is (status is not SCORED)


def test_an_ending_without_a_reward_is_no_zero(tmp_path: Path) -> None:
    (record,) = parse_folder(write(tmp_path, [row("user_stop", None)]), "airline")
    assert record.status is INFRA and "upstream" not in record.metrics


def test_a_file_cut_off_names_what_it_owed_and_an_absent_one_leaves_missing_samples(tmp_path: Path) -> None:
    planned = [("airline/7", 0), ("airline/8", 0)]
    full = complete_plan(parse_folder(tmp_path, "airline", planned), planned)
    assert [r.status for r in full] == [SampleStatus.MISSING] * 2
    text = json.dumps({"tasks": [], "simulations": [row("user_stop", 1.0)]})
    (tmp_path / "results.json").write_text(text[: len(text) // 2])
    (record,) = parse_folder(tmp_path, "airline", planned[:1])
    assert record.status is INFRA and "not readable" in record.error


def test_resuming_gives_the_agent_no_second_chance_and_the_server_one(tmp_path: Path) -> None:
    died = json.loads((FIXTURES / "upstream_faults" / "results.json").read_text())["simulations"]
    info = {s["task_id"]: s["info"] for s in died}
    causes = {"a": "update_task_1", "b": "impossible_task_1"}
    first = [row("infrastructure_error", None, task_id=t, info=info[cause]) for t, cause in causes.items()]
    write(tmp_path, first, "before-1.json")
    write(tmp_path, [row("user_stop", 1.0, task_id=t) for t in causes])
    records = by_task(tmp_path, "airline")
    assert records["a"].status is AGENT
    assert (records["b"].status, records["b"].reward) == (SCORED, 1.0)


def test_a_dialogue_that_its_judge_failed_is_played_again_and_its_new_score_counts(tmp_path: Path) -> None:
    folder = tmp_path / "raw"
    folder.mkdir()
    rows = [row("user_stop", 1.0, task_id=t, trial=k) for t in "12" for k in (0, 1)]
    asked = {"evaluation_criteria": {"reward_basis": ["NL_ASSERTION"], "nl_assertions": ["a"]}}
    tasks = ({"id": "1"}, {"id": "2", **asked})
    graded = {"reward": 0.0, "nl_assertions": [{}]}
    rows[2]["reward_info"] = graded
    write(folder, rows, tasks=tasks)
    judged = lost(parse_folder(folder, "mock"))
    assert [(s.task, s.trial, s.error) for s in judged] == [("mock/2", 1, "judge: graded 0 of 1 assertions")]
    (tmp_path / "again.json").write_text(json.dumps([[s.task, s.trial] for s in judged]))
    driver_of("tau2").keep_earlier(folder / "results.json", fork=False)
    kept = json.loads((folder / "results.json").read_text())["simulations"]
    assert kept == rows[:3] and not (tmp_path / "again.json").exists()
    write(folder, [*kept, rows[3] | {"reward_info": graded}], tasks=tasks)
    records = {(s.task, s.trial): s for s in parse_folder(folder, "mock")}
    assert len(records) == 4 and not lost(records.values()) and records["mock/2", 1].reward == 0.0


def test_what_a_server_says_about_keys_is_not_repeated(tmp_path: Path) -> None:
    error = "Incorrect API key: sk-abcdefghijklmnopqrstuv"
    info = {"error_type": "AuthenticationError", "error": error, "error_traceback": ""}
    (record,) = parse_folder(write(tmp_path, [row("infrastructure_error", None, info=info)]), "airline")
    assert record.status is INFRA and "abcdefgh" not in record.error


def test_an_unknown_exception_is_never_the_agents() -> None:
    def trace(function: str, line: str) -> str:
        return f'  File "x/tau2/agent/llm_agent.py", line 1, in {function}\n    {line}\n'

    agent = trace("step", "agent_msg, self.agent_state = self.agent.generate_next_message(")
    refused = cause_of("BadRequestError", "tool choice auto needs a parser", agent)
    assert (refused.role, refused.verdict[0]) == ("agent", INFRA)
    assert cause_of("KeyError", "'x'", "").role == "harness"
    judge = cause_of("ContextWindowExceededError", "too long", trace("evaluate_nl_assertions", "generate("))
    assert judge.verdict == (INFRA, "judge: context overflow")
