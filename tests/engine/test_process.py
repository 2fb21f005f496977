"""Watching a trainer: scripted programs stand where verl would, the processes are real."""

import json
import os
import subprocess
import sys
import textwrap
import time
from dataclasses import asdict
from pathlib import Path

import psutil
import pytest

from envace.config import load
from envace.data.store import write_tasks
from envace.engine import launch, process
from envace.engine.run_files import follow
from envace.errors import DataError, EnvironmentUnready, ParamsError, StageFailed
from envace.io.processes import identify
from envace.policy.card import write_card
from envace.types import PolicyRef, replace
from envace.worlds.desk.tasks import generate

ROOT = Path(__file__).resolve().parents[2]
PRELUDE = """#!{python}
import json, os, pathlib, sys, time
work = pathlib.Path(os.environ["ENVACE_WORK"])
def emit(phase, step, **metrics):
    with (work / "progress.jsonl").open("a") as f:
        event = dict(phase=phase, step=step, steps=4, metrics=metrics, eta_s=1.0, time=time.time())
        f.write(json.dumps(event) + "\\n")
def save(step):
    d = work / "checkpoints" / f"global_step_{{step}}"
    d.mkdir(parents=True); (d / "WHOLE").write_text(str(step))
    (work / "metrics.jsonl").write_text("".join('{{"step": %d}}\\n' % (k + 1) for k in range(step)))
"""


def changed(**sections):
    """params.yaml with some keys of some sections changed: `changed(train={"steps": 4})`."""
    base = load(ROOT / "params.yaml")
    return replace(base, **{name: replace(getattr(base, name), **keys) for name, keys in sections.items()})


@pytest.fixture
def paths(tmp_path):
    """Eight tasks and start weights, of which only the hash matters here."""
    tasks, start = tmp_path / "train.parquet", tmp_path / "start"
    write_tasks(tasks, generate(1, "train", 8))
    start.mkdir()
    (start / "model.safetensors").write_bytes(b"weights")
    write_card(start, PolicyRef(kind="tiny", uri="start", hash="h"))
    return {"tasks_file": tasks, "start": start}


@pytest.fixture
def run(paths, tmp_path):
    """train() with a scripted trainer; returns (call, work)."""
    work = tmp_path / "work"

    def call(script: str, events=None, **engine):
        program = tmp_path / "trainer"
        program.write_text(PRELUDE.format(python=sys.executable) + textwrap.dedent(script))
        program.chmod(0o755)
        params = changed(engine={"python": str(program), **engine}, train={"steps": 4})
        show = ([] if events is None else events).append
        return launch.train(params, "envace", 1, **paths, work=work, on_progress=show)

    return call, work


def test_progress_is_forwarded_in_order(run):
    call, _ = run
    events = []
    result = call(
        "emit('ready', 0); emit('step', 1, **{'train/reward': .5}); emit('done', 4); save(4)", events
    )
    assert [e.phase for e in events] == ["ready", "step", "done"] and events[1].metrics == {
        "train/reward": 0.5
    }
    assert result.ran and result.steps == 4 and result.resumed_from == 0


def test_a_finished_run_is_not_started_again_while_its_records_are_whole(run):
    call, work = run
    call("save(4)")
    assert not call("sys.exit(9)").ran
    (work / "metrics.jsonl").write_text('{"step": 1}\n{"step": 2}\n{"ste')  # a full disk took the rest
    assert call("save(4)").resumed_from == 0 and not call("sys.exit(9)").ran


def test_bug_23_status_zero_with_too_few_steps_is_a_failure(run):
    call, work = run
    with pytest.raises(StageFailed, match=r"step 2 of 4.*trainer\.log"):
        call("save(2)")


def test_failure_names_the_innermost_cause_and_the_log(run):
    call, _ = run
    with pytest.raises(StageFailed, match=r"step 1 of 4 \(status 1\): ValueError: the root.*trainer\.log"):
        call("""
            emit('step', 1)
            try:
                raise ValueError("the root")
            except ValueError as e:
                raise RuntimeError("wrapped") from e
        """)


def test_silence_ends_the_run_with_its_whole_group(run):
    call, work = run
    with pytest.raises(StageFailed, match="step_timeout_s"):
        call(
            "import subprocess; emit('ready', 0); subprocess.Popen(['sleep', '600']); time.sleep(600)",
            step_timeout_s=1.5,
        )
    assert process.running(work.resolve()) == []


def test_no_sign_of_life_is_told_apart(run):
    call, _ = run
    with pytest.raises(StageFailed, match="start_timeout_s"):
        call("time.sleep(600)", start_timeout_s=1.0)


