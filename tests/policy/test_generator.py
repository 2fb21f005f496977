"""Batched sampling: same words whoever shares the batch, log-probabilities of the distribution sampled from."""

import asyncio
import math

import pytest
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from envace.policy.generator import AsyncBatcher, BatchGenerator, Job, sample
from envace.types import FinishReason, Sampling

END = 3


def tiny_model(seed: int = 0, context: int = 128) -> Qwen3ForCausalLM:
    torch.manual_seed(seed)
    return Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=40, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
            num_key_value_heads=1, head_dim=16, max_position_embeddings=context, tie_word_embeddings=True,
            initializer_range=0.3,
        )
    )  # fmt: skip


def jobs(n: int, **settings) -> list[Job]:
    prompts = [tuple(4 + (i * 7 + k) % 36 for k in range(3 + 5 * i)) for i in range(n)]
    return [
        Job(prompt_ids=p, sampling=Sampling(max_tokens=12, seed=i, **settings)) for i, p in enumerate(prompts)
    ]


def test_results_do_not_depend_on_batch_neighbours():
    together = BatchGenerator(tiny_model(), [END], 0, max_batch=8, seed=1).generate(jobs(6))
    alone = [BatchGenerator(tiny_model(), [END], 0, max_batch=8, seed=2).generate([j])[0] for j in jobs(6)]
    in_pairs = BatchGenerator(tiny_model(), [END], 0, max_batch=2, seed=3).generate(jobs(6))
    assert (
        [r.output_ids for r in together] == [r.output_ids for r in alone] == [r.output_ids for r in in_pairs]
    )


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_logprobs_equal_a_full_forward_pass(temperature):
    model = tiny_model()
    for job, result in zip(
        jobs(4), BatchGenerator(model, [END], 0, seed=0).generate(jobs(4, temperature=temperature))
    ):
        ids = torch.tensor([job.prompt_ids + result.output_ids])
        with torch.no_grad():
            logp = (model(input_ids=ids).logits[0].float() / temperature).log_softmax(-1)
        expected = [logp[len(job.prompt_ids) - 1 + k, t].item() for k, t in enumerate(result.output_ids)]
        assert result.logprobs == pytest.approx(expected, abs=1e-4)


def test_an_end_token_stops_and_is_part_of_the_output():
    results = BatchGenerator(tiny_model(), range(0, 40, 2), 0, seed=0).generate(jobs(6))
    stopped = [r for r in results if r.finish is FinishReason.STOP]
    assert stopped
    for r in results:
        assert (r.output_ids[-1] % 2 == 0) == (r.finish is FinishReason.STOP)
        assert all(t % 2 for t in r.output_ids[:-1])


def test_greedy_takes_the_likeliest_token_and_needs_no_seed():
    job = Job(prompt_ids=(5, 6, 7), sampling=Sampling(temperature=0.0, max_tokens=5))
    first, second = BatchGenerator(tiny_model(), [END], 0, seed=0).generate([job, job])
    assert first.output_ids == second.output_ids
    with torch.no_grad():
        assert (
            first.output_ids[0]
            == tiny_model()(input_ids=torch.tensor([[5, 6, 7]])).logits[0, -1].argmax().item()
        )


def test_a_full_context_and_a_spent_budget_write_nothing():
    generator = BatchGenerator(tiny_model(context=16), [END], 0, seed=0)
    full = Job(prompt_ids=tuple([5] * 16), sampling=Sampling(max_tokens=4))
    nearly = Job(prompt_ids=tuple([5] * 14), sampling=Sampling(max_tokens=4, seed=1))
    none, two = generator.generate([full, nearly])
    assert (none.output_ids, none.finish) == ((), FinishReason.LENGTH)
    assert len(two.output_ids) <= 2


