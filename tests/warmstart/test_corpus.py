"""The warm-start corpus: prompts are the run's own, one stream an episode, slips are seen and
never learnt."""

import random

import pytest

from envace.chat.renderer import HFRenderer
from envace.config import Params, PolicyParams, RolloutParams, TinyParams, TTSParams
from envace.types import Role
from envace.warmstart.corpus import collect, faulty_call, texts_of
from envace.warmstart.tokenizer import END, build_tokenizer
from envace.worlds.desk.tasks import generate

PARAMS = Params(
    rollout=RolloutParams(max_steps=10, max_calls=10),
    policy=PolicyParams(tiny=TinyParams()),
    tts=TTSParams(memory_tokens=96, feedback_tokens=64),
)
TASKS = generate(7, "warm", 40)


@pytest.fixture(scope="module")
def tokenizer():
    return build_tokenizer(texts_of(TASKS, PARAMS, 1), vocab=640, context=PARAMS.rollout.context)


@pytest.fixture(scope="module")
def samples(tokenizer):
    return collect(TASKS, HFRenderer(tokenizer, False), tokenizer.convert_tokens_to_ids(END), PARAMS, 1)


def answers(tokenizer, sample):
    """The learnt stretches of a sample as texts."""
    out, run = [], []
    for token, learnt in zip((*sample.ids, 0), (*sample.answer, False)):
        if learnt:
            run.append(token)
        elif run:
            out.append(tokenizer.decode(run))
            run = []
    return out


def test_every_kind_of_generation_is_in_the_corpus(tokenizer, samples):
    said = [text for s in samples for text in answers(tokenizer, s)]
    assert {s.role for s in samples} == {Role.ACT, Role.REHEARSE}
    for opening in ("<tool_call>\n{", "<execution_result>\n{", '{"success": ', '{"plan": [', "order #"):
        assert any(text.startswith(opening) for text in said), opening
    assert any('{"error": "' in text for text in said)
    assert any("imagined tries" in tokenizer.decode(list(s.ids)) for s in samples)


def test_every_learnt_answer_closes_its_turn(tokenizer, samples):
    assert all(text.endswith(END) for s in samples for text in answers(tokenizer, s))


def test_an_episode_is_one_act_sequence_across_steps_and_turns(samples):
    played = [s.episode_id for s in samples if s.role is Role.ACT and s.episode_id.startswith("warm/")]
    assert sorted(played) == sorted(f"warm/{t.id}" for t in TASKS)


def test_slips_are_seen_but_not_learnt(tokenizer, samples):
    said = [text for s in samples if s.role is Role.ACT for text in answers(tokenizer, s)]
    calls = [text for text in said if text.startswith("<tool_call>")]
    assert calls and not any('_id": "' in c and '_id": "#' not in c for c in calls)
    assert any('{"error": "bad id"}' in tokenizer.decode(list(s.ids)) for s in samples if s.role is Role.ACT)


def test_sequences_fit_the_context_and_first_prompts_are_short(samples):
    assert max(len(s.ids) for s in samples) <= PARAMS.rollout.context
    firsts = [
        s.answer.index(True) for s in samples if s.role is Role.ACT and s.episode_id.startswith("warm/")
    ]
    assert max(firsts) <= 400


def test_the_same_seed_gives_the_same_corpus(tokenizer, samples):
    again = collect(TASKS, HFRenderer(tokenizer, False), tokenizer.convert_tokens_to_ids(END), PARAMS, 1)
    assert again == samples


def test_faulty_calls_are_well_formed_and_varied():
    task = TASKS[0]
    made = [faulty_call(random.Random(i), task) for i in range(40)]
    takes = {t["function"]["name"]: set(t["function"]["parameters"]["properties"]) for t in task.tools}
    assert all(set(c.arguments) == takes[c.name] for c in made)
    assert len({str(c) for c in made}) > 5
