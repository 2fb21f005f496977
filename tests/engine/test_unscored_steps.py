"""Steps in which a judge failed or a deadline passed: what is trained on, what is counted, when the run
stops.

Episodes are really played, by scripted words and a judge that is down for some of them.
"""

import asyncio

import pytest

from envace.chat.renderer import ByteRenderer
from envace.config import RolloutParams
from envace.config.method import PRESETS, Method
from envace.engine.step_metrics import TooManyUnscored
from envace.io.children import innermost_error
from envace.policy.scripted import ScriptedPolicy
from envace.rollout.episode import run_episode
from envace.rollout.prompts import load_prompt_set
from envace.rollout.sources import RecordedSource
from envace.types import Answer, Item, Message, StopReason, Task, Verdict, replace

RENDERER = ByteRenderer()
ITEMS = tuple(
    Item(id=f"C{k}", question="?", pass_condition="", focus_on="assistant.tool_calls", weight=0.5)
    for k in (0, 1)
)
TASK = Task(id="t", prefix=(Message(role="user", content="go"),), tools=(), checklist=(ITEMS,), source="test")


class Judge:
    """C0 is yes; C1 is what `answer` says, which may be unscored."""

    def __init__(self, answer):
        self.answer = answer

    async def judge_turn(self, task, turn, messages):
        found = zip(ITEMS, (Answer.YES, self.answer))
        return [Verdict(item_id=i.id, turn=turn, answer=a, reason="judge_timeout: 5 s") for i, a in found]


def played(method, answers, slow=(), step=1):
    """One prompt's episodes: C1 of member k is `answers[k]`; members in `slow` never come to their second
    word.
    """

    async def speak(request):
        if int(request.episode_id.rpartition("-")[2]) in slow:
            await asyncio.sleep(30)
        return "done"

    async def one(k, answer):
        return await run_episode(
            TASK,
            policy=ScriptedPolicy(speak, RENDERER),
            source=RecordedSource(TASK),
            renderer=RENDERER,
            judge=Judge(answer),
            method=method,
            params=RolloutParams(prompt_tokens=9000, deadline_s=1.0),
            episode_id=f"s{step}p0-{k}",
            group_id=f"s{step}p0",
            seed=k,
            prompt_set=load_prompt_set("compact"),
        )

    async def all_of_them():
        return await asyncio.gather(*(one(k, answer) for k, answer in enumerate(answers)))

    return asyncio.run(all_of_them())


YES, NO, LOST = Answer.YES, Answer.NO, Answer.UNSCORED
# eight episodes, so many of them with a judge that failed
GROUP = {lost: ([YES] + [NO] * 7)[: 8 - lost] + [LOST] * lost for lost in (2, 3, 8)}


@pytest.mark.parametrize("unscored", ["exclude", "zero"])
def test_a_run_goes_on_at_the_set_rate_of_unscored_episodes(step_of, unscored):
    method = Method(unscored=unscored)
    _, metrics = step_of(method, episodes=lambda step: played(method, GROUP[2]), max_unscored=0.25)
    assert metrics["train/unscored"] == 0.25 and metrics["stop/judge_failed"] == 2.0
    assert metrics["judge/unscored_timeout"] == 2.0


@pytest.mark.parametrize("unscored", ["exclude", "zero"])
@pytest.mark.parametrize("lost", [3, 8])
def test_a_run_stops_above_the_rate_and_names_the_cause(step_of, unscored, lost):
    method = Method(unscored=unscored)
    with pytest.raises(TooManyUnscored) as stopped:
        step_of(method, episodes=lambda step: played(method, GROUP[lost]), max_unscored=0.25)
    assert f"step 1: {lost} of 8 episodes are unscored" in str(stopped.value)
    assert "judge_failed: C1: judge_timeout" in str(stopped.value) and "max_unscored = 0.25" in str(
        stopped.value
    )


def test_the_launcher_finds_the_cause_among_what_ray_prints(tmp_path):
    (tmp_path / "trainer.log").write_text(
        "\x1b[36m(TaskRunnerV1 pid=9)\x1b[0m Traceback (most recent call last):\n"
        "ray.exceptions.RayTaskError(TooManyUnscored): ray::TaskRunnerV1.run() (pid=9, ip=10.0.0.1)\n"
        "envace.engine.step_metrics.TooManyUnscored: step 3: 5 of 8 episodes are unscored (most: x)\n"
    )
    said = innermost_error(tmp_path / "trainer.log")
    assert said.startswith("envace.engine.step_metrics.TooManyUnscored: step 3: 5 of 8")


@pytest.mark.parametrize("preset", ["authors", "paper", "envace"])
def test_presets_stop_alike(step_of, preset):
    method = PRESETS[preset]
    step_of(method, episodes=lambda step: played(method, GROUP[2]), max_unscored=0.25)
    with pytest.raises(TooManyUnscored):
        step_of(method, episodes=lambda step: played(method, GROUP[3]), max_unscored=0.25)


def test_an_outage_is_outside_the_baseline_or_a_no_as_asked(step_of):
    """C0 is yes for all, so a scored episode earns 1 or .5; the one whose judge failed nothing, or .5 for C0.
    Two of three rows count under `exclude`, so what they earn is 3/2 times as large."""
    for unscored, expected in (("exclude", [0.375, -0.375, 0.0]), ("zero", [1 / 3, -1 / 6, -1 / 6])):
        method = Method(unscored=unscored)
        values, metrics = step_of(
            method, padding=0, episodes=lambda step, m=method: played(m, [YES, NO, LOST]), max_unscored=0.5
        )
        assert [row[0] for row in values] == pytest.approx(expected, abs=1e-6)
        assert metrics["train/unscored"] == pytest.approx(1 / 3)
        assert metrics["train/reward"] == pytest.approx(0.75 if unscored == "exclude" else 2 / 3)


def test_bug_16_a_timed_out_episode_is_neither_in_the_baseline_nor_trained(step_of):
    """Public bug 16: rollouts over their deadline were masked in the loss and still shifted the baseline.

    The clock says more about the machine than about the policy, so such an episode is unscored: outside the
    baseline, and its tokens are counted in nobody's mean. verl divides by the tokens of all four rows, so
    what the three earn is 4/3 times as large.
    """
    late = [YES, NO, NO, NO]
    method = Method()
    episodes = played(method, late, slow={3})
    assert [e.stop for e in episodes] == [StopReason.DONE] * 3 + [StopReason.DEADLINE]
    assert (episodes[3].reward, episodes[3].unscored, episodes[3].generations) == (None, True, ())
    said = replace(episodes[2].generations[0], text="half a word")
    cut = replace(episodes[3], generations=(said,))  # it had said something before its time was up

    values, metrics = step_of(method, padding=0, episodes=lambda step: [*episodes[:3], cut])
    assert [row[0] for row in values] == pytest.approx(
        [4 / 9, -2 / 9, -2 / 9, 0.0], abs=1e-6
    )  # of 1, .5 and .5
    assert metrics["stop/deadline"] == 1.0 and metrics["train/untrained_rows"] == 0.0
    assert metrics["train/unscored"] == 0.25

    # without a token it has no row: the baseline is that of the three rows that are trained, and it is
    # counted
    values, metrics = step_of(method, padding=0, episodes=lambda step: episodes)
    assert [row[0] for row in values] == pytest.approx([1 / 3, -1 / 6, -1 / 6, 0.0], abs=1e-6)
    assert metrics["train/untrained_rows"] == 1.0
