"""Which prompts a step trains on depends on the seed and the step alone."""

from envace.engine.dataset import step_indices


def test_an_epoch_sees_every_task_once_and_each_epoch_has_its_own_order():
    stream = [i for step in range(1, 7) for i in step_indices(step, 4, 12, seed=3, shuffle=True)]
    assert sorted(stream[:12]) == sorted(stream[12:]) == list(range(12))
    assert stream[:12] != stream[12:]


def test_bug_23_resume_at_an_epoch_border_continues_with_the_next_epoch():
    # 3 steps an epoch: step 4 is the first of the second epoch and must not repeat or skip
    assert sorted(
        step_indices(4, 4, 12, 3, True) + step_indices(5, 4, 12, 3, True) + step_indices(6, 4, 12, 3, True)
    ) == list(range(12))


def test_a_batch_may_cross_the_border():
    assert sorted(step_indices(1, 5, 7, 1, False) + step_indices(2, 5, 7, 1, False)) == [
        0,
        0,
        1,
        1,
        2,
        2,
        3,
        4,
        5,
        6,
    ]


def test_seed_changes_the_order():
    assert step_indices(1, 8, 100, 1, True) != step_indices(1, 8, 100, 2, True)
