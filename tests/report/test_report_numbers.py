"""The numbers of the report, by hand: before and after, seeds and arms, rehearsals.

Run: pytest tests/report/test_report_numbers.py
"""

import dataclasses
import json
import shutil
from pathlib import Path

import pytest
from view_samples import EXAMPLE, evaluation, write_run

from envace.config import Params
from envace.data.store import write_tasks
from envace.report.load import load_results
from envace.report.report import build


@pytest.fixture(scope="module")
def study_params(params: Params) -> Params:
    """Two seeds of the headline arm, one control, one supervised policy, two benchmarks."""
    policies = ("start", "envace-1", "envace-2", "zero_reward-1", "sft-1")
    runs = ("envace-1", "envace-2", "zero_reward-1", "zero_reward-2")
    train = dataclasses.replace(params.train, runs=runs)
    score = dataclasses.replace(params.eval, policies=policies, benchmarks=("desk", "desk-unseen"))
    arms = {"zero_reward": {"lone": "zero"}}
    return dataclasses.replace(params, train=train, eval=score, arms=arms)


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory, study_params: Params) -> Path:
    root = write_run(tmp_path_factory.mktemp("study"))
    evaluation(root, "envace-2", "desk", (1, 0, 1, 0))
    evaluation(root, "zero_reward-1", "desk", (0, 0, 1, 0))
    evaluation(root, "sft-1", "desk", (1, 0, 0, 0))
    for policy, wins in (("start", (0, 0, 0, 0)), ("envace-1", (1, 1, 1, 1)), ("envace-2", (1, 1, 1, 1))):
        evaluation(root, policy, "desk-unseen", wins)
    for split in ("train", "held"):
        write_tasks(root / f"data/staged/{split}.parquet", [EXAMPLE])
    build(root, study_params)
    return root


def numbers(root: Path) -> dict[str, float]:
    return json.loads((root / "report/summary.json").read_text())


def markdown(root: Path) -> str:
    return (root / "report/report.md").read_text().replace("\\", "")


def test_a_whole_run_yields_the_headline_numbers(report: Path) -> None:
    summary = numbers(report.parent)
    assert summary["eval/desk_start"] == pytest.approx(0.25)
    assert summary["eval/desk_envace-1"] == pytest.approx(0.75)
    assert summary["eval/gain"] == pytest.approx(0.5)  # tasks 0 and 1 won over, two of four
    assert summary["eval/gain_low"] <= 0.5 <= summary["eval/gain_high"]
    assert summary["tts/plain-0"] == pytest.approx(0.5) and summary["tts/parallel-2"] == pytest.approx(0.75)
    assert summary["tts/parallel-2_gain"] == summary["tts/sequential-2_gain"] == pytest.approx(0.25)
    assert summary["tts/parallel-2_self_evaluations"] == 7 and summary["tts/parallel-2_tokens"] == 480
    assert summary["fidelity/exact"] == summary["fidelity/exact_envace-1"] == 0.5
    assert summary["fidelity/exact_start"] == 0.25 and summary["fidelity/copy.exact"] == 0.5
    assert summary["gap/collusion"] == 0.5 and summary["gap/collusion_start"] == 1.0
    assert summary["train/reward_last"] == pytest.approx(0.6)


def test_seeds_are_pooled_and_arms_compared_task_by_task(study: Path) -> None:
    summary = numbers(study)
    assert summary["eval/desk_pooled_envace"] == pytest.approx(0.625)  # 3 and 2 of 4
    assert summary["eval/gain"] == summary["eval/desk_gain_envace"] == pytest.approx(0.375)
    assert summary["eval/desk_gain_zero_reward"] == 0.0
    assert summary["eval/desk_over_zero_reward"] == pytest.approx(0.375)  # (1, 1/2, 1, 0) over (0, 0, 1, 0)
    assert summary["eval/desk_over_sft"] == pytest.approx(0.375)  # over (1, 0, 0, 0)
    assert summary["eval/desk-unseen_gain_envace"] == 1.0
    assert "eval/desk_over_envace" not in summary


def test_every_arm_stands_in_one_table_and_every_seed_in_another(study: Path) -> None:
    text = markdown(study)
    for row in (
        "| desk (held-out tasks) | envace-2 − start | 0.250 | 0.500 | +0.250 |",
        "| desk (held-out tasks) | envace, all seeds − start | 0.250 | 0.625 | +0.375 |",
        "| desk (held-out tasks) | zero_reward | the same steps with every reward zero | 1 | 0.250 |",
        "| desk (held-out tasks) | sft | continued supervised training of equal time | 1 | 0.250 |",
        "| desk-unseen (unseen combinations) | envace, all seeds − start | 0.000 | 1.000 | +1.000 |",
    ):
        assert row in text, row
    page = (study / "report/index.html").read_text()
    for plot in ("scores-desk-", "scores-desk-unseen-", "controls-", "training-reward-"):
        assert f'id="{plot}' in page, plot


def test_the_blind_floor_stands_beside_the_scores(study: Path) -> None:
    text = markdown(study)
    assert "| desk (held-out tasks) | envace | 0.625 | blind | 0.150 | +0.475 |" in text
    assert "| success above the blind ceiling, desk (held-out tasks) | +0.475 |" in text


