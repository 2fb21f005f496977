"""Batched sampling: same words whoever shares the batch, log-probabilities of the distribution
sampled from."""

import asyncio
import math
import random

import pytest
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from envace.policy.batcher import GATHER, AsyncBatcher
from envace.policy.generator import BatchGenerator, GenerationJob, sample
from envace.types import FinishReason, Sampling

END = 3


def tiny_model(seed: int = 0, context: int = 128) -> Qwen3ForCausalLM:
    torch.manual_seed(seed)
    return Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=40,
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=1,
            head_dim=16,
            max_position_embeddings=context,
            tie_word_embeddings=True,
            initializer_range=0.3,
        )
    )


def jobs(n: int, **settings) -> list[GenerationJob]:
    prompts = [tuple(4 + (i * 7 + k) % 36 for k in range(3 + 5 * i)) for i in range(n)]
    return [
        GenerationJob(prompt_ids=p, sampling=Sampling(max_tokens=12, seed=i, **settings))
        for i, p in enumerate(prompts)
    ]


def test_results_do_not_depend_on_batch_neighbours():
    together = BatchGenerator(tiny_model(), [END], max_batch=8, seed=1).generate(jobs(6))
    alone = [BatchGenerator(tiny_model(), [END], max_batch=8, seed=2).generate([j])[0] for j in jobs(6)]
    in_pairs = BatchGenerator(tiny_model(), [END], max_batch=2, seed=3).generate(jobs(6))
    assert (
        [r.output_ids for r in together] == [r.output_ids for r in alone] == [r.output_ids for r in in_pairs]
    )


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_logprobs_equal_a_full_forward_pass(temperature):
    model = tiny_model()
    for job, result in zip(
        jobs(4), BatchGenerator(model, [END], seed=0).generate(jobs(4, temperature=temperature))
    ):
        ids = torch.tensor([job.prompt_ids + result.output_ids])
        with torch.no_grad():
            logp = (model(input_ids=ids).logits[0].float() / temperature).log_softmax(-1)
        expected = [logp[len(job.prompt_ids) - 1 + k, t].item() for k, t in enumerate(result.output_ids)]
        assert result.logprobs == pytest.approx(expected, abs=1e-4)


def test_an_end_token_stops_and_is_part_of_the_output():
    results = BatchGenerator(tiny_model(), range(0, 40, 2), seed=0).generate(jobs(6))
    stopped = [r for r in results if r.finish is FinishReason.STOP]
    assert stopped
    for r in results:
        assert (r.output_ids[-1] % 2 == 0) == (r.finish is FinishReason.STOP)
        assert all(t % 2 for t in r.output_ids[:-1])


def test_greedy_takes_the_likeliest_token_and_needs_no_seed():
    job = GenerationJob(prompt_ids=(5, 6, 7), sampling=Sampling(temperature=0.0, max_tokens=5))
    first, second = BatchGenerator(tiny_model(), [END], seed=0).generate([job, job])
    assert first.output_ids == second.output_ids
    with torch.no_grad():
        assert (
            first.output_ids[0]
            == tiny_model()(input_ids=torch.tensor([[5, 6, 7]])).logits[0, -1].argmax().item()
        )


def test_a_full_context_and_a_spent_budget_write_nothing():
    generator = BatchGenerator(tiny_model(context=16), [END], seed=0)
    full = GenerationJob(prompt_ids=tuple([5] * 16), sampling=Sampling(max_tokens=4))
    nearly = GenerationJob(prompt_ids=tuple([5] * 14), sampling=Sampling(max_tokens=4, seed=1))
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
    generator = BatchGenerator(tiny_model(0), [END], seed=0)
    before = generator.generate(jobs(3))
    generator.load_state_dict(tiny_model(1).state_dict(), version=5)
    after = generator.generate(jobs(3))
    assert [r.weight_version for r in before] == [None] * 3 and [r.weight_version for r in after] == [5] * 3
    fresh = BatchGenerator(tiny_model(1), [END], seed=0).generate(jobs(3))
    assert [r.output_ids for r in after] == [r.output_ids for r in fresh]


def test_weights_that_do_not_fit_are_refused():
    with pytest.raises(RuntimeError, match="do not fit"):
        BatchGenerator(tiny_model(), [END]).load_state_dict({"nonsense": torch.zeros(1)})


def test_tied_weights_may_be_left_out():
    state = {k: v for k, v in tiny_model(1).state_dict().items() if k != "lm_head.weight"}
    BatchGenerator(tiny_model(0), [END]).load_state_dict(state, version=1)


def test_concurrent_submits_are_written_beside_each_other():
    generator = BatchGenerator(tiny_model(), [END], seed=0)

    async def go():
        batcher = AsyncBatcher(generator)
        return await asyncio.gather(*(batcher.submit(j) for j in jobs(6)))

    together = asyncio.run(go())
    assert generator.counters["steps"] < sum(len(r.output_ids) for r in together) / 2
    assert [r.output_ids for r in together] == [r.output_ids for r in generator.generate(jobs(6))]


def conversation(rng, turns=4):
    """A prompt that grows by what was written and by something new, as an episode's does."""
    prompt, results = tuple(rng.choices(range(4, 40), k=rng.randint(1, 20))), []
    for _ in range(turns):
        job = GenerationJob(
            prompt_ids=prompt, sampling=Sampling(max_tokens=rng.randint(1, 8), seed=rng.randrange(99))
        )
        result = yield job
        results.append((job, result))
        prompt += result.output_ids + tuple(rng.choices(range(4, 40), k=rng.randint(0, 9)))
    return results