def test_nucleus_and_top_k_renormalise_by_hand():
    logits = torch.tensor([[0.5, 0.3, 0.15, 0.05]]).log()
    tokens, logp = sample(logits.clone(), [Sampling(top_p=0.6)], torch.tensor([0.7], dtype=torch.float64))
    assert tokens == [1] and logp[0] == pytest.approx(math.log(0.3 / 0.8), abs=1e-5)
    tokens, logp = sample(logits.clone(), [Sampling(top_k=3)], torch.tensor([0.99], dtype=torch.float64))
    assert tokens == [2] and logp[0] == pytest.approx(math.log(0.15 / 0.95), abs=1e-5)
    tokens, logp = sample(logits.clone(), [Sampling(top_p=0.01)], torch.tensor([0.9], dtype=torch.float64))
    assert tokens == [0] and logp[0] == pytest.approx(0.0, abs=1e-6)


def test_frequencies_follow_the_distribution():
    p = torch.tensor([0.5, 0.3, 0.15, 0.05])
    n = 4000
    uniforms = torch.rand(n, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    tokens, _ = sample(p.log().repeat(n, 1), [Sampling()] * n, uniforms)
    assert torch.bincount(torch.tensor(tokens), minlength=4).div(n).tolist() == pytest.approx(
        p.tolist(), abs=0.03
    )


def test_new_weights_answer_later_jobs_and_carry_their_version():
    generator = BatchGenerator(tiny_model(0), [END], 0, seed=0)
    before = generator.generate(jobs(3))
    generator.load_state_dict(tiny_model(1).state_dict(), version=5)
    after = generator.generate(jobs(3))
    assert [r.weight_version for r in before] == [None] * 3 and [r.weight_version for r in after] == [5] * 3
    fresh = BatchGenerator(tiny_model(1), [END], 0, seed=0).generate(jobs(3))
    assert [r.output_ids for r in after] == [r.output_ids for r in fresh]


def test_weights_that_do_not_fit_are_refused():
    with pytest.raises(RuntimeError, match="do not fit"):
        BatchGenerator(tiny_model(), [END], 0).load_state_dict({"nonsense": torch.zeros(1)})


def test_tied_weights_may_be_left_out():
    state = {k: v for k, v in tiny_model(1).state_dict().items() if k != "lm_head.weight"}
    BatchGenerator(tiny_model(0), [END], 0).load_state_dict(state, version=1)


def test_concurrent_submits_share_a_batch():
    generator = BatchGenerator(tiny_model(), [END], 0, seed=0)

    async def go():
        batcher = AsyncBatcher(generator)
        return await asyncio.gather(*(batcher.submit(j) for j in jobs(6)))

    assert [r.output_ids for r in asyncio.run(go())] == [r.output_ids for r in generator.generate(jobs(6))]
    assert generator.counters["batches"] == 2


def test_one_batcher_serves_several_event_loops():
    batcher = AsyncBatcher(BatchGenerator(tiny_model(), [END], 0, seed=0))
    job = jobs(1)[0]
    assert asyncio.run(batcher.submit(job)).output_ids == asyncio.run(batcher.submit(job)).output_ids


class Broken:
    """A generator whose first batch dies."""

    max_batch = 2
    calls = 0

    def generate(self, batch):
        self.calls += 1
        if self.calls == 1:
            raise RuntimeError("out of memory")
        return [None for _ in batch]


def test_a_dead_batch_fails_every_waiting_job_at_once_and_later_ones_start_afresh():
    async def go():
        batcher = AsyncBatcher(Broken())
        failed = await asyncio.gather(*(batcher.submit(j) for j in jobs(5)), return_exceptions=True)
        return failed, await batcher.submit(jobs(1)[0])

    failed, later = asyncio.run(asyncio.wait_for(go(), 5))
    assert [str(e) for e in failed] == ["out of memory"] * 5 and later is None


def test_a_cancelled_waiter_does_not_hold_up_the_others():
    async def go():
        batcher = AsyncBatcher(BatchGenerator(tiny_model(), [END], 0, seed=0))
        tasks = [asyncio.create_task(batcher.submit(j)) for j in jobs(3)]
        await asyncio.sleep(0)
        tasks[1].cancel()
        return await asyncio.gather(*tasks, return_exceptions=True)

    first, second, third = asyncio.run(asyncio.wait_for(go(), 5))
    assert isinstance(second, asyncio.CancelledError) and first.output_ids and third.output_ids
