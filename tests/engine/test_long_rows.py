"""Public bug 9: rows of several turns, longer than one generation may be, on their way to the update."""

import asyncio
import types

import pytest
import torch
from step_kit import generation, group_of

from envace.config.method import Method
from envace.learn.sequences import batch_rows, sequences_of


def long_episode(step=1):
    """Five turns of four tokens with two of an observation between: a merged row of 28 tokens."""
    prompt, generations = (1, 2), []
    for turn in range(5):
        output = tuple(10 * turn + k for k in range(3, 7))
        generations.append(generation(prompt, output, turn=turn))
        prompt = prompt + output + (90, 91)
    return group_of([(generations, 0.0), (generations, 1.0)], step)


def put_by_verl(monkeypatch, outputs):
    """The fields that verl's own agent loop puts into its queue."""
    from verl.trainer.ppo.v1 import agent_loop_tq

    kept = {}

    async def put(keys, fields, tags, partition_id):
        kept.update(keys=keys, fields=fields, tags=tags)

    async def nothing(*args, **kwargs):
        pass

    worker = types.SimpleNamespace(
        _compute_score=nothing,
        _compute_teacher_logprobs=nothing,
        _compute_multi_modal_inputs=lambda output, ids: {},
        _compute_position_ids=lambda ids, mask, inputs: mask.cumsum(-1) - 1,
        rollout_config=types.SimpleNamespace(response_length=8, prompt_length=8),
    )
    monkeypatch.setattr(agent_loop_tq, "tq", types.SimpleNamespace(async_kv_batch_put=put))
    actor = agent_loop_tq.AgentLoopWorkerTQ
    plain = actor.__ray_metadata__.modified_class if hasattr(actor, "__ray_metadata__") else actor
    asyncio.run(
        plain._agent_loop_postprocess(worker, outputs, False, uid="s1p0", session_id=0, global_steps=1)
    )
    return kept


def test_bug_9_a_merged_row_longer_than_one_response_may_be_loses_no_token(monkeypatch):
    """Public bug 9: a merged row was cut to the cap of one turn, and its later turns were lost without a
    word.

    `data.max_response_length` (8 here) caps a generation; the row of 28 tokens is bounded by the context
    alone.
    """
    import envace.engine.cpu_platform  # noqa: F401
    from envace.engine.agent_loop import outputs_of

    episode = long_episode()[1]
    outputs = outputs_of(episode, Method(rows="merged"), 1, fallback_id=0)
    kept = put_by_verl(monkeypatch, outputs)
    [mask], [ids] = kept["fields"]["response_mask"].unbind(), kept["fields"]["responses"].unbind()
    assert len(ids) == len(mask) == kept["tags"][0]["response_len"] == 28
    assert mask.tolist() == ([1] * 4 + [0] * 2) * 4 + [1] * 4
    sampled = [i for g in episode.generations for i in g.output_ids]
    assert ids[mask.bool()].tolist() == sampled


def test_bug_9_every_turn_of_a_long_row_gets_its_advantage(step_of):
    values, metrics = step_of(Method(rows="merged"), padding=0, episodes=long_episode)
    assert values[1] == ([0.5] * 4 + [0.0] * 2) * 4 + [0.5] * 4
    assert (metrics["act/tokens"], metrics["train/sequences"]) == (40.0, 2.0)


def test_bug_9_a_row_that_was_cut_on_the_way_stops_the_step():
    [sequence] = sequences_of(long_episode()[1], Method(rows="merged"))
    whole = torch.tensor(sequence.loss_mask).numpy()
    assert sum(r.trained for r in batch_rows([sequence.rows], [whole], [True])) == 20
    with pytest.raises(ValueError, match="a row of s1p0-1 ends at token 10, but its sequence has 8"):
        batch_rows([sequence.rows], [whole[:8]], [True])
    assert batch_rows([sequence.rows], [whole[:1]], [False])  # padding carries nothing
