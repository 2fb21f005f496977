"""Which episodes become traces, and what a stage says of it."""

import json

import pytest
from trace_kit import EPISODE, episodes, read, unscored, write

from envace.config import parse
from envace.errors import ParamsError
from envace.track import traces
from envace.types import StopReason, replace, to_json
from tasks import tracking
from tasks.run import Run


def ids(found):
    return [x.head.id for x in found]


def test_the_sample_is_whole_groups_by_hash_whatever_their_order():
    found = list(traces.of_episodes(episodes(20, 4), {}))
    chosen = ids(traces.choose(found, 8, 0))
    assert len(chosen) == 8 and len({i.partition("-")[0] for i in chosen}) == 2
    assert ids(traces.choose(found[::-1], 8, 0)) == chosen and ids(traces.choose(found, 4, 0)) == chosen[:4]


def test_all_failures_are_shown_up_to_the_limit_the_gravest_first_and_the_rest_counted(log):
    mixed = [
        *episodes(3, 2),
        *(replace(e, id=f"cut-{e.id}") for e in episodes(2, 2, stop=StopReason.STEP_BUDGET)),
        *(unscored(id=f"lost-{k}", group_id=f"l{k}") for k in range(3)),
    ]
    counts = write(log, mixed, sample=0, failed=5)
    assert (counts.episodes, counts.failed, counts.written, counts.left_out) == (13, 7, 5, 2)
    shown = sorted(t.info.tags["envace.episode"].partition("-")[0] for t in read(log))
    assert shown == ["cut", "cut", "lost", "lost", "lost"]
    assert "5 of 13 episodes in MLflow, with 5 of 7 that failed" in counts.sentence()
    assert "2 more failed than mlflow.failed_traces shows" in counts.sentence()


def test_minus_one_shows_all_failures_and_is_the_default(log):
    mixed = [*episodes(3, 2), *(unscored(id=f"lost-{k}", group_id=f"l{k}") for k in range(200))]
    assert len(traces.choose(list(traces.of_episodes(mixed, {})), 0, -1)) == 200
    counts = write(log, mixed[:9], sample=0, failed=-1)
    assert (counts.failed, counts.chosen_failed, counts.written, counts.left_out) == (3, 3, 3, 0)
    assert "mlflow.failed_traces" not in counts.sentence()
    assert parse({"eval": {"policies": ["start"]}}).mlflow.failed_traces == -1
    with pytest.raises(ParamsError, match="mlflow.failed_traces"):
        parse({"mlflow": {"failed_traces": -2}})


def test_an_episode_with_a_number_whose_judge_failed_is_a_failure_too():
    paid = replace(unscored(id="paid"), reward=0.25)  # unscored: zero
    [found] = traces.choose(list(traces.of_episodes([*episodes(2, 1), paid], {})), 0, -1)
    assert found.head.id == "paid"


def test_very_many_traces_have_longer_than_a_few(log, monkeypatch):
    waited = []
    monkeypatch.setattr(
        traces, "_write", lambda log, chosen, tags, counts, deadline_s: waited.append(deadline_s)
    )
    for n in (3, 1000):
        write(log, [replace(EPISODE, id=str(k)) for k in range(n)], sample=n)
    assert waited == [120.0, 250.0]


def test_episodes_of_a_file_are_found_by_their_lines_and_a_damaged_one_is_counted(tmp_path, log):
    path = tmp_path / "step_000003.jsonl"
    lines = [json.dumps(to_json(e), ensure_ascii=False) for e in (replace(EPISODE, id="ä"), unscored(id="b"))]
    path.write_text("\n".join([lines[0], '{"step": 3}', "{", lines[1]]) + "\n", encoding="utf-8")
    counts = traces.log_traces(log, traces.of_file(path, {"envace.step": "3"}), sample=5, failed=5, tags={})
    assert (counts.episodes, counts.unreadable, counts.written, counts.failed) == (2, 2, 2, 1)
    assert {(t.info.tags["envace.episode"], t.info.tags["envace.step"]) for t in read(log)} == {
        ("ä", "3"),
        ("b", "3"),
    }


# --- in a stage ---


class Stage(Run):
    """A stage's run that remembers what it said and counted."""

    def __init__(self, root, log, **mlflow):
        params = parse({"policy": {"kind": "tiny"}, "mlflow": mlflow})
        super().__init__("evaluate@start-desk", params, root, log)
        self.said, self.found = [], {}

    def say(self, text):
        self.said.append(text)

    def metrics(self, values, step=0):
        self.found |= values


def test_a_stage_shows_its_episodes_says_how_many_and_counts_them(log, tmp_path):
    run = Stage(tmp_path, log, traces=2, failed_traces=1)
    with tracking.traced(run, "start") as shown:
        shown += [*episodes(2, 2), unscored(id="lost", group_id="x")]
    assert run.found.items() >= {"traces/failed": 1, "traces/lost": 0, "traces/left_out": 0}.items()
    assert len(read(log)) == run.found["traces/written"] and len(run.said) == 1
    assert {t.info.tags["envace.stage"] for t in read(log)} == {"evaluate@start-desk"}


def test_episodes_of_a_pool_that_gave_up_are_shown_too(log, tmp_path):
    from envace.rollout.pool import PoolAborted

    run = Stage(tmp_path, log, traces=0)
    with pytest.raises(PoolAborted), tracking.traced(run, "start"):
        raise PoolAborted("all dead", [unscored(id="lost")])
    assert [t.info.tags["envace.episode"] for t in read(log)] == ["lost"]


def test_a_stage_that_asks_for_none_or_has_no_log_writes_none(log, tmp_path):
    for run in (Stage(tmp_path, log, traces=0, failed_traces=0), Stage(tmp_path, None)):
        with tracking.traced(run, "start") as shown:
            shown += episodes(1, 1)
        assert run.said == [] and run.found == {}
    assert read(log) == []


def test_a_training_shows_the_episodes_of_its_steps_up_to_the_last(log, tmp_path):
    folder = tmp_path / "episodes"
    folder.mkdir()
    for step in (1, 2, 3):
        line = json.dumps(to_json(replace(EPISODE, id=f"s{step}p0-0", group_id=f"s{step}p0")))
        (folder / f"step_{step:06d}.jsonl").write_text(line + "\n")
    tracking.trace_training(Stage(tmp_path, log), tmp_path, "envace-1", 2)
    tags = [t.info.tags for t in read(log)]
    assert {(t["envace.step"], t["envace.policy"]) for t in tags} == {("1", "envace-1"), ("2", "envace-1")}


def test_a_training_without_episodes_says_nothing(log, tmp_path):
    run = Stage(tmp_path, log)
    tracking.trace_training(run, tmp_path, "envace-1")
    assert run.said == [] and run.found == {}
