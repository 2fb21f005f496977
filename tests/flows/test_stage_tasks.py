"""The stages' I/O with stand-ins for the engine; no server."""

import dataclasses
import json
from types import SimpleNamespace

import pytest

from envace.config import parse
from envace.config.method import PRESETS, Method
from envace.engine.run_files import Progress
from envace.errors import DataError, EnvironmentUnready, StageFailed
from envace.io import files
from envace.types import SampleRecord, SampleStatus, ScoreRecord, Task
from flows import train as train_stage
from tasks import evaluation, summary, tracking, training
from tasks.run import Run


class Log:
    """Remembers what it was told."""

    def __init__(self):
        self.run_id, self.said, self.tagged, self.artifacts = "run-1", [], {}, {}

    def metrics(self, values, step=0):
        self.said.append((step, dict(values)))

    def tags(self, values):
        self.tagged |= values

    def artifact(self, name, content):
        self.artifacts[name] = content if isinstance(content, str) else content.read_text()


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.setenv("ENVACE_STATE", str(tmp_path / ".state"))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "sqlite:////x.db")
    params = parse({"train": {"steps": 2, "save_every": 1}, "mlflow": {"traces": 0, "failed_traces": 0}})
    return Run("train@envace-1", params, tmp_path, Log())


def scripted_trainer(params, arm, seed, *, tasks_file, start, work, on_progress, env):
    """Does what the engine promises, in no time."""
    assert env == {"MLFLOW_TRACKING_URI": "sqlite:////x.db", "MLFLOW_RUN_ID": "run-1"}
    (work / "episodes").mkdir(parents=True, exist_ok=True)
    with (work / "metrics.jsonl").open("w") as f:
        for step in (1, 1, 2):  # step 1 was repeated after a resume
            metrics = {"train/reward": step / 10, "train/tokens": 5}
            f.write(json.dumps({"step": step, **metrics}) + "\n")
            (work / "episodes" / f"step_{step:06d}.jsonl").write_text(json.dumps({"step": step}) + "\n")
            on_progress(Progress(phase="step", step=step, steps=2, metrics=metrics, eta_s=1.0))
    return SimpleNamespace(work=work, steps=2, resumed_from=1, seconds=3.0, ran=True)


def test_training_is_forwarded_and_written(run, monkeypatch):
    monkeypatch.setattr(training, "work_folder", lambda run, arm, seed: run.state / "train" / "key")
    monkeypatch.setattr(training.ProgressView, "_artifact", lambda self, percent: None)
    result = training.run_training.fn(run, "envace", 1, scripted_trainer)
    info = training.write_training.fn(run, "envace", 1, result)
    out = run.path("runs/train/envace-1")
    assert sorted(p.name for p in out.iterdir()) == [
        "curve.csv",
        "episodes.jsonl",
        "kept.json",
        "metrics.jsonl",
        "train.json",
    ]
    assert [json.loads(x)["step"] for x in (out / "metrics.jsonl").read_text().splitlines()] == [1, 2]
    assert [json.loads(x)["step"] for x in (out / "episodes.jsonl").read_text().splitlines()] == [1, 2]
    assert (
        info["attempts"] == 1
        and info["resumed_from"] == 1
        and info["tokens"] == 10
        and info["reward_last"] == 0.2
    )
    assert set(run.log.artifacts) == {
        "config.yaml",
        "train.json",
        "metrics.jsonl",
        "curve.csv",
        "episodes.jsonl",
    }
    assert [step for step, _ in run.log.said] == [1, 1, 2] and run.log.tagged["envace.attempt"] == 1


def test_a_missing_step_is_not_taken_for_finished(run, tmp_path):
    work = tmp_path / "work"
    work.mkdir()
    (work / "metrics.jsonl").write_text('{"step": 2}\n')
    result = SimpleNamespace(work=work, steps=2, resumed_from=0, seconds=1.0, ran=True)
    with pytest.raises(DataError, match="lacks steps"):
        training.write_training.fn(run, "envace", 1, result)
    assert not run.path("runs/train/envace-1").exists()


def test_nothing_half_written_is_found(tmp_path):
    out = tmp_path / "out"
    with pytest.raises(RuntimeError), files.publish(out) as scratch:
        (scratch / "a").write_text("1")
        raise RuntimeError
    assert list(out.iterdir()) == [] and list(tmp_path.iterdir()) == [out]
    with files.publish(out) as scratch:
        (scratch / "a").write_text("2")
        assert not (out / "a").exists()
    assert (out / "a").read_text() == "2"


def test_an_unwritable_output_folder_is_named(tmp_path):
    (tmp_path / "out").write_text("a file where a folder should be")
    with (
        pytest.raises(EnvironmentUnready, match=r"cannot write .*/out: File exists"),
        files.publish(tmp_path / "out"),
    ):
        pass


def test_limit_chooses_by_hash_and_keeps_order():
    tasks = [Task(id=f"t{i}", prefix=(), tools=(), checklist=(), source="desk") for i in range(20)]
    some = [t.id for t in evaluation.choose(tasks, 5, 1)]
    assert len(some) == 5 and some == sorted(some, key=lambda x: int(x[1:]))
    assert [t.id for t in evaluation.choose(tasks[::-1], 5, 1)] == some[::-1]
    assert len(evaluation.choose(tasks, 0, 1)) == 20


