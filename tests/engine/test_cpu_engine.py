"""What the CPU engine does otherwise than verl's engine gives the same numbers."""

import os
import types

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

os.environ.setdefault("VERL_PLATFORM", "cpu")
pytest.importorskip("verl")

LENGTHS, PROMPTS = [7, 4, 9], [5, 2, 3]


@pytest.fixture(scope="module")
def engine():
    import envace.engine.cpu_platform  # noqa: F401
    from envace.engine import cpu_engine

    return cpu_engine


@pytest.fixture(scope="module")
def model():
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=24,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
        max_position_embeddings=32,
        tie_word_embeddings=True,
    )
    return Qwen3ForCausalLM(config).eval()


def nested(rows):
    return torch.nested.as_nested_tensor(rows, layout=torch.jagged)


def micro_batch(temperature=1.0):
    from tensordict import TensorDict
    from verl.utils import tensordict_utils as tu

    ids = [torch.randint(1, 24, (n,), generator=torch.Generator().manual_seed(n)) for n in LENGTHS]
    ids[0] = ids[2][:7]  # the first row begins the last one, which carries it
    batch = TensorDict(
        {
            "input_ids": nested(ids),
            "position_ids": nested([torch.arange(n) for n in LENGTHS]),
            "prompts": nested([i[:p] for i, p in zip(ids, PROMPTS)]),
            "responses": nested([i[p:] for i, p in zip(ids, PROMPTS)]),
            "response_mask": nested([torch.ones(n - p, dtype=torch.long) for n, p in zip(LENGTHS, PROMPTS)]),
            "old_log_probs": nested([torch.full((n - p,), -1.0) for n, p in zip(LENGTHS, PROMPTS)]),
        },
        batch_size=3,
    )
    tu.assign_non_tensor(batch, use_remove_padding=False, temperature=temperature, calculate_entropy=True)
    return batch


def outputs(cls, model, batch):
    """log_probs and entropy of a micro-batch as an engine class computes them around a plain model."""
    from verl.workers.utils.padding import no_padding_2_padding

    own = object.__new__(cls)
    own.pad_to_length, own.use_ulysses_sp = False, False
    own.engine_config = types.SimpleNamespace(entropy_checkpointing=False)
    inputs, args = own.prepare_model_inputs(micro_batch=batch)
    found = own.prepare_model_outputs(model(**inputs, use_cache=False), args, batch, None)
    return {k: no_padding_2_padding(found[k], batch) for k in ("log_probs", "entropy")}, found


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_log_probabilities_entropies_and_gradients_equal_verls(engine, model, temperature):
    from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead

    batch, gradients = micro_batch(temperature), []
    for cls in (FSDPEngineWithLMHead, engine.CpuFsdpEngine):
        found, _ = outputs(cls, model, batch)
        model.zero_grad()
        (found["log_probs"].sum() + 0.3 * found["entropy"].sum()).backward()
        gradients.append((found, [p.grad.clone() for p in model.parameters()]))
    (theirs, grads), (ours, own_grads) = gradients
    for name in ("log_probs", "entropy"):
        torch.testing.assert_close(ours[name], theirs[name], atol=1e-5, rtol=1e-5)
    for a, b in zip(own_grads, grads):
        torch.testing.assert_close(a, b, atol=1e-4, rtol=1e-4)


def test_positions_that_predict_a_response(engine):
    row, column = engine.predicting(torch.tensor(PROMPTS), torch.tensor(LENGTHS))
    assert row.tolist() == [0] * 2 + [1] * 2 + [2] * 6
    assert column.tolist() == [4, 5, 1, 2, 2, 3, 4, 5, 6, 7]


def test_the_gap_is_the_difference_of_probabilities_on_trained_tokens(engine, model):
    batch = micro_batch()
    batch["response_mask"] = nested(
        [torch.tensor([1, 1]), torch.tensor([0, 0]), torch.ones(6, dtype=torch.long)]
    )
    padded, found = outputs(engine.CpuFsdpEngine, model, batch)
    own = torch.cat([padded["log_probs"][0, :2], padded["log_probs"][2, :6]]).detach()
    sums = {k: m.aggregate() for k, m in engine.seen(found, batch).items()}
    assert sums["seen/tokens"] == 8
    for name, gap in (("probs", own.exp() - torch.tensor(-1.0).exp()), ("logprob", own + 1.0)):
        assert sums[f"seen/{name}"] == pytest.approx(float(gap.abs().sum()), rel=1e-5)
        assert sums[f"seen/{name}_max"] == pytest.approx(float(gap.abs().max()), rel=1e-5)
    entropy = torch.cat([padded["entropy"][0, :2], padded["entropy"][2, :6]]).sum()
    assert sums["seen/entropy"] == pytest.approx(float(entropy), rel=1e-5)


