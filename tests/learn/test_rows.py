"""Episodes to rows: what was sampled is what is trained."""

import pytest

from envace.config.method import Method
from envace.learn.advantage import advantages
from envace.learn.metrics import rehearsed_success, step_metrics
from envace.learn.sequences import TrainingRow, generation_sequences
from envace.types import (
    Answer,
    Episode,
    FinishReason,
    Generation,
    Item,
    Role,
    Sampling,
    StopReason,
    Task,
    Verdict,
    replace,
)

ACT, REHEARSE = Role.ACT, Role.REHEARSE


def generation(
    role: Role, ids: tuple[int, ...], text: str = "words", turn: int = 0, **changes: object
) -> Generation:
    fields = {
        "step": 0,
        "prompt_ids": (7, 8),
        "logprobs": (-0.1,) * len(ids),
        "sampling": Sampling(),
        "finish": FinishReason.STOP,
        **changes,
    }
    return Generation(role=role, turn=turn, output_ids=ids, text=text, **fields)


def episode(
    *generations: Generation, id: str = "e", reward: float | None = 0.5, **changes: object
) -> Episode:
    fields = {"stop": StopReason.DONE, "turn_rewards": (0.5,), "seconds": 2.0, **changes}
    return Episode(
        id=id,
        task_id="t",
        group_id="g",
        seed=0,
        prompt_set="h",
        generations=generations,
        messages=(),
        reward=reward,
        **fields,
    )


def rows_of(e: Episode, method: Method) -> list[TrainingRow]:
    return [row for s in generation_sequences(e, method) for row in s.rows]


PLAIN = episode(generation(ACT, (1, 2)), generation(REHEARSE, (3,)), generation(ACT, (4, 5, 6), turn=1))


def test_one_row_a_generation_on_the_sampled_ids_and_nothing_else():
    found = generation_sequences(PLAIN, Method())
    rows = rows_of(PLAIN, Method())
    assert [s.response_ids for s in found] == [(1, 2), (3,), (4, 5, 6)]
    assert [r.role for r in rows] == [ACT, REHEARSE, ACT] and [r.turn for r in rows] == [0, 0, 1]
    for s, row in zip(found, rows, strict=True):
        assert len(s.loss_mask) == len(s.logprobs) == len(s.response_ids) and set(s.loss_mask) == {1}
        assert row.length == row.trained == len(s.response_ids) and row.start == 0
        assert (row.reward, row.group_id, row.episode_id, s.prompt_ids) == (0.5, "g", "e", (7, 8))


def test_the_last_row_is_an_act_row_even_when_the_episode_ends_in_a_rehearsal():
    e = episode(generation(ACT, (1,)), generation(ACT, (2,)), generation(REHEARSE, (3,)))
    assert [s.response_ids for s in generation_sequences(e, Method())] == [(1,), (3,), (2,)]


def test_a_frozen_role_keeps_its_rows_with_a_zero_mask():
    method = Method(roles=("act",))
    assert [s.loss_mask for s in generation_sequences(PLAIN, method)] == [(1, 1), (0,), (1, 1, 1)]
    _, found = advantages(rows_of(PLAIN, method), method)
    assert found.untrained == 1 and list(found.roles) == ["act"]


def test_a_generation_without_tokens_makes_no_row_and_is_counted():
    e = episode(generation(ACT, (1,)), generation(REHEARSE, (), text=""))
    assert [s.response_ids for s in generation_sequences(e, Method())] == [(1,)]
    assert step_metrics([e], [], advantages([], Method())[1])["train/empty_generations"] == 1


def test_an_episode_without_generations_has_no_rows():
    assert rows_of(episode(), Method()) == []


def test_the_penalty_falls_on_rows_without_text_only():
    e = episode(generation(ACT, (9,), text=" \n"), generation(ACT, (1,)))
    assert [r.reward for r in rows_of(e, Method(empty_penalty=0.1))] == [0.4, 0.5]
    assert [r.reward for r in rows_of(e, Method())] == [0.5, 0.5]


