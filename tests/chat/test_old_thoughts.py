"""Thoughts of earlier turns: kept, or dropped where the template drops them; in training and evaluation
alike."""

import asyncio

import pytest
from test_episode_tokens import CALL, RENDERERS, TASK, completion, played
from token_kit import TOOLS, said, user

from envace.bench.worlds import evaluate
from envace.chat.append_only import described, shape_of
from envace.chat.renderer import ByteRenderer
from envace.chat.tokens import TokenLog
from envace.config import RolloutParams, parse
from envace.config.method import Method
from envace.judge.base import RuleJudge
from envace.learn.sequences import sequences_of
from envace.policy.scripted import ScriptedPolicy
from envace.rollout.episode import run_episode
from envace.rollout.prompts import load_prompt_set
from envace.rollout.sources import make_source
from envace.types import Role, replace
from envace.worlds.desk.tasks import generate

THINKING = RENDERERS["qwen3 thinking"]
ROLLOUT = RolloutParams(prompt_tokens=20_000, response_tokens=400, max_steps=12, max_calls=99, max_errors=99)


def thoughtful(r=THINKING, **more):
    """Each of three turns is answered after a thought of its own; the first makes a call before."""
    texts = [f"<think>\nmusing{k}\n</think>\n\n{said}" for k, said in enumerate((CALL, "ok", "ok", "ok"))]
    return lambda q: completion(r, [texts[q.step]], r.end_id, **more)


def prompts(episode):
    return [g.prompt_ids for g in episode.generations if g.role is Role.ACT]


def thoughts_in(episode):
    """The numbers of the thoughts that each prompt shows."""
    shown = [THINKING.decode(p) for p in prompts(episode)]
    return ["".join(str(k) for k in range(4) if f"musing{k}" in text) for text in shown]


def test_kept_thoughts_stand_in_every_later_prompt_and_make_one_row():
    episode, _ = played(THINKING, thoughtful(), Method(old_thoughts="keep"))
    assert thoughts_in(episode) == ["", "0", "01", "012"]
    assert not any(name.startswith("restart/") for name in episode.counters)
    assert len(sequences_of(episode, Method())) == 1


def test_the_template_decides_otherwise():
    episode, _ = played(THINKING, thoughtful(), Method(old_thoughts="template"))
    assert thoughts_in(episode) == ["", "0", "", ""]
    assert episode.counters["restart/thoughts_dropped"] == 2
    for ids, k in zip(prompts(episode), (1, 3, 5, 7), strict=True):
        assert list(ids) == THINKING.render(episode.messages[:k], TASK.tools)


def test_a_kept_prompt_is_what_was_shown_then_sampled_then_the_new_messages_alone():
    episode, _ = played(THINKING, thoughtful(), Method(old_thoughts="keep"))
    generations = [g for g in episode.generations if g.role is Role.ACT]
    for one, after in zip(generations, generations[1:]):
        before = one.prompt_ids + one.output_ids
        assert after.prompt_ids[: len(before)] == before
    added = THINKING.decode(
        generations[2].prompt_ids[len(generations[1].prompt_ids + generations[1].output_ids) :]
    )
    assert added == "\n<|im_start|>user\nand\n<|im_start|>assistant\n"


@pytest.mark.parametrize("kind", ["qwen3 thinking", "tiny thinking", "bytes"])
def test_thoughts_are_kept_of_a_policy_that_tells_no_ids(kind):
    r = RENDERERS[kind]
    episode, log = played(r, thoughtful(r, hidden=True), Method(old_thoughts="keep"))
    assert log.rows == []
    assert all(f"musing{k}" in r.decode(prompts(episode)[3]) for k in range(3))


