"""The curve of training: which steps can be asked, what a point is of, what is said without weights."""

import dataclasses
import json
import shutil

import pytest

from envace.bench import worlds as desk
from envace.config import parse
from envace.data.store import write_tasks
from envace.engine import checkpoints, export
from envace.errors import DataError, ParamsError, UserError
from envace.policy.card import BUNDLED, read_card, weights_hash, write_card
from envace.types import PolicyRef
from envace.worlds.desk.tasks import generate
from tasks import dynamics as task
from tasks import summary
from tasks.run import Run

TRAIN = {"steps": 6, "save_every": 1, "keep_every": 2}
CURVE = {"runs": ["envace-1"], "steps": [0, 2, 4], "benchmarks": ["desk"], "limit": 2, "trials": 1}


class Log:
    """Remembers what it was told, with the step."""

    def __init__(self):
        self.run_id, self.said, self.tagged = "run-1", {}, {}

    def metrics(self, values, step=0):
        self.said |= {(name, step): value for name, value in values.items()}

    def tags(self, values):
        self.tagged |= values

    def artifact(self, name, content):
        self.tagged[name] = content


def saved(work, step, content=""):
    """A whole checkpoint, as the trainer leaves it."""
    folder = work / "checkpoints" / f"global_step_{step}"
    (folder / "actor").mkdir(parents=True)
    (folder / "actor/model_world_size_1_rank_0.pt").write_text(content or f"weights {step}")
    (folder / "actor/optim_world_size_1_rank_0.pt").write_text("x")
    checkpoints.finish(folder, work, step, rolling=1, keep_every=2)


@pytest.fixture
def work(tmp_path):
    folder = tmp_path / ".state/train/abc"
    for step in (1, 2, 3, 4, 5):
        saved(folder, step)
    return folder


def test_the_manifest_names_what_is_left_and_stays_when_training_goes_on(work):
    said = checkpoints.manifest(work, 5, "s" * 64)
    assert said["work"] == "abc" and list(said["steps"]) == [f"step_{k}" for k in range(6)]
    left = {k: bool(v) for k, v in said["steps"].items()}
    assert left == {f"step_{k}": k in (0, 2, 4, 5) for k in range(6)}  # 5 is the rolling one
    saved(work, 6)
    after = checkpoints.manifest(work, 6, "s" * 64)["steps"]
    assert after["step_4"] == said["steps"]["step_4"] != after["step_6"] and not after["step_5"]


def test_a_step_that_was_not_kept_or_is_gone_names_what_to_set(work):
    said = checkpoints.manifest(work, 5, "s" * 64)
    checkpoints.require_kept(said, work, "envace-1", 4)
    with pytest.raises(
        UserError,
        match=r"step 3 of envace-1 was not kept \(train.keep_every\); kept are 0, 2, 4, 5: "
        r"name a kept step in dynamics.steps, or set train.keep_every to a divisor of 3",
    ):
        checkpoints.require_kept(said, work, "envace-1", 3)
    (work / "kept/global_step_4/actor/model_world_size_1_rank_0.pt").write_text("others")
    with pytest.raises(DataError, match="step 4 of envace-1 are no longer those"):
        checkpoints.require_kept(said, work, "envace-1", 4)
    shutil.rmtree(work / "kept")
    with pytest.raises(DataError, match="train.keep_every"):
        checkpoints.require_kept(said, work, "envace-1", 2)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            {"steps": [3]},
            "dynamics.steps names 3, whose weights training does not keep: train.keep_every is 2",
        ),
        ({"steps": [8]}, r"dynamics.steps names 8, beyond train.steps \(6\)"),
        ({"runs": ["envace-2"]}, "dynamics.runs names 'envace-2'.*did you mean envace-1"),
        ({"benchmarks": []}, "dynamics.benchmarks is empty"),
        ({"benchmarks": ["tau2"]}, "tau2 needs one as its user"),
        ({"benchmarks": ["desks"]}, "did you mean desk"),
    ],
)
def test_a_curve_that_cannot_be_drawn_is_refused_before_training(change, words):
    with pytest.raises(ParamsError, match=words):
        parse({"train": TRAIN, "dynamics": CURVE | change})
    parse({"train": TRAIN, "dynamics": CURVE | {"steps": [0, 2, 6]}})


def project(tmp_path, monkeypatch, **params) -> Run:
    """A project whose training is over; the merger is replaced by a copy of the bundled weights."""
    monkeypatch.setenv("ENVACE_STATE", str(tmp_path / ".state"))
    given = parse(
        {
            "train": TRAIN,
            "dynamics": CURVE,
            "mlflow": {"traces": 0, "failed_traces": 0},
            "report": {"bootstrap": 100},
            **params,
        }
    )
    run = Run("dynamics@envace-1-4-desk", given, tmp_path, Log())
    shutil.copytree(BUNDLED, tmp_path / "models/start")
    write_card(tmp_path / "models/start", PolicyRef(kind="bundled", uri="models/start", name="start"))
    (tmp_path / "data/staged").mkdir(parents=True)
    write_tasks(tmp_path / "data/staged/held.parquet", generate(7, "held", 4))
    said = checkpoints.manifest(tmp_path / ".state/train/abc", 5, weights_hash(BUNDLED))
    (tmp_path / "runs/train/envace-1").mkdir(parents=True)
    (tmp_path / "runs/train/envace-1/kept.json").write_text(json.dumps(said))

    def exported(params, work, start, out, *, name, step):
        assert (work.name, name, step) == ("abc", f"envace-1-{step}", 4)
        shutil.copytree(BUNDLED, out)
        return write_card(out, PolicyRef(kind="trained", uri=str(out), step=step, name=name))

    monkeypatch.setattr(export, "export", exported)
    return run


