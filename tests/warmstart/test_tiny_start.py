"""Making the start policy: a whole Hugging Face folder with a card, the same from the same parameters."""

import asyncio

import pytest

from envace.config import Params, PolicyParams, SFTParams, TinyParams
from envace.errors import EnvironmentUnready
from envace.policy.card import read_card, weights_hash
from envace.policy.local import LocalPolicy
from envace.policy.protocol import GenerationRequest
from envace.types import FinishReason, Message, Role, Sampling
from envace.warmstart.corpus import WarmSample
from envace.warmstart.training import build_start, continue_start, curriculum, draws, schedule

PARAMS = Params(
    policy=PolicyParams(
        tiny=TinyParams(hidden=32, layers=1, heads=2, vocab=480, updates=3, batch=4, tasks=16, threads=1)
    ),
    sft=SFTParams(updates=2, lr=1e-3),
)


@pytest.fixture(scope="module")
def start(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models") / "start"
    reports = []
    build_start(PARAMS, folder, reports.append)
    return folder, reports


def request(policy, **changes):
    messages = (Message(role="user", content="cancel order kite"),)
    sampling = Sampling(**{"max_tokens": 8, "seed": 5, **changes})
    return GenerationRequest(
        role=Role.ACT,
        messages=messages,
        prompt_ids=tuple(policy.renderer.render(messages)),
        sampling=sampling,
        episode_id="e",
        task_id="t",
        turn=0,
        step=0,
    )


def test_the_folder_is_whole_and_its_card_true(start):
    folder, reports = start
    ref = read_card(folder)
    assert (ref.kind, ref.name, ref.hash) == ("tiny", "start", weights_hash(folder))
    assert {"model.safetensors", "config.json", "generation_config.json", "tokenizer.json", "card.json"} <= {
        p.name for p in folder.iterdir()
    }
    assert [p.name for p in folder.parent.iterdir()] == ["start"]
    assert reports[-1]["step"] == reports[-1]["steps"] == 3 and reports[-1]["loss"] > 0


def test_the_same_parameters_make_the_same_weights(start, tmp_path):
    assert build_start(PARAMS, tmp_path / "again").hash == read_card(start[0]).hash


def test_supervised_training_goes_on_from_the_start_and_each_seed_goes_its_own_way(start, tmp_path):
    refs = {
        name: continue_start(PARAMS, start[0], tmp_path / name, seed)
        for name, seed in (("a", 1), ("again", 1), ("b", 2))
    }
    assert refs["a"].hash == refs["again"].hash != refs["b"].hash
    assert (refs["a"].kind, refs["a"].step) == ("trained", 2) and read_card(start[0]).hash != refs["a"].hash
    assert (tmp_path / "a" / "tokenizer.json").read_bytes() == (start[0] / "tokenizer.json").read_bytes()


def test_a_local_policy_answers_and_decodes_its_own_ids(start):
    policy = LocalPolicy(start[0])
    first = asyncio.run(policy.generate(request(policy)))
    again = asyncio.run(LocalPolicy(start[0]).generate(request(policy)))
    assert first == again and 0 < len(first.output_ids) <= 8
    assert len(first.logprobs) == len(first.output_ids)
    assert first.finish in (FinishReason.STOP, FinishReason.LENGTH)
    assert first.text == policy.renderer.decode(first.output_ids)


def test_a_folder_without_a_model_is_named(tmp_path):
    with pytest.raises(EnvironmentUnready, match="holds no model"):
        LocalPolicy(tmp_path)


def test_the_learning_rate_rises_and_falls():
    rates = [schedule(k, 100) for k in range(100)]
    assert rates[0] < rates[5] < max(rates) <= 1.0
    assert rates[-1] == pytest.approx(0.1, abs=0.01) and rates.index(max(rates)) == 9


def test_batches_are_cut_by_length_and_counted():
    lengths = [3, 50, 7, 20, 90, 11, 33, 60]
    samples = [
        WarmSample(ids=(1,) * n, answer=(True,) * n, role=Role.ACT, episode_id=str(n)) for n in lengths
    ]
    batches = list(draws(samples, 4, 11, 0))
    assert len(batches) == 11 and all(len(b) == 4 for b in batches)
    assert batches == list(draws(samples, 4, 11, 0))
    spread = [max(len(s.ids) for s in b) - min(len(s.ids) for s in b) for b in batches]
    assert sum(spread) / len(spread) < 30


def test_copying_comes_first_and_everything_after():
    copied = WarmSample(ids=(1, 2), answer=(False, True), role=Role.REHEARSE, episode_id="warm/a")
    private = WarmSample(ids=(1, 3), answer=(False, True), role=Role.REHEARSE, episode_id="b")
    act = WarmSample(ids=(1, 1), answer=(False, True), role=Role.ACT, episode_id="warm/c")
    batches = list(curriculum([copied, private, act], 4, 20, 0))
    assert len(batches) == 20 and all(s is copied for b in batches[:7] for s in b)
    assert {s.episode_id for b in batches[7:] for s in b} == {"warm/a", "b", "warm/c"}
    assert len(list(curriculum([private, act], 4, 5, 0))) == 5
