"""The curve of training in the report: points, intervals, the paper's two ends, what is said of the tiny
policy."""

import json

import pytest

from envace.config import parse
from envace.report import plots
from envace.report.report import build
from envace.types import ScoreRecord, to_json

TRAIN = {"steps": 4, "save_every": 2, "keep_every": 2}
USER = {"base_url": "http://127.0.0.1:9/v1", "model": "u"}


def curve_params(benchmark, **more):
    curve = {"runs": ["envace-1"], "steps": [4, 0, 2], "benchmarks": [benchmark], "limit": 5}
    return parse(
        {"train": TRAIN, "dynamics": curve, "bench": {"user": USER}, "report": {"bootstrap": 100}, **more}
    )


def leave(root, step, benchmark, score, subset="held", metric="success", source="strict"):
    """A point as its stage leaves it."""
    folder = root / f"results/dynamics/envace-1-{step}-{benchmark}"
    folder.mkdir(parents=True)
    record = ScoreRecord(
        benchmark=benchmark,
        subset=subset,
        metric=metric,
        score=score,
        low=score and score - 0.1,
        high=score and score + 0.1,
        n_tasks=5,
        n_trials=1,
        n_scored=5,
        source=source,
        harness="h-1",
        policy=f"envace-1@{step}",
    )
    (folder / "scores.json").write_text(
        json.dumps({"scores": [to_json(record)], "training": "envace-1", "step": step})
    )
    (folder / "samples.jsonl").write_text("")


def section(root, params):
    build(root, params)
    return (root / "report/report.md").read_text().split("## Score along training")[1].split("\n## ")[0]


@pytest.fixture
def drawn(monkeypatch):
    """The series handed to the plots of this section."""
    seen = {}
    plain = plots.curves
    monkeypatch.setattr(
        plots,
        "curves",
        lambda name, title, series, **k: seen.update({name: series}) or plain(name, title, series, **k),
    )
    return seen


def test_points_are_drawn_in_order_with_their_intervals(run, drawn):
    for step, score in ((0, 0.2), (2, 0.4), (4, 0.6)):
        leave(run, step, "desk", score)
    text = section(run, curve_params("desk"))
    (line,) = drawn["dynamics-desk"]
    assert (line.label, [(x, e.value) for x, e in line.points]) == (
        "envace-1",
        [(0, 0.2), (2, 0.4), (4, 0.6)],
    )
    assert (line.points[2][1].low, line.points[2][1].high) == pytest.approx((0.5, 0.7))
    assert "0.600 \\[0.500, 0.700\\]" in text and "single trial" in text and "paper" not in text.lower()
    assert "under a million parameters" not in text  # on the desk its scores mean something


def test_the_papers_two_points_stand_beside_its_own_benchmark(run, drawn):
    for step in (0, 2, 4):
        leave(run, step, "tau2", 0.1 * step + 0.1, "macro", "reward", "derived")
    hub = {"kind": "hub", "uri": "a/b"}
    text = section(run, curve_params("tau2", policy=hub))
    ours, printed = drawn["dynamics-tau2"]
    assert (printed.label, printed.points) == ("paper, EnvACE-8B", [(50, 0.3), (470, pytest.approx(0.367))])
    assert ours.points[-1][1].value == pytest.approx(0.5)
    assert "36.7" in text and "not measured here" in text and "under a million" not in text


def test_a_withheld_point_is_in_the_table_and_not_in_the_plot(run, drawn):
    leave(run, 0, "tau2", 0.3, "macro", "reward", "derived")
    leave(run, 2, "tau2", None, "macro", "reward", "derived")
    text = section(run, curve_params("tau2"))
    assert [x for x, _ in drawn["dynamics-tau2"][0].points] == [0] and "withheld" in text
    assert "under a million parameters" in text
    build(run, curve_params("tau2"))
    assert "results/dynamics/envace-1-4-tau2/scores.json" in (run / "report/report.md").read_text()


@pytest.mark.parametrize(
    ("kind", "policy", "said"),
    [("bundled", "start", True), ("hub", "start", False), ("bundled", "other", False)],
)
def test_scores_of_the_tiny_policy_are_labelled_where_benchmarks_of_others_are_shown(run, kind, policy, said):
    params = parse(
        {
            "policy": {"kind": kind, "uri": "a/b"},
            "report": {"bootstrap": 100},
            "bench": {
                "policies": [policy],
                "benchmarks": ["bfcl"],
                "baselines": {"other": {"base_url": "http://h/v1", "model": "m"}},
            },
        }
    )
    leave(run, 0, "bfcl", 0.0, "simple_python", "reward")
    (run / "results/bench").mkdir()
    (run / "results/dynamics/envace-1-0-bfcl").rename(run / f"results/bench/{policy}-bfcl")
    build(run, params)
    text = (run / "report/report.md").read_text().split("## Upstream benchmarks")[1].split("\n## ")[0]
    assert "0.000" in text and ("scores near zero are expected" in text) is said