def test_bug_25_a_server_that_kept_old_weights_sets_off_the_alarm_and_one_in_step_does_not(engine, model):
    """Public bug 25: the engine woke with old weights, and sampled and recomputed log-probabilities lay 0.2
    apart.
    """
    import copy

    from envace.engine.step_metrics import gap_metrics

    batch, moved = micro_batch(), copy.deepcopy(model)
    padded, _ = outputs(engine.CpuFsdpEngine, model, batch)
    sampled = [padded["log_probs"][k, : n - p] for k, (n, p) in enumerate(zip(LENGTHS, PROMPTS))]
    batch["old_log_probs"] = nested([s.detach() for s in sampled])
    with torch.no_grad():
        for weight in moved.parameters():
            weight += 0.05 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(1))
    alarms = {}
    for name, trained in (("in step", model), ("old", moved)):
        _, found = outputs(engine.CpuFsdpEngine, trained, batch)
        sums = {k.removeprefix("seen/"): m.aggregate() for k, m in engine.seen(found, batch).items()}
        alarms[name] = gap_metrics(sums, 0.05)
    assert alarms["in step"]["gap/alarms"] == 0.0 and alarms["in step"]["gap/logprob_max"] < 1e-5
    assert alarms["old"]["gap/alarms"] == 1.0 and alarms["old"]["gap/logprob_mean"] > 0.05


# --- micro-batches
# --------------------------------------------------------------------------------------------


def test_rows_of_like_length_lie_together_within_the_budget_of_padded_tokens():
    from envace.engine.microbatches import by_length

    lengths = [3, 10, 4, 9, 5]
    assert by_length(lengths, range(5), budget=20) == [[1, 3], [4, 2, 0]]
    assert by_length(lengths, range(5), budget=1) == [[1], [3], [4], [2], [0]]


def test_rows_that_move_nothing_are_left_out_unless_nothing_else_is_there():
    from envace.engine.microbatches import plan

    assert plan([5, 5, 5], [True, False, True], [0, 1, 2], budget=10) == [[0, 2]]
    assert plan([5, 5, 5], [False] * 3, [0, 1, 2], budget=10) == [[0]]


def test_a_row_goes_with_one_that_begins_with_it_and_begins_no_other():
    from envace.engine.microbatches import carriers, plan

    rows = [[1, 2], [1, 2, 3, 4], [1], [1, 9], [1, 2, 3], [1, 9]]
    assert carriers(rows) == [1, 1, 1, 3, 1, 3]
    assert carriers(rows, [True, False, True, True, True, False]) == [4, 1, 4, 3, 4, 5]
    parts = plan([len(r) for r in rows], [True] * 6, carriers(rows), budget=4)
    assert parts == [[1, 0, 2, 4], [3, 5]]


@given(st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=6), min_size=1, max_size=12), st.data())
def test_every_moving_row_is_computed_once_and_beside_a_row_that_holds_it(rows, data):
    from envace.engine.microbatches import carriers, plan

    moved = data.draw(st.lists(st.booleans(), min_size=len(rows), max_size=len(rows)))
    carrier = carriers(rows, moved)
    assert all(rows[c][: len(r)] == r for r, c in zip(rows, carrier))
    wanted = data.draw(st.integers(1, len(rows)))
    parts = plan([len(r) for r in rows], moved, carrier, budget=8, agree=lambda n: max(n, wanted))
    placed = sorted(i for part in parts for i in part if moved[i])
    assert placed == [i for i, m in enumerate(moved) if m] and all(parts) and len(parts) >= wanted
    for part in parts:
        own = carriers([rows[i] for i in part])
        heads = [rows[part[k]] for k in sorted(set(own))]
        assert len(heads) == 1 or len(heads) * max(map(len, heads)) <= 8


def test_every_rank_gets_the_agreed_number_and_every_moving_row_exactly_once():
    from envace.engine.microbatches import plan

    parts = plan([8, 7, 6, 5, 4], [True, True, True, False, False], range(5), budget=100, agree=lambda n: 4)
    assert len(parts) == 4 and all(parts)
    assert sorted(i for part in parts for i in part if i < 3) == [0, 1, 2]


def test_verls_engine_uses_our_micro_batches_and_restores_the_order(engine):
    from verl.utils import tensordict_utils as tu
    from verl.workers.engine.fsdp import transformer_impl

    batch = micro_batch()
    batch["advantages"] = nested([torch.ones(2), torch.zeros(2), torch.ones(6)])
    tu.assign_non_tensor(batch, max_token_len_per_gpu=9)
    cut, parts = transformer_impl.prepare_micro_batches(data=batch, dp_group=None, same_micro_num_in_dp=True)
    assert parts == [[2, 0], [1]] and [len(c) for c in cut] == [2, 1]
    tu.assign_non_tensor(batch, skip_unmoved=True)
    assert transformer_impl.prepare_micro_batches(data=batch, dp_group=None)[1] == [[2, 0]]


def test_cores_are_shared_and_never_none():
    from envace.engine.cpu_platform import cores

    assert cores() == len(os.sched_getaffinity(0)) and cores(10_000) == 1