def score(value):
    return ScoreRecord(
        benchmark="desk",
        subset="all",
        metric="success",
        score=value,
        n_tasks=1,
        n_trials=1,
        n_scored=0,
        n_infra_failure=1,
    )


def test_a_withheld_headline_fails_the_stage_with_its_cause(run):
    sample = SampleRecord(task="t", trial=0, seed=1, status=SampleStatus.INFRA_FAILURE, error="server gone")
    with pytest.raises(StageFailed, match="1 samples failed for infrastructure reasons.*server gone"):
        evaluation.gate.fn(run, evaluation.Outcome([score(None)], [sample], [], [], 1.0))


UPSTREAM = {
    "subset": "macro",
    "metric": "reward",
    "source": "derived",
    "harness": "tau2-1",
    "benchmark": "tau2",
}


def leave(run, folder, *scores):
    run.path("results", folder).mkdir(parents=True)
    files.write_json(run.path("results", folder, "scores.json"), {"scores": scores, "seconds": 1.0})


def test_the_parent_has_the_headlines_and_withheld_scores_are_absent(run):
    user = {"base_url": "http://h/v1", "model": "u"}
    bench = {"policies": ["start", "envace-1"], "benchmarks": ["tau2"], "user": user}
    leave(run, "evaluate/start-desk", score(None), score(0.5))
    leave(run, "bench/envace-1-tau2", UPSTREAM | {"score": 0.25})
    leave(run, "bench/start-tau2", UPSTREAM | {"score": None})
    found = {"eval/desk_start": 0.5, "bench/tau2_envace-1": 0.25}
    assert summary.headlines(run.root, parse({"bench": bench})) == found and not summary.verdict(run.root)
    report = {"eval/gain": 0.1, "eval/gain_low": -0.1, "eval/gain_high": 0.2} | {
        f"x/{k}": k for k in range(50)
    }
    run.path("report").mkdir()
    files.write_json(run.path("report/summary.json"), report)
    assert len(summary.headlines(run.root, run.params)) == 4
    assert summary.verdict(run.root) == "gain +0.100 [-0.100, +0.200]: within noise"
    files.write_json(run.path("report/summary.json"), report | {"eval/gain_low": 0.01})
    assert summary.verdict(run.root).endswith("outside noise")


def test_a_curve_is_logged_on_the_parent_at_its_steps(run):
    curve = {"runs": ["envace-1"], "steps": [4, 0], "benchmarks": ["desk"]}
    own = {
        "subset": "held",
        "metric": "success",
        "source": "strict",
        "harness": "envace",
        "benchmark": "desk",
    }
    for step in (0, 4):
        leave(run, f"dynamics/envace-1-{step}-desk", own | {"score": step / 10})
    summary.log_summary(run.log, run.root, parse({"train": {"steps": 4}, "dynamics": curve}))
    assert run.log.said[1:] == [
        (0, {"dynamics/envace-1.desk.success": 0.0}),
        (4, {"dynamics/envace-1.desk.success": 0.4}),
    ]


def test_parent_parameters_hold_the_learning_rate_in_readable_units():
    flat = tracking.parent_params(parse({"train": {"lr": "1e-6"}}))
    assert flat["train.lr"] == 1e-6 and flat["train.lr_e-6"] == 1.0


def test_a_training_is_logged_by_its_arm_and_seed_and_another_stages_argument_is_left_alone():
    params = parse(
        {"train": {"runs": ["envace-1", "no_grounding-2"]}, "arms": {"no_grounding": {"grounding": "drop"}}}
    )
    logged = tracking.stage_params(params, ("method",), {"training": "no_grounding-2"})
    assert (logged["arm"], logged["seed"], logged["method.grounding"]) == ("no_grounding", 2, "drop")
    assert tracking.stage_params(params, (), {"name": "a"}) == {"name": "a"}


@pytest.mark.parametrize("preset", sorted(PRESETS))
def test_every_switch_of_the_method_is_an_mlflow_parameter(preset):
    """Of a training under the name `method.<switch>` with its arm's value, and of the parent with the common
    one.
    """
    params = parse(
        {
            "method": {"preset": preset},
            "arms": {"paid": {"blame_penalty": 0.3}},
            "train": {"runs": ["paid-1"]},
            "eval": {"policies": ["start"]},
            "tts": {"policy": "start"},
            "fidelity": {"policies": ["start"]},
        }
    )
    common = {f"method.{key}": value for key, value in dataclasses.asdict(PRESETS[preset]).items()}
    assert len(common) == len(dataclasses.fields(Method))
    assert "method" in train_stage.train.sections
    logged = tracking.stage_params(params, train_stage.train.sections, {"training": "paid-1"})
    assert {key: logged[key] for key in common} == {**common, "method.blame_penalty": 0.3}
    parent = tracking.parent_params(params)
    assert {key: parent[key] for key in common} == common