@pytest.mark.parametrize("max_batch", [1, 3, 8])
def test_shared_prefixes_and_places_taken_over_change_no_word(max_batch):
    """Twelve conversations, several of them twins, in places for few: each as if it were alone."""
    generator = BatchGenerator(tiny_model(context=256), [END], max_batch=max_batch, seed=0)
    talks = [conversation(random.Random(seed)) for seed in (0, 0, 1, 2, 2, 2, 3, 4, 5, 6, 7, 7)]
    asked = [(talk, next(talk)) for talk in talks]
    everything = []
    while asked:
        results = generator.generate([job for _, job in asked])
        after = []
        for (talk, _), result in zip(asked, results):
            try:
                after.append((talk, talk.send(result)))
            except StopIteration as end:
                everything += end.value
        asked = after
    assert len(everything) == 48
    assert generator.counters["tokens_read"] < 0.8 * generator.counters["tokens_in"]
    model = tiny_model(context=256)
    for job, result in everything:
        alone = BatchGenerator(model, [END], max_batch=1).generate([job])[0]
        assert result.output_ids == alone.output_ids and result.finish == alone.finish
        assert result.logprobs == pytest.approx(alone.logprobs, abs=1e-4)


def test_jobs_may_join_while_others_are_written():
    generator = BatchGenerator(tiny_model(), [END], max_batch=4, seed=0)
    plan, results, asked = dict(enumerate(jobs(9))), {}, []

    def take(n):
        asked.append(n)
        now = [k for k in plan if k not in asked_for][: min(n, 1 + len(asked) % 2)]
        asked_for.update(now)
        return [(k, plan[k]) for k in now]

    asked_for: set[int] = set()
    generator.serve(take, results.__setitem__)
    assert [results[k].output_ids for k in plan] == [r.output_ids for r in generator.generate(jobs(9))]
    assert max(asked) == 4 and 0 in asked


def test_a_kept_prefix_is_forgotten_with_its_weights():
    generator = BatchGenerator(tiny_model(0), [END], seed=0)
    job = jobs(6)[5]
    generator.generate([job])
    generator.load_state_dict(tiny_model(1).state_dict(), version=1)
    again, fresh = generator.generate([job])[0], BatchGenerator(tiny_model(1), [END]).generate([job])[0]
    assert again.output_ids == fresh.output_ids and again.logprobs == pytest.approx(fresh.logprobs, abs=1e-5)


def test_a_model_with_windows_of_attention_is_refused():
    model = tiny_model()
    model.config.layer_types = ["full_attention", "sliding_attention"]
    with pytest.raises(ValueError, match="sliding_attention"):
        BatchGenerator(model, [END])


def test_one_batcher_serves_several_event_loops():
    batcher = AsyncBatcher(BatchGenerator(tiny_model(), [END], seed=0))
    job = jobs(1)[0]
    assert asyncio.run(batcher.submit(job)).output_ids == asyncio.run(batcher.submit(job)).output_ids


def test_a_dead_step_fails_every_open_job_at_once_and_later_ones_start_afresh():
    generator = BatchGenerator(tiny_model(), [END], max_batch=2, seed=0)
    read, calls = generator._slots.read, []

    def broken(*given):
        calls.append(given)
        if len(calls) == 3:
            raise RuntimeError("out of memory")
        return read(*given)

    generator._slots.read = broken

    async def go():
        batcher = AsyncBatcher(generator)
        failed = await asyncio.gather(*(batcher.submit(j) for j in jobs(5)), return_exceptions=True)
        return failed, await batcher.submit(jobs(1)[0])

    failed, later = asyncio.run(asyncio.wait_for(go(), 5))
    assert [str(e) for e in failed] == ["out of memory"] * 5
    assert later.output_ids == BatchGenerator(tiny_model(), [END]).generate(jobs(1))[0].output_ids


def test_a_cancelled_waiter_does_not_hold_up_the_others():
    async def go():
        batcher = AsyncBatcher(BatchGenerator(tiny_model(), [END], seed=0))
        tasks = [asyncio.create_task(batcher.submit(j)) for j in jobs(3)]
        await asyncio.sleep(0)
        tasks[1].cancel()
        return await asyncio.gather(*tasks, return_exceptions=True)

    first, second, third = asyncio.run(asyncio.wait_for(go(), 5))
    assert isinstance(second, asyncio.CancelledError) and first.output_ids and third.output_ids


def test_a_lone_newcomer_waits_a_few_steps_for_company_but_never_when_nothing_is_written():
    batcher = AsyncBatcher(BatchGenerator(tiny_model(), [END], max_batch=8, seed=0))

    async def go():
        batcher._waiting.append((asyncio.get_running_loop().create_future(), jobs(1)[0]))
        alone = batcher._take(8)
        batcher._waiting.append((asyncio.get_running_loop().create_future(), jobs(1)[0]))
        beside_six = [len(batcher._take(2)) for _ in range(GATHER)]
        batcher._waiting += [(asyncio.get_running_loop().create_future(), job) for job in jobs(2)]
        return len(alone), beside_six, len(batcher._take(4))

    assert asyncio.run(go()) == (1, [0] * (GATHER - 1) + [1], 2)
