"""The stage around private rehearsal: points, one control, and what the tries came to."""

from types import SimpleNamespace

import pytest

from envace.config import parse
from envace.types import Attempt, Memory, PolicyRef
from tasks import rehearsal
from tasks.serving import Served


def attempt(k, ok, tokens):
    return Attempt(index=k, episode=None, feedback={}, feedback_ok=ok, tokens=tokens)


def test_a_point_names_mode_and_number():
    assert rehearsal.read_point("plain-0") == ("plain", 0)
    assert rehearsal.read_point("sequential-12") == ("sequential", 12)


def test_usable_forms_fallbacks_and_tokens_are_counted():
    good = Memory(text="2 imagined tries", n_attempts=2, tokens=4, cost_tokens=30)
    cut = Memory(text="", n_attempts=1, tokens=0, fallback=True, cost_tokens=50)
    lessons = [([attempt(0, True, 100), attempt(1, False, 200)], good), ([attempt(0, True, 10)], cut)]
    spent = rehearsal.rehearsal_counts(lessons)
    assert spent == {
        "runs": 2,
        "attempts": 3,
        "self_evaluations": 2,
        "self_evaluation_fallbacks": 1,
        "condensations": 1,
        "condensation_fallbacks": 1,
        "empty_memories": 1,
        "tokens": 390,
    }
    said = rehearsal.describe(spent)
    assert "2 of 3 self-evaluations, 1 of 2 condensations" in said and "390 tokens" in said
    assert "control" in rehearsal.describe(rehearsal.rehearsal_counts([]))


class Run:
    """A stage's run that keeps what it is told."""

    def __init__(self):
        self.params = parse({"tts": {"trials": 2, "limit": 0}})
        self.said, self.logged, self.log = [], {}, None

    def say(self, text):
        self.said.append(text)

    def metrics(self, values, step=0):
        self.logged |= values

    def artifact(self, name, content):
        self.logged[name] = content


@pytest.mark.parametrize(("point", "tried"), [("plain-0", 0), ("parallel-1", 4), ("sequential-2", 8)])
def test_only_the_control_commits_without_a_memory(point, tried, monkeypatch):
    tasks = [SimpleNamespace(id="t1"), SimpleNamespace(id="t0")]
    told = []

    async def rehearse(job, *, mode, n, seed, **_):
        made = [attempt(k, True, 1) for k in range(n)]
        return made, Memory(text=f"{job.id} {mode} {seed}", n_attempts=n, tokens=1)

    async def commit(run, served, jobs, trials, memory_for):
        told.extend(memory_for(j, k) if memory_for else None for j in jobs for k in range(trials))
        return [], []

    monkeypatch.setattr("envace.tts.rehearse.rehearse", rehearse)
    monkeypatch.setattr(rehearsal, "commit", commit)
    monkeypatch.setattr(rehearsal, "read_split", lambda run, split: tasks)
    monkeypatch.setattr(
        rehearsal,
        "open_policy",
        lambda run, name: Served(policy=0, renderer=0, ref=PolicyRef(kind="tiny", uri="", name=name)),
    )
    variants = []
    monkeypatch.setattr(rehearsal, "score_samples", lambda *given: variants.append(given[-1]) or [])
    run = Run()
    outcome = rehearsal.rehearse_and_commit.fn(run, point)
    assert len(outcome.attempts) == tried == outcome.notes["rehearsal"]["attempts"]
    assert [(a["task"], a["trial"]) for a in outcome.attempts] == sorted(
        (a["task"], a["trial"]) for a in outcome.attempts
    )
    if tried:
        assert len({m.text for m in told}) == 4  # a seed of its own for each task and trial
        assert variants == [f"rehearse-{point}"] and run.logged["tts/rehearsal_attempts"] == tried
    else:
        assert told == [None] * 4 and variants == ["plain"]