def test_an_unscored_episode_stays_unscored_whatever_the_penalty():
    e = episode(generation(ACT, (9,), text=""), reward=None)
    assert [r.reward for r in rows_of(e, Method(empty_penalty=0.1))] == [None]


def test_log_probabilities_may_be_unknown_but_never_of_another_length():
    assert generation_sequences(episode(generation(ACT, (1, 2), logprobs=())), Method())[0].logprobs == ()
    with pytest.raises(ValueError, match="1 log-probabilities for 2 tokens"):
        rows_of(episode(generation(ACT, (1, 2), logprobs=(-1.0,))), Method())


# --- credit ---------------------------------------------------------------------------------------


def judged_turns(turns: tuple[int, ...], rewards: tuple[float, ...], reward: float | None, **changes: object):
    verdicts = tuple(Verdict(item_id=i, turn=t, answer=Answer.YES) for t in turns for i in ("C0", "C1"))
    generations = [generation(role, (1,), turn=t) for t in range(3) for role in (ACT, REHEARSE)]
    return episode(*generations, verdicts=verdicts, turn_rewards=rewards, reward=reward, **changes)


def credited(e: Episode, credit: str = "reward_to_go", **switches: object) -> list[float | None]:
    """Rewards of the rows by turn, which ACT and REHEARSE share."""
    rows = sorted(rows_of(e, Method(credit=credit, **switches)), key=lambda r: r.turn)
    assert [r.reward for r in rows[::2]] == [r.reward for r in rows[1::2]]
    return [r.reward for r in rows[::2]]


def test_reward_to_go_credits_a_turn_with_its_own_and_later_rewards():
    e = judged_turns((0, 1), (1.0, 0.5), 0.5)  # turn 2 was never judged and counts 0
    assert credited(e) == pytest.approx([1.5 / 3, 0.5 / 3, 0.0])
    assert credited(e)[0] == 0.5 and credited(e, "trajectory") == [0.5] * 3


def test_a_turn_without_checklist_items_is_credited_with_what_came_after_it():
    assert credited(judged_turns((0, 2), (1.0, 0.5), 0.5)) == pytest.approx([0.5, 0.5 / 3, 0.5 / 3])


def test_nothing_earned_is_nothing_to_go_and_unscored_stays_unscored():
    assert credited(judged_turns((0, 1), (0.0, 0.0), 0.0)) == [0.0] * 3
    assert credited(judged_turns((0,), (), None)) == [None] * 3
    assert (
        credited(judged_turns((0,), (), 0.0, unscored_reason="judge_failed")) == [0.0] * 3
    )  # unscored: zero


def test_credit_that_cannot_be_dealt_to_turns_is_an_error():
    with pytest.raises(ValueError, match="2 turn rewards, verdicts on 1 turns"):
        rows_of(judged_turns((0,), (1.0, 1.0), 1.0), Method(credit="reward_to_go"))


def test_turns_of_reward_to_go_have_baselines_of_their_own():
    a = judged_turns((0, 1, 2), (1.0, 1.0, 1.0), 1.0)
    b = replace(judged_turns((0, 1, 2), (1.0, 0.0, 0.5), 0.5), id="f")
    method = Method(credit="reward_to_go")
    done, found = advantages(rows_of(a, method) + rows_of(b, method), method)
    seen = {(r.episode_id, r.turn): r.advantage for r in done}
    expected = {("e", 0): 0.25, ("e", 1): 0.25, ("e", 2): 1 / 12}
    expected |= {("f", t): -v for (_, t), v in expected.items()}
    assert seen == pytest.approx(expected) and found.groups == 6 and found.lone == 0


# --- metrics --------------------------------------------------------------------------------------


