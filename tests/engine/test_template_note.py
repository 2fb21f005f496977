"""What the chat template does is said where a training starts, and does not pass for its first sign of
life."""

from types import SimpleNamespace

from envace.config import parse
from envace.engine.launch import Watcher
from envace.engine.run_files import Progress, emit
from tasks.training import ProgressView

NOTE = "chat template: appends: tool results"


def test_a_note_reaches_the_terminal():
    said = []
    view = ProgressView(SimpleNamespace(note=said.append), "train-a-1")
    view.shown = False  # no Prefect server here
    for phase in ("template", "ready", "rollout"):
        view(Progress(phase=phase, step=0, steps=2, note=NOTE if phase == "template" else ""))
    assert said == [NOTE]


def test_a_start_is_still_waited_for_after_the_note(tmp_path):
    seen = []
    params = parse({"engine": {"start_timeout_s": 500, "step_timeout_s": 1e-9}})
    watcher = Watcher(params, tmp_path, seen.append)
    emit(tmp_path, Progress(phase="template", step=0, steps=2, note=NOTE))
    assert not watcher.tick() and not watcher.alive
    assert [event.note for event in seen] == [NOTE]
    emit(tmp_path, Progress(phase="ready", step=0, steps=2))
    watcher.tick()  # hears of it
    assert watcher.tick() and "silent" in watcher.complaint and watcher.alive
