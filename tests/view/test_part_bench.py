"""Upstream benchmarks in the report: what is shown, what is refused, what is compared."""

from __future__ import annotations

import json
from pathlib import Path

from envace.params import Params, parse
from envace.types import SampleRecord, SampleStatus, ScoreRecord, to_json
from envace.view.report import build

POLICIES = ["start", "envace-1"]


def bench_params() -> Params:
    section = {
        "policies": POLICIES,
        "benchmarks": ["tau2"],
        "user": {"base_url": "http://127.0.0.1:9/v1", "model": "u"},
    }
    return parse({"bench": section, "report": {"bootstrap": 200}})


def leave(run: Path, policy: str, rewards: list[float | None], score: float | None, **identity: str) -> None:
    """Result files as the bench stage leaves them; None is an infrastructure failure."""
    folder = run / f"results/bench/{policy}-tau2"
    folder.mkdir(parents=True)
    record = ScoreRecord(
        benchmark="tau2", subset="macro", metric="reward", score=score, low=score and score - 0.1,
        high=score and score + 0.1, n_tasks=len(rewards), n_trials=1, n_scored=sum(r is not None for r in rewards),
        n_infra_failure=sum(r is None for r in rewards), source="derived", floors={"do_nothing": 0.171},
        harness=identity.get("harness", "tau2-1"), versions={"user": identity.get("user", "u")},
        skipped=("telecom<b>",),
    )  # fmt: skip
    samples = [
        SampleRecord(
            task=f"retail/{i}", trial=0, seed=1, reward=r, metrics={} if r is None else {"reward": r},
            status=SampleStatus.INFRA_FAILURE if r is None else SampleStatus.SCORED,
        )
        for i, r in enumerate(rewards)
    ]  # fmt: skip
    (folder / "scores.json").write_text(json.dumps({"scores": [to_json(record)], "seconds": 1.0}))
    (folder / "samples.jsonl").write_text("".join(json.dumps(to_json(s)) + "\n" for s in samples))


def section(run: Path) -> str:
    summary = build(run, bench_params())
    assert set(summary) >= {"report/missing"}
    return (run / "report/report.md").read_text().split("## Upstream benchmarks")[1].split("\n## ")[0]


def test_scores_stand_with_floors_counts_and_the_papers_numbers_of_that_benchmark_only(run: Path) -> None:
    leave(run, "start", [0.0, 1.0, 0.0, 1.0], 0.5)
    leave(run, "envace-1", [1.0, 1.0, 1.0, 1.0], 1.0)
    text = section(run)
    assert "do nothing 0.171" in text and "single trial" in text and "0.500" in text
    assert "36.70" in text and "46.04" not in text
    assert "telecom&lt;b&gt;" in text
    assert "+0.500" in text


def test_a_withheld_score_is_shown_as_withheld(run: Path) -> None:
    leave(run, "start", [0.0, None], None)
    leave(run, "envace-1", [1.0, 1.0], 1.0)
    text = section(run)
    assert "withheld" in text and "1 infrastructure" in text


def test_runs_with_another_judge_user_or_harness_are_not_compared(run: Path) -> None:
    leave(run, "start", [0.0, 1.0], 0.5, user="gpt")
    leave(run, "envace-1", [1.0, 1.0], 1.0)
    assert "+0.500" not in section(run)


def test_without_a_benchmark_the_papers_numbers_are_not_shown(run: Path, report: Path) -> None:
    page = (report / "index.html").read_text()
    assert "36.70" not in page and "No upstream benchmark was run" in page