def test_the_verdict_and_every_comparison_say_what_is_inside_noise(report: Path, study: Path) -> None:
    one, many = markdown(report.parent), markdown(study)
    assert one.split("\n")[2].startswith(
        "**No gain to be told from noise: training moved success on desk (held-out tasks) from 0.250 "
        "to 0.750: +0.500 ["
    )
    success = "success after training against before"
    assert f"| {success}, desk (held-out tasks) | +0.500 | [+0.000, +1.000] | inside noise | 4 |" in one
    assert (
        f"| {success}, desk-unseen (unseen combinations) | +1.000 | [+1.000, +1.000] | better | 4 |" in many
    )
    assert "| envace against zero_reward | +0.375 |" in many
    assert "No spread over training seeds" in one and "2 seeds are few" in many
    assert "One arm was trained" in one and "One arm was trained" not in many


def test_the_world_is_explained_by_one_staged_task(study: Path) -> None:
    text = markdown(study)
    for row in (
        "| cancel_order(order) | Cancels it. |",
        "| 0 | user | Cancel order #kite. |",
        "| 0 | agent | cancel_order(order=#kite) |",
        '| 0 | world | {"status": "cancelled"} |',
        "| 1 | agent | No lamp. |",
        "| 0 | C0 | Cancels order #kite? | call made | the calls | 0.50 | yes |",
    ):
        assert row in text, row
    assert text.index("## Success before and after") < text.index("## The desk, by one task")


def test_fidelity_stands_beside_predictors_for_each_way_of_showing_records(report: Path) -> None:
    text = markdown(report.parent)
    assert (
        "| equal to the true response | 0.250 [0.150, 0.350] | 0.500 [0.400, 0.600] | 0.500 [0.400, 0.600] | "
        "0.125 [0.025, 0.225] | – | 4 / 4 |" in text
    )
    assert (
        "| both refuse or both answer | 0.800 [0.700, 0.900] | 0.800 [0.700, 0.900] | – | – | 0.750 [0.650, "
        "0.850] |" in text
    )
    assert "Recorded calls, records shown: up_to_turn" in text and "All calls, records shown: none" in text
    assert "| up_to_turn | equal to the true response, recorded calls | +0.250 |" in text  # task 0 won over
    assert '| cancel_order(order=#kite) | {"a": 1} | {"a": 1} | yes |' in text


def test_the_gap_is_shown_for_each_policy_and_over_training(report: Path) -> None:
    text = markdown(report.parent)
    assert "| start | 1.000 [0.900, 1.100] | 0.000 [0.000, 0.100] | 0.000 [0.000, 0.100] | +1.000 |" in text
    assert "| envace-1 | 0.250 | 1.500 | 0.000 | 0.200 | – |" in text  # grounded was not measured
    page = (report / "index.html").read_text()
    assert 'id="gap-train-rehearsed_success-' in page and 'id="gap-entropy-' in page
    assert 'id="gap-collapse-refusal_share-' not in page  # training did not log it
    assert "| train/rehearsed_success | 0.25 | 0.75 |" in text


def test_points_of_scaling_share_one_control_and_say_what_was_usable(report: Path) -> None:
    text = markdown(report.parent)
    assert "| none (control) | 0.500 | [0.200, 0.800] | – | – | – | 0 | 4 | single trial |" in text
    assert (
        "| parallel, 2 | 0.750 | [0.450, 1.000] | +0.250 |" in text and "| 120 | 4 | single trial |" in text
    )
    assert "| sequential-2 | 7 / 8 (88 %) | 1 | 4 / 4 (100 %) | 0 | 0 |" in text
    assert "| parallel-2 | desk-held-0 | Look it up first. |" in text
    assert "480 tokens read and written in rehearsals" in text
    page = (report / "index.html").read_text()
    assert 'id="tts-n-' in page and 'id="tts-tokens-' in page


def test_the_honest_box_claims_only_what_ran(run: Path, report: Path, params: Params) -> None:
    assert (
        "as ACT and REHEARSE for 3 optimizer steps by stock verl, export, evaluation in the true world, "
        "private" in markdown(report.parent)
    )
    for policy in ("start", "envace-1"):
        path = run / f"results/evaluate/{policy}-desk/samples.jsonl"
        path.write_text(path.read_text().replace('"success": 1.0', '"success": 0.0'))
        scores = path.with_name("scores.json")
        data = json.loads(scores.read_text())
        data["scores"][0] |= {"score": 0.0, "low": 0.0, "high": 0.0}
        scores.write_text(json.dumps(data))
    shutil.rmtree(run / "results/tts")
    build(run, params)
    assert "No success to gain from" in markdown(run) and "evaluation in the true world." in markdown(run)


def test_a_withheld_score_is_no_headline(run: Path, params: Params) -> None:
    path = run / "results/evaluate/envace-1-desk/scores.json"
    data = json.loads(path.read_text())
    data["scores"][0] |= {"score": None, "low": None, "high": None, "n_missing": 3}
    path.write_text(json.dumps(data))
    summary = build(run, params)
    assert not {"eval/desk_envace-1", "eval/gain", "eval/desk_pooled_envace"} & set(summary)
    assert "withheld" in (run / "report/index.html").read_text()


def test_episodes_are_read_for_the_two_policies_that_are_shown(study: Path, study_params: Params) -> None:
    results = load_results(study, study_params)
    read = {(e.policy, e.benchmark) for e in results.evals if e.episodes}
    assert read == {("start", "desk"), ("envace-1", "desk")}
    assert results.tasks["desk-held-0"].checklist[0][0].question == "Cancels order #kite?"