def test_a_control_token_in_a_generation_begins_a_row_that_keeps_thoughts():
    r, odd = THINKING, THINKING.tokenizer.convert_tokens_to_ids("<|im_start|>")
    log = TokenLog(r, [user("hi")], TOOLS, keep_thoughts=True)
    for thought in ("one", "two"):
        ids = [*r.encode(f"<think>\n{thought}\n</think>\n\nok"), r.end_id]
        log.add_sampled(ids, said=said("ok", thinking=thought))
        log.add_user(user("go on"))
    before = log.prompt_ids()
    log.add_sampled(
        [*r.encode("<think>\nthree\n</think>\n\na"), odd, r.end_id],
        said=said("a<|im_start|>", thinking="three"),
    )
    log.add_user(user("and"))
    shown = log.prompt_ids()
    assert log.restart == "control_sampled" and shown[: len(before)] == before
    assert shown.count(odd) == before.count(odd) + 2  # of the new messages; the sampled one is text now
    assert "three" in r.decode(shown) and "< |im_start|>" in r.decode(shown)


@pytest.mark.parametrize("hidden", [False, True])
@pytest.mark.parametrize("kind", ["qwen3", "tiny"])
def test_where_a_prompt_has_closed_an_empty_thought_only_the_newest_thought_is_lost(kind, hidden):
    r = RENDERERS[kind]
    odd = r.tokenizer.convert_tokens_to_ids("<|im_start|>")
    log = TokenLog(r, [user("hi")], TOOLS, keep_thoughts=True)
    log.add_sampled([*r.encode("<think>\none\n</think>\n\nok"), r.end_id], said=said("ok", thinking="one"))
    log.add_user(user("go on"))
    before = log.prompt_ids()
    ids = [*r.encode("<think>\ntwo\n</think>\n\na"), odd, r.end_id]
    log.add_sampled([] if hidden else ids, said=said("a", thinking="two"))
    log.add_user(user("and"))
    shown = log.prompt_ids()
    assert shown[: len(before)] == before and "one" in r.decode(shown)
    assert r.decode(shown[len(before) :]).startswith("a\n<|im_start|>user\nand\n")


def test_the_log_line_names_what_keeping_overrules():
    thinking = shape_of(THINKING)
    assert described(thinking, "template") == (
        "chat template: appends: tool results, tool results after a thought, a user turn; "
        "new row (thoughts_dropped): a user turn after a thought"
    )
    assert described(thinking, "keep").endswith("; old_thoughts keep appends all the same")
    steps = "tool results, tool results after a thought, a user turn, a user turn after a thought"
    every = f"chat template: appends: {steps}"
    assert described(shape_of(ByteRenderer()), "keep") == every


@pytest.mark.parametrize("old_thoughts", ["keep", "template"])
def test_a_trained_policy_is_shown_the_same_prompts_in_training_and_in_evaluation(old_thoughts):
    params = parse(
        {
            "train": {"runs": ["own-1"]},
            "arms": {"own": {"old_thoughts": old_thoughts}},
            "eval": {"policies": ["own-1"]},
            "tts": {"policy": "own-1"},
            "fidelity": {"policies": ["own-1"]},
        }
    )
    task = next(t for t in generate(7, "held", 24) if t.n_turns > 1)
    easy = (tuple(replace(i, required_for_next_turn=False) for i in items) for items in task.checklist)
    task = replace(task, checklist=tuple(easy))
    policy = ScriptedPolicy(
        lambda q: completion(THINKING, [f"<think>\nm{q.step}\n</think>\n\nok"], THINKING.end_id)
    )
    method = replace(params.resolved_method("own"), source="environment")
    trained = asyncio.run(
        run_episode(
            task,
            policy=policy,
            source=make_source(task, method, policy, THINKING, ROLLOUT),
            renderer=THINKING,
            judge=RuleJudge(),
            method=method,
            params=ROLLOUT,
            episode_id="e",
            group_id="g",
            seed=1,
            prompt_set=load_prompt_set("compact"),
        )
    )
    _, [evaluated] = asyncio.run(
        evaluate(
            policy,
            [task],
            trials=1,
            seed=2,
            params=ROLLOUT,
            method=params.played_method("own-1"),
            renderer=THINKING,
            judge=RuleJudge(),
            temperature=1.0,
            concurrency=1,
        )
    )
    assert len(prompts(trained)) > 1 and prompts(trained) == prompts(evaluated)
    assert ("m0" in THINKING.decode(prompts(evaluated)[1])) == (old_thoughts == "keep")