def test_a_point_is_of_the_kept_weights_and_logged_at_its_step(work, tmp_path, monkeypatch):
    run = project(tmp_path, monkeypatch)
    point = task.evaluate_step.fn(run, "envace-1", 4, "desk")
    task.write_point.fn(run, point, "envace-1", 4, "desk")
    out = tmp_path / "results/dynamics/envace-1-4-desk"
    said = json.loads((out / "scores.json").read_text())
    score = said["scores"][0]
    assert (said["training"], said["step"]) == ("envace-1", 4)
    assert (score["policy"], score["n_tasks"], score["n_trials"]) == ("envace-1@4", 2, 1)
    assert len((out / "raw/episodes.jsonl").read_text().splitlines()) == 2
    assert run.log.said[("dynamics/desk.success", 4)] == score["score"]
    assert run.log.tagged["model.step"] == 4 and run.log.tagged["model.hash"] == score["policy_hash"]
    metrics = json.loads((out / "metrics.json").read_text())
    assert metrics["dynamics"]["envace-1"]["4"]["desk.success"] == score["score"]
    assert {"scores.json", "failing.jsonl", "failing.html"} <= set(run.log.tagged)
    assert not list((tmp_path / ".state/dynamics").iterdir())  # the export went with the stage
    points = summary.curve_points(tmp_path, run.params)
    assert [(step, v["dynamics/envace-1.desk.success"]) for step, v in points] == [(4, score["score"])]


def test_step_0_is_the_start_policy(work, tmp_path, monkeypatch):
    run = project(tmp_path, monkeypatch)
    with task.weights(run, "envace-1", 0, "desk") as folder:
        assert folder == tmp_path / "models/start" and read_card(folder).name == "start"
    assert folder.is_dir()


@pytest.mark.parametrize("step", [0, 4])
def test_a_point_is_read_as_its_training_reads(work, tmp_path, monkeypatch, step):
    arms = {"own": {"old_thoughts": "keep", "thought_calls": "execute", "kl": 0.5}}
    train = {**TRAIN, "runs": ["own-1", "envace-1"]}
    run = project(
        tmp_path,
        monkeypatch,
        arms=arms,
        train=train,
        dynamics=CURVE | {"runs": ["own-1", "envace-1"]},
        eval={"policies": ["start"]},
        tts={"policy": "start"},
        fidelity={"policies": ["start"]},
    )
    shutil.copytree(tmp_path / "runs/train/envace-1", tmp_path / "runs/train/own-1")
    asked = []

    def exported(params, work, start, out, *, name, step):
        shutil.copytree(BUNDLED, out)
        return write_card(out, PolicyRef(kind="trained", uri=str(out), step=step, name=name))

    async def played(*_, method, **__):
        asked.append(method)
        raise KeyError("that is all")

    monkeypatch.setattr(export, "export", exported)
    monkeypatch.setattr(desk, "evaluate", played)
    for training in ("own-1", "envace-1"):
        with pytest.raises(KeyError, match="that is all"):
            task.evaluate_step.fn(run, training, step, "desk")
    plain = run.params.resolved_method()
    assert plain.old_thoughts == "template" and plain.thought_calls == "ignore"
    own = dataclasses.replace(plain, old_thoughts="keep", thought_calls="execute")  # not its kl
    assert asked == [own, plain]
    assert run.log_file.read_text().count("old_thoughts keep appends all the same") == 1


def test_what_a_kill_leaves_of_an_export_goes_and_a_lost_manifest_is_named(work, tmp_path, monkeypatch):
    run = project(tmp_path, monkeypatch)
    with pytest.raises(KeyError), task.weights(run, "envace-1", 4, "desk") as folder:
        assert folder.is_dir()
        raise KeyError("mine")
    assert not folder.exists()
    (tmp_path / "runs/train/envace-1/kept.json").write_text("{}")
    with (
        pytest.raises(DataError, match="does not say which steps were kept"),
        task.weights(run, "envace-1", 4, "desk"),
    ):
        pass


def test_a_curve_asks_for_its_own_number_of_tasks_and_trials_whatever_a_benchmark_says():
    p = parse(
        {
            "train": TRAIN,
            "dynamics": CURVE,
            "bench": {"trials": 4, "options": {"bfcl": {"limit": 9, "subsets": ["live"]}}},
        }
    )
    cut = task.shortened(p)
    assert (cut.eval.limit, cut.eval.trials) == (2, 1)
    own = cut.bench.of("bfcl")
    assert (own.limit, own.trials, own.options["bfcl"]) == (2, 1, {"subsets": ["live"]})