def metrics():
    episodes = [
        episode(
            generation(ACT, (1, 2)),
            generation(REHEARSE, (3,)),
            id="a",
            reward=1.0,
            counters={"failure/bad_json": 2, "act": 1},
        ),
        episode(*[generation(ACT, (1,))] * 4, id="b", reward=0.0, stop=StopReason.STEP_BUDGET),
        episode(
            generation(ACT, (1,)),
            id="c",
            reward=None,
            stop=StopReason.JUDGE_FAILED,
            counters={"failure/bad_json": 1},
        ),
    ]
    rows = [row for e in episodes for row in rows_of(e, Method())]
    rows, found = advantages(rows, Method())
    return step_metrics(episodes, rows, found)


def test_rewards_are_means_over_scored_episodes_not_over_rows():
    m = metrics()
    assert m["train/reward"] == 0.5 and m["act/reward"] == 0.5 and m["rehearse/reward"] == 1.0
    assert m["train/unscored"] == pytest.approx(1 / 3) and m["train/full_reward"] == 0.5


def test_reasons_tokens_and_advantages_are_reported():
    m = metrics()
    assert (
        m["stop/done"] == m["stop/step_budget"] == m["stop/judge_failed"] == 1 and m["failure/bad_json"] == 3
    )
    assert (
        m["act/rows"] == 6 and m["act/tokens"] == 7 and m["rehearse/tokens"] == 1 and m["train/tokens"] == 8
    )
    assert m["act/adv_mean"] == pytest.approx((0.5 - 4 * 0.5) / 5) and m["train/lone"] == 1


def test_names_have_one_slash_and_values_are_finite_floats():
    import math
    import re

    for name, value in metrics().items():
        assert re.fullmatch(r"[a-z]+/[a-z_]+", name) and isinstance(value, float) and math.isfinite(value)


def test_a_step_without_scored_episodes_reports_no_reward():
    only = [episode(generation(ACT, (1,)), reward=None)]
    rows, found = advantages(rows_of(only[0], Method()), Method())
    m = step_metrics(only, rows, found)
    assert "train/reward" not in m and "act/reward" not in m and m["train/unscored"] == 1.0


def test_the_trained_reward_stands_beside_the_judged_one():
    e = episode(generation(ACT, (1,)), generation(ACT, (2,)), id="a", reward=1.0)
    f = episode(generation(ACT, (1,)), id="b", reward=0.0)
    rows = [
        replace(r, reward=0.5 if r.episode_id == "a" else 0.3) for x in (e, f) for r in rows_of(x, Method())
    ]
    rows, found = advantages(rows, Method())
    m = step_metrics([e, f], rows, found)
    assert m["train/reward"] == 0.5 and m["train/trained_reward"] == pytest.approx(0.4)
    assert m["train/trained_reward_std"] == pytest.approx(0.1)


def test_rehearsed_success_needs_every_required_item_of_every_turn():
    def item(name: str, required: bool) -> Item:
        return Item(
            id=name,
            question="q",
            pass_condition="p",
            focus_on="f",
            weight=0.5,
            required_for_next_turn=required,
        )

    task = Task(
        id="t",
        prefix=(),
        user_turns=("more",),
        tools=(),
        source="test",
        checklist=((item("C0", True), item("C1", False)), (item("C0", True),)),
    )

    def judged(*answers: tuple[int, str, Answer], **changes: object) -> Episode:
        return episode(verdicts=tuple(Verdict(item_id=i, turn=t, answer=a) for t, i, a in answers), **changes)

    yes, no = Answer.YES, Answer.NO
    both = judged((0, "C0", yes), (0, "C1", no), (1, "C0", yes))
    failed = judged((0, "C0", yes), (0, "C1", yes), (1, "C0", no))
    unreached = judged((0, "C0", yes), (0, "C1", yes))
    unscored = judged(reward=None, unscored_reason="judge_failed")
    assert rehearsed_success([both, failed, unreached, unscored], {"t": task}) == pytest.approx(1 / 3)
    assert rehearsed_success([unscored], {"t": task}) is None
