"""What a pipeline's own MLflow run says of upstream benchmarks and of the curve of training."""

import json

from envace.config import parse
from tasks import summary

SCORE = {"subset": "macro", "metric": "reward", "source": "derived", "harness": "tau2-1", "benchmark": "tau2"}


def leave(folder, *scores):
    folder.mkdir(parents=True)
    (folder / "scores.json").write_text(json.dumps({"scores": list(scores)}))


def test_the_parent_has_the_scores_of_every_policy_and_withheld_ones_are_absent(tmp_path):
    user = {"base_url": "http://h/v1", "model": "u"}
    params = parse({"bench": {"policies": ["start", "envace-1"], "benchmarks": ["tau2"], "user": user}})
    leave(
        tmp_path / "results/bench/start-tau2",
        SCORE | {"score": 0.25},
        SCORE | {"score": None, "subset": "micro"},
    )
    leave(tmp_path / "results/bench/envace-1-tau2", SCORE | {"score": 0.5})
    assert summary.summary_metrics(tmp_path, params) == {
        "bench/start.tau2.macro.reward.derived": 0.25,
        "bench/envace-1.tau2.macro.reward.derived": 0.5,
    }


class Log:
    def __init__(self):
        self.said = []

    def metrics(self, values, step=0):
        self.said.append((step, dict(values)))


def test_a_curve_is_logged_on_the_parent_at_its_steps(tmp_path):
    curve = {"runs": ["envace-1"], "steps": [4, 0], "benchmarks": ["desk"]}
    params = parse({"train": {"steps": 4}, "dynamics": curve})
    own = {
        "subset": "held",
        "metric": "success",
        "source": "strict",
        "harness": "envace",
        "benchmark": "desk",
    }
    for step in (0, 4):
        leave(tmp_path / f"results/dynamics/envace-1-{step}-desk", own | {"score": step / 10})
    log = Log()
    summary.log_summary(log, tmp_path, params)
    assert log.said[1:] == [
        (0, {"dynamics/envace-1.desk.success": 0.0}),
        (4, {"dynamics/envace-1.desk.success": 0.4}),
    ]