def test_kill_is_reported_as_a_kill(run):
    call, _ = run
    with pytest.raises(StageFailed, match="killed by signal 9"):
        call("os.kill(os.getpid(), 9)")


def test_leftovers_of_a_killed_run_are_reaped_and_others_left_alone(run):
    call, work = run
    own = subprocess.Popen(
        ["sleep", "600"], env={**os.environ, "ENVACE_WORK": str(work.resolve())}, start_new_session=True
    )
    other = subprocess.Popen(
        ["sleep", "600"], env={**os.environ, "ENVACE_WORK": "/elsewhere"}, start_new_session=True
    )
    try:
        time.sleep(0.2)
        call("save(4)")
        own.wait(5)
        assert process.running(work.resolve()) == [] and other.poll() is None
    finally:
        other.kill()
        own.kill()


def test_a_leftover_without_our_mark_is_known_by_the_session(run):
    call, work = run
    work.mkdir()
    script = "import os, subprocess; subprocess.Popen(['sleep', '600'], env={})"
    process.start_trainer([sys.executable, "-c", script], os.environ, work).popen.wait()
    leftover = psutil.Process(next(p.pid for p in process.running(work)))
    assert "ENVACE_WORK" not in leftover.environ()
    assert [p.name() for p in process.running(work.resolve())] == ["sleep"]
    call("save(4)")
    assert process.running(work.resolve()) == []


def test_a_second_run_of_the_same_folder_is_refused(run):
    call, work = run
    work.mkdir(exist_ok=True)
    alive = process.start_trainer(["sleep", "600"], os.environ, work)
    try:
        with pytest.raises(EnvironmentUnready, match="already running"):
            call("save(4)")
    finally:
        alive.end()


def test_a_reused_pid_is_not_ours(tmp_path):
    with subprocess.Popen(["sleep", "600"], start_new_session=True) as other:
        before = {**asdict(identify(other.pid)), "start": 1}
        (tmp_path / "trainer.pid").write_text(json.dumps({**before, "watcher": asdict(identify())}))
        process.refuse_second(tmp_path)
        assert process.running(tmp_path) == []
        other.kill()


def test_too_few_tasks_are_refused_before_anything_starts(run, paths):
    call, _ = run
    write_tasks(paths["tasks_file"], generate(1, "train", 2))
    with pytest.raises(DataError, match="holds 2 tasks"):
        call("save(4)")


def test_an_arm_that_leaves_nothing_to_reward_is_refused_before_anything_starts(paths, tmp_path):
    tasks = []
    for task in generate(1, "train", 8):
        turns = (tuple(replace(i, focus_on="tool.content") for i in items) for items in task.checklist)
        tasks.append(replace(task, checklist=tuple(turns)))
    write_tasks(paths["tasks_file"], tasks)
    drop = replace(changed(), arms={"bare": {"grounding": "drop"}})
    with pytest.raises(DataError, match="grounding: drop"):
        launch.train(drop, "bare", 1, **paths, work=tmp_path / "w2")


@pytest.mark.parametrize(
    ("section", "error", "names"),
    [
        ({"rollout": {"worlds": {"shop": "no_such:Shop"}}}, ParamsError, "rollout.worlds.shop"),
        ({"engine": {"python": "/no/such/python"}}, EnvironmentUnready, "engine.python"),
    ],
)
def test_a_world_or_interpreter_that_cannot_be_had_is_named(paths, tmp_path, section, error, names):
    with pytest.raises(error, match=names):
        launch.train(changed(**section), "envace", 1, **paths, work=tmp_path / "w3")


@pytest.mark.parametrize("step_s", [3600.0, -3600.0])
def test_a_step_of_the_clock_is_no_silence(run, monkeypatch, step_s):
    (call, _), real, stepped = run, time.time, []
    monkeypatch.setattr(time, "time", lambda: real() + step_s * len(stepped))
    script = "emit('ready', 0); time.sleep(1); save(4)"
    assert call(script, stepped, step_timeout_s=30.0, deadline_s=60.0).steps == 4 and stepped


def test_torn_last_line_of_progress_is_read_once_whole(tmp_path):
    path = tmp_path / "p.jsonl"
    path.write_bytes(b'{"a": 1}\n{"a"')
    ((record, offset),) = follow(path)
    assert record == {"a": 1}
    with path.open("ab") as f:
        f.write(b": 2}\n")
    assert [r for r, _ in follow(path, offset)] == [{"a": 2}]
