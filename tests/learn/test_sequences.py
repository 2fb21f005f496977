"""Several generations in one sequence: the same ids, the same numbers, the same gradient."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from learn_kit import batch, joined, sequence

from envace.config.method import Method
from envace.learn.advantage import advantages
from envace.learn.sequences import TrainingSequence, batch_rows, merged, token_advantages
from envace.types import Role, replace

ACT, REHEARSE = Role.ACT, Role.REHEARSE

GROWING = [
    sequence([1, 2], [3, 4]),
    sequence([9], [8, 8, 8], role=REHEARSE),
    sequence([1, 2, 3, 4, 5, 6], [7], turn=1, reward=0.5),
]


def test_act_generations_become_one_sequence_with_the_observations_masked():
    rehearsed, act = merged(GROWING)
    assert rehearsed.response_ids == (8, 8, 8) and rehearsed.rows[0].role is REHEARSE
    assert (act.prompt_ids, act.response_ids) == ((1, 2), (3, 4, 5, 6, 7))
    assert act.loss_mask == (1, 1, 0, 0, 1) and act.logprobs == (-3, -4, 0, 0, -7)
    assert [(r.start, r.length, r.turn, r.reward) for r in act.rows] == [(0, 2, 0, 1.0), (4, 1, 1, 0.5)]


def test_one_sequence_a_generation_keeps_rows_and_order():
    assert joined(GROWING, "generation") == GROWING


def test_a_prompt_that_was_written_anew_begins_a_new_sequence():
    single = [((1, 2), [3]), ((1, 2, 3, 4), [5]), ((1, 2, 4), [6]), ((1, 2, 4, 6), [7])]
    streams = merged([sequence(*ids) for ids in single])
    assert [(s.prompt_ids, s.response_ids) for s in streams] == [((1, 2), (3, 4, 5)), ((1, 2, 4), (6, 7))]
    assert [s.loss_mask for s in streams] == [(1, 0, 1), (1, 1)]


def test_a_shorter_prompt_extends_nothing():
    assert len(merged([sequence([1, 2], [3, 4]), sequence([1, 2, 3], [4])])) == 2


def test_rehearsals_never_merge():
    assert len(merged([sequence([1], [2], role=REHEARSE), sequence([1, 2], [3], role=REHEARSE)])) == 2


def test_generations_with_and_without_log_probabilities_stay_apart():
    assert len(merged([sequence([1], [2]), sequence([1, 2], [3], logprobs=False)])) == 2
    (both,) = merged([sequence([1], [2], logprobs=False), sequence([1, 2], [3], logprobs=False)])
    assert both.logprobs == ()


def test_a_frozen_role_stays_masked_when_merged():
    frozen = [replace(s, loss_mask=(0,) * len(s.response_ids)) for s in GROWING]
    assert not any(any(s.loss_mask) for s in merged(frozen))


def test_no_generations_no_sequences():
    assert merged([]) == []


# --- a batch --------------------------------------------------------------------------------------


def test_rows_come_back_with_where_they_lie_and_their_trained_tokens():
    rows, _ = batch(merged(GROWING), padding=1)
    assert [(r.role, r.turn, r.reward, r.trained) for r in rows] == [
        (REHEARSE, 0, 1.0, 3),
        (ACT, 0, 1.0, 2),
        (ACT, 1, 0.5, 1),
        (REHEARSE, 0, 1.0, 0),
    ]
    assert [(r.sequence, r.start, r.length) for r in rows] == [(0, 0, 3), (1, 0, 2), (1, 4, 1), (2, 0, 3)]


# wanted weight over verl's, for rows of 3 (REHEARSE), 2 and 1 tokens; verl sees sequences of 3 and 3
FACTORS = {
    ("token", "merged"): (1.0, 1.0, 1.0),
    ("generation", "merged"): (1 / 9 * 6, 1 / 6 * 6, 1 / 3 * 6),
    ("episode", "merged"): (1.0, 1.0, 1.0),
    ("token", "generation"): (1.0, 1.0, 1.0),
    ("generation", "generation"): (1.0, 1.0, 1.0),
}


@pytest.mark.parametrize("loss_weight, how", FACTORS)
def test_token_advantages_by_hand(loss_weight, how):
    rows, masks = batch(joined(GROWING, how))
    rows = [replace(r, advantage=10.0 * r.trained) for r in rows]
    found = token_advantages(rows, masks, Method(loss_weight=loss_weight, rows=how))
    rehearse, first, second = FACTORS[loss_weight, how]
    if how == "merged":
        np.testing.assert_allclose(found[0], [30 * rehearse] * 3)
        np.testing.assert_allclose(found[1], [20 * first] * 2 + [0, 0] + [10 * second])
    else:
        np.testing.assert_allclose(
            np.concatenate(found), [20 * first] * 2 + [30 * rehearse] * 3 + [10 * second]
        )


def test_role_weights_scale_advantages_by_their_share():
    rows, masks = batch(merged(GROWING))
    rows = [replace(r, advantage=1.0) for r in rows]
    found = token_advantages(rows, masks, Method(loss_weight="token", role_weights=(1.0, 0.5)))
    # 3 ACT tokens count 1, 3 REHEARSE tokens count 1/2: 6 tokens of weight 4.5
    np.testing.assert_allclose(found[0], [0.5 * 6 / 4.5] * 3)
    np.testing.assert_allclose(found[1], [6 / 4.5] * 2 + [0, 0] + [6 / 4.5])


def test_a_batch_of_nothing_but_padding_moves_nothing():
    masks = [np.zeros(2, int)]
    rows = batch_rows([merged(GROWING)[0].rows], masks, [False])
    assert not token_advantages(rows, masks, Method())[0].any()


# --- loss and gradient ----------------------------------------------------------------------------

EPISODE = st.lists(
    st.tuples(
        st.integers(1, 3),  # tokens ACT writes
        st.integers(0, 2),  # tokens of the observation after it
        st.booleans(),  # whether the next prompt is written anew
        st.integers(0, 2),  # tokens a REHEARSE generation writes; 0 for none
    ),
    min_size=1,
    max_size=4,
)
EPISODES = st.lists(
    st.tuples(EPISODE, st.one_of(st.none(), st.sampled_from([0.0, 0.25, 1.0]))), min_size=2, max_size=4
)


def played(episodes, seed: int) -> list[TrainingSequence]:
    """Generations of scripted episodes over a vocabulary of 11."""
    rng = np.random.default_rng(seed)

    def ids(n):
        return tuple(int(i) for i in rng.integers(0, 11, n))

    found = []
    for number, (steps, reward) in enumerate(episodes):
        prompt = ids(2)
        for turn, (wrote, seen, anew, rehearsed) in enumerate(steps):
            out = ids(wrote)
            found.append(sequence(prompt, out, reward, episode=str(number), turn=turn))
            if rehearsed:
                found.append(
                    sequence(ids(2), ids(rehearsed), reward, REHEARSE, episode=str(number), turn=turn)
                )
            prompt = ids(3) if anew else prompt + out + ids(seen)
    return found


@pytest.fixture(scope="module")
def model():
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)

    class Tiny(torch.nn.Module):
        """Predicts each token from those before it."""

        def __init__(self):
            super().__init__()
            self.embed, self.head = torch.nn.Embedding(11, 6), torch.nn.Linear(6, 11)

        def forward(self, ids):
            return self.head(self.embed(ids).cumsum(1).tanh()).log_softmax(-1)

    return Tiny()


def clipped_loss(model, streams, values, masks, method):
    """The clipped loss of all streams under the weights verl gives their tokens, and its gradient."""
    import torch

    from envace.learn.weights import LOSS_AGG_MODE, verl_weights

    weight_S = verl_weights([m.sum() for m in masks], LOSS_AGG_MODE[method.loss_weight])
    model.zero_grad()
    total = torch.zeros(())
    for stream, value, mask, weight in zip(streams, values, masks, weight_S):
        n = len(stream.prompt_ids)
        ids = torch.tensor(stream.prompt_ids + stream.response_ids)
        logp = model(ids[None])[0, n - 1 : -1].gather(1, ids[n:, None])[:, 0]
        old = logp.detach() + 0.3 * torch.sin(ids[n:].float())  # as far off as clipping notices
        a, ratio = torch.from_numpy(value).float(), (logp - old).exp()
        loss = torch.maximum(-a * ratio, -a * ratio.clamp(0.8, 1.2))
        loss = torch.where(a < 0, torch.minimum(-a * 3, loss), loss)
        total = total + (loss * torch.from_numpy(mask)).sum() * weight
    total.backward()
    return float(total.detach()), torch.cat([p.grad.flatten() for p in model.parameters()])


@settings(max_examples=25, deadline=None)
@given(
    EPISODES,
    st.sampled_from(["token", "generation", "episode"]),
    st.sampled_from([(1.0, 1.0), (1.0, 0.25), (0.0, 1.0)]),
    st.integers(0, 9),
)
def test_loss_and_gradient_are_those_of_one_sequence_a_generation(
    model, episodes, loss_weight, role_weights, seed
):
    import torch

    method = Method(loss_weight=loss_weight, role_weights=role_weights)
    found, seen = [], []
    for how, padding in (("generation", 0), ("merged", 2)):
        streams = joined(played(episodes, seed), how)
        rows, masks = batch(streams, padding)
        rows, diagnostics = advantages(rows, method)
        values = token_advantages(rows, masks, method)
        found.append(clipped_loss(model, streams, values, masks, method))
        seen.append(diagnostics.roles)
    (loss, gradient), (merged_loss, merged_gradient) = found
    assert seen[0].keys() == seen[1].keys()
    scale = float(gradient.norm()) + 1e-6
    assert float((merged_gradient - gradient).norm()) <= 1e-5 * scale
    assert merged_loss == pytest.approx(loss, rel=1e-5, abs=1e-6)
    assert torch.isfinite(gradient).all()
