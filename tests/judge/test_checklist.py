"""Turn and episode reward from verdicts, on hand-computed numbers."""

import dataclasses

import pytest

from envace.config.method import Method
from envace.errors import DataError
from envace.judge import episode_reward, turn_reward
from envace.judge.checklist import training_task
from envace.types import Answer, Item, Message, Task, Verdict

YES, NO, UNSCORED = Answer.YES, Answer.NO, Answer.UNSCORED


def item(i: int, weight: float, required: bool = False) -> Item:
    return Item(
        id=f"C{i}",
        question="q",
        pass_condition="p",
        focus_on="assistant.tool_calls",
        weight=weight,
        required_for_next_turn=required,
    )


def verdicts(*answers: Answer) -> list[Verdict]:
    return [Verdict(item_id=f"C{i}", turn=0, answer=a) for i, a in enumerate(answers)]


ITEMS = (item(0, 0.25), item(1, 0.2), item(2, 0.55))


def test_an_item_passes_when_any_step_passed_it_and_unreached_turns_count_zero():
    """Test vector (iv) of the specification (method, section 12): weights .25/.2/.55, verdicts [T,F,F]
    and [F,F,T], two turns of which the second is not reached: r = .8, R = .4."""
    steps = [*verdicts(YES, NO, NO), *verdicts(NO, NO, YES)]
    score = turn_reward(ITEMS, steps)
    assert score.reward == pytest.approx(0.8)
    assert episode_reward([score.reward], 2) == pytest.approx(0.4)


ONE, NEEDED = (item(0, 1.0),), (item(0, 0.5), item(1, 0.5, required=True))


@pytest.mark.parametrize(
    ("items", "said", "reward", "unscored", "unmet"),
    [
        (ITEMS, verdicts(YES, YES, YES), 1.0, (), False),
        (ITEMS, verdicts(NO, NO, NO), 0.0, (), False),
        (ITEMS, verdicts(YES, UNSCORED, YES), None, ("C1",), False),
        (NEEDED, verdicts(YES), None, ("C1",), False),  # a missing verdict is unscored, not a no
        (NEEDED, verdicts(YES, NO), 0.5, (), True),
        (NEEDED, verdicts(NO, YES), 0.5, (), False),
        (ONE, [*verdicts(UNSCORED), *verdicts(YES)], 1.0, (), False),  # a yes on another step settles it
        (ONE, [*verdicts(UNSCORED), *verdicts(NO)], None, ("C0",), False),  # a no does not
    ],
)
def test_a_turns_reward(items, said, reward, unscored, unmet):
    score = turn_reward(items, said)
    assert score.reward == (None if reward is None else pytest.approx(reward))
    assert (score.unscored, score.required_unmet) == (unscored, unmet)


def test_episode_reward_is_the_mean_over_all_turns_of_the_task():
    assert episode_reward([1.0, 0.5], 3) == pytest.approx(0.5)
    assert episode_reward([], 3) == 0.0


def test_more_judged_turns_than_the_task_has_is_an_error():
    with pytest.raises(ValueError, match="2 judged turns for a task of 1"):
        episode_reward([1.0, 1.0], 1)


# --- the checklist training is judged by


def judged_task() -> Task:
    grounding = dataclasses.replace(item(3, 0.2), focus_on="tool.content")
    first = (item(0, 0.2), dataclasses.replace(item(1, 0.6, True), dependence=("C0", "C3")), grounding)
    return Task(
        id="t",
        prefix=(Message(role="user", content="go"),),
        tools=(),
        checklist=(first, ITEMS),
        source="test",
    )


def test_keep_hands_over_the_very_task():
    task = judged_task()
    assert training_task(task, Method()) is task


def test_drop_takes_grounding_items_out_and_scales_the_rest_to_the_same_sum():
    first, second = training_task(judged_task(), Method(grounding="drop")).checklist
    assert [i.id for i in first] == ["C0", "C1"] and second is ITEMS
    assert [i.weight for i in first] == pytest.approx([0.25, 0.75]) and first[1].dependence == ("C0",)
    assert first[1].required_for_next_turn
    score = turn_reward(first, verdicts(NO, YES))
    assert score.reward == pytest.approx(0.75) and not score.required_unmet


def test_drop_refuses_a_turn_of_nothing_but_grounding():
    task = judged_task()
    only = dataclasses.replace(task, checklist=(task.checklist[0][2:],))
    with pytest.raises(DataError, match="task t, turn 0"):
        training_task(only, Method(grounding="drop"))
