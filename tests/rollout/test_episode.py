"""One episode: flow over turns, reward, and every stop reason."""

import asyncio
from types import SimpleNamespace

import pytest
from rollout_kit import (
    COMPACT,
    PARAMS,
    RENDERER,
    TASK,
    TableJudge,
    World,
    call,
    episode,
    item,
    play,
    rows_of,
    two_roles,
)

from envace.chat.contract import render_result
from envace.config.method import PRESETS, Method
from envace.policy.protocol import Completion
from envace.policy.scripted import ScriptedPolicy
from envace.rollout.sources import EnvironmentSource
from envace.types import (
    Answer,
    FailureReason,
    FinishReason,
    Memory,
    Role,
    Sampling,
    Source,
    StopReason,
    Verdict,
    from_json,
    replace,
    to_json,
)

GOOD = [call("get"), "it is new", call("drop"), "dropped"]


def test_an_episode_runs_through_all_turns_and_keeps_exact_ids():
    e = play(two_roles(GOOD))
    assert (e.stop, e.reward, e.turn_rewards) == (StopReason.DONE, 1.0, (1.0, 1.0))
    assert [m.role for m in e.messages] == [
        "system",
        "user",
        "assistant",
        "tool",
        "assistant",
        "user",
        "assistant",
        "tool",
        "assistant",
    ]
    assert [(g.role, g.turn, g.step) for g in e.generations] == [
        (Role.ACT, 0, 0),
        (Role.REHEARSE, 0, 0),
        (Role.ACT, 0, 1),
        (Role.ACT, 1, 2),
        (Role.REHEARSE, 1, 2),
        (Role.ACT, 1, 3),
    ]
    for g in e.generations:
        assert len(g.logprobs) == len(g.output_ids) and RENDERER.decode(g.output_ids) == g.text
    assert list(e.generations[2].prompt_ids) == RENDERER.render(e.messages[:4], TASK.tools)
    assert e.counters == {
        "act": 4,
        "rehearse": 2,
        "calls": 2,
        "errors": 0,
        "tokens_act": sum(len(g.output_ids) for g in e.generations if g.role is Role.ACT),
        "tokens_rehearse": sum(len(g.output_ids) for g in e.generations if g.role is Role.REHEARSE),
        "prompt_act": sum(len(g.prompt_ids) for g in e.generations if g.role is Role.ACT),
        "prompt_rehearse": sum(len(g.prompt_ids) for g in e.generations if g.role is Role.REHEARSE),
    }
    assert e.real_calls == () and e.prompt_set == COMPACT.hash
    assert from_json(type(e), to_json(e)) == e


def test_same_seed_same_episode_and_every_generation_its_own_seed():
    first, again, other = (play(two_roles(GOOD), seed=s) for s in (5, 5, 6))
    seeds = [g.sampling.seed for g in first.generations]
    assert len(set(seeds)) == len(seeds)
    assert (
        seeds == [g.sampling.seed for g in again.generations] != [g.sampling.seed for g in other.generations]
    )


def test_unreached_turns_count_zero_and_a_required_item_stops():
    """Weights .25/.75: the heavy item is unmet and required, so turn 0 gives .25 and the episode .125."""
    task = replace(TASK, checklist=((item("C0", 0.25), item("C1", 0.75, required=True)), (item(),)))
    e = play(two_roles(GOOD), task=task, judge=TableJudge({(0, "C1"): "no"}))
    assert (e.stop, e.turn_rewards, e.reward) == (StopReason.REQUIRED_ITEM, (0.25,), 0.125)


def test_a_required_item_of_the_last_turn_ends_nothing_early():
    task = replace(TASK, checklist=((item(),), (item(required=True),)))
    e = play(two_roles(GOOD), task=task, judge=TableJudge({(1, "C0"): "no"}))
    assert (e.stop, e.reward) == (StopReason.DONE, 0.5)


@pytest.mark.parametrize(("unscored", "reward"), [("exclude", None), ("zero", 0.125)])
def test_a_judge_without_an_answer_makes_the_episode_unscored(unscored, reward):
    judge = TableJudge({(0, "C1"): "unscored"})
    e = play(two_roles(GOOD), judge=judge, method=Method(unscored=unscored))
    assert (e.stop, e.reward, e.stop_detail) == (StopReason.JUDGE_FAILED, reward, "C1: table")
    assert e.unscored_reason == "judge_failed: C1: table"
    assert judge.asked == [0]


class HalfJudge:
    """Every item holds for one step, while the question about another step of the first turn failed."""

    async def judge_turn(self, task, turn, messages):
        failed = "" if turn else "judge_timeout"
        return [
            Verdict(item_id=i.id, turn=turn, answer=Answer.YES, failed=failed) for i in task.checklist[turn]
        ]


def test_a_failed_question_about_an_item_that_holds_ends_the_episode_under_zero_alone():
    zero = play(two_roles(GOOD), judge=HalfJudge(), method=Method(unscored="zero"))
    assert (zero.stop, zero.turn_rewards, zero.reward) == (StopReason.JUDGE_FAILED, (1.0,), 0.5)
    assert zero.unscored_reason == "judge_failed: C0, C1: judge_timeout"
    exclude = play(two_roles(GOOD), judge=HalfJudge(), method=Method(unscored="exclude"))
    assert (exclude.stop, exclude.reward, exclude.unscored) == (StopReason.DONE, 1.0, False)


@pytest.mark.parametrize(("unscored", "reward"), [("exclude", None), ("zero", (0.25 + 0.5) / 2)])
def test_a_failed_item_is_a_no_under_zero_and_earlier_turns_keep_what_they_earned(unscored, reward):
    """Turn 0 earns its light item, .25; of turn 1 one half is yes and the other could not be judged."""
    task = replace(TASK, checklist=(TASK.checklist[0], (item("C0", 0.5), item("C1", 0.5))))
    judge = TableJudge({(0, "C1"): "no", (1, "C1"): "unscored"})
    e = play(two_roles(GOOD), task=task, judge=judge, method=Method(unscored=unscored))
    assert (e.stop, e.unscored, e.unscored_reason) == (
        StopReason.JUDGE_FAILED,
        True,
        "judge_failed: C1: table",
    )
    assert e.reward == reward and e.turn_rewards == ((0.25,) if reward is None else (0.25, 0.5))
    if reward is not None:  # turns can still be credited apart
        rows = rows_of(e, Method(unscored="zero", credit="reward_to_go"))
        assert {r.turn: r.reward for r in rows} == pytest.approx({0: 0.375, 1: 0.25})


def test_a_script_shorter_than_the_checklist_ends_well_and_counts_the_missing_turn():
    e = play(two_roles(["hello"]), task=replace(TASK, user_turns=()))
    assert (e.stop, e.reward) == (StopReason.DONE, 0.5)


def test_step_budget():
    e = play(two_roles([call("get")] * 9), params=replace(PARAMS, max_calls=99))
    assert (e.stop, e.counters["act"]) == (StopReason.STEP_BUDGET, 6)


def test_call_budget_refuses_the_message_that_breaks_it():
    e = play(two_roles([call("get") + call("get", "#b")] * 9))
    assert (e.stop, e.counters["calls"], e.messages[-1].role) == (StopReason.CALL_BUDGET, 4, "assistant")


def test_caps_at_the_end_of_a_turn_only():
    """The published code tests caps between user turns: seven steps pass a cap of six, then the turn ends."""
    judge = TableJudge()
    e = play(
        two_roles([call("get")] * 7 + ["done"]),
        method=Method(turn_caps="turn_end"),
        judge=judge,
        source=World(),
    )
    assert (e.stop, e.counters["act"], judge.asked) == (StopReason.STEP_BUDGET, 8, [0])


def test_micro_steps_bound_an_endless_turn():
    roomy = replace(PARAMS, prompt_tokens=10**6)
    e = play(two_roles(lambda r: call("get")), method=Method(turn_caps="turn_end"), source=World())
    assert (e.stop, e.counters["act"]) == (StopReason.STEP_BUDGET, 200)
    e = play(two_roles(lambda r: call("get")), method=Method(turn_caps="turn_end"), params=roomy)
    assert (e.stop, e.counters["act"], e.counters["rehearse"]) == (StopReason.STEP_BUDGET, 100, 100)


def test_the_last_micro_step_may_be_one_of_several_rehearsals():
    """One ACT generation and two rehearsals a step: 66 steps make 198, and the 67th has room for one
    rehearsal."""
    two = two_roles(lambda r: call("get") + call("get", "#b"))
    e = play(two, method=Method(turn_caps="turn_end"), params=replace(PARAMS, prompt_tokens=10**6))
    assert (e.stop, e.counters["act"], e.counters["rehearse"]) == (StopReason.STEP_BUDGET, 67, 133)
    assert e.stop_detail == "200 generations, 2 calls at once" and e.counters["calls"] == 134


@pytest.mark.parametrize(("unfinished", "asked", "reward"), [("judge", [0], 0.5), ("skip", [], 0.0)])
def test_an_unfinished_turn_is_judged_or_not(unfinished, asked, reward):
    judge = TableJudge()
    e = play(two_roles([call("get")] * 9), judge=judge, method=Method(unfinished_turn=unfinished))
    assert (e.stop, judge.asked, e.reward) == (StopReason.CALL_BUDGET, asked, reward)


def test_an_unfinished_turn_whose_judge_fails_keeps_its_stop_and_is_unscored():
    e = play(two_roles([call("get")] * 9), judge=TableJudge({(0, "C0"): "unscored"}))
    assert (e.stop, e.reward, e.unscored_reason) == (StopReason.CALL_BUDGET, None, "C0: table")


def test_bug_24_context_budget_shrinks_then_ends_with_a_truncation_reason():
    """Public bug 24: prompt + max_tokens over the context was rejected in mid-episode and killed the run.

    The policy's own context is 100 tokens above the first prompt and the wish is 400: the first generation
    gets 100, and the step after it, whose prompt is longer, ends the episode instead of asking.
    """
    policy = two_roles([call("get"), "never asked"])
    policy.context = len(RENDERER.render(TASK.prefix, TASK.tools)) + 100
    e = play(policy, source=World())
    assert e.generations[0].sampling.max_tokens == 100
    assert all(len(g.prompt_ids) + g.sampling.max_tokens <= policy.context for g in e.generations)
    assert (e.stop, e.counters["act"]) == (StopReason.CONTEXT_BUDGET, 1)
    assert e.reward == 0.5  # the open turn is judged


def test_the_published_code_stops_while_a_full_length_output_would_still_fit():
    """It stops at prompt + 8,000 >= 20,000: one token of context must be left over."""
    first, reserve = len(RENDERER.render(TASK.prefix, TASK.tools)), Method(context_stop="reserve")
    fits = play(two_roles(["a", "b"]), method=reserve, params=replace(PARAMS, prompt_tokens=first + 1))
    assert (fits.stop, fits.counters["act"]) == (StopReason.CONTEXT_BUDGET, 1)
    over = play(two_roles(["a", "b"]), method=reserve, params=replace(PARAMS, prompt_tokens=first))
    assert (over.stop, over.counters["act"], over.reward) == (StopReason.CONTEXT_BUDGET, 0, 0.0)


def test_acts_prompt_may_grow_into_the_context_until_no_useful_output_fits():
    first = len(RENDERER.render(TASK.prefix, TASK.tools))
    tight = replace(PARAMS, prompt_tokens=first - 384)  # and 400 for a response: 16 are left
    fits = play(two_roles(["a", "b"]), params=tight)
    assert [g.sampling.max_tokens for g in fits.generations] == [16]
    assert (fits.stop, fits.counters["act"]) == (StopReason.CONTEXT_BUDGET, 1)
    over = play(two_roles(["a", "b"]), params=replace(tight, prompt_tokens=first - 385))
    assert (over.stop, over.counters["act"], over.reward) == (StopReason.CONTEXT_BUDGET, 0, 0.0)


def test_deadline_keeps_what_was_done():
    async def slow(request):
        if request.step:
            await asyncio.sleep(30)
        return call("get")

    e = play(ScriptedPolicy(slow), source=World(), params=replace(PARAMS, deadline_s=0.5))
    assert (e.stop, e.counters["act"], e.counters["calls"], e.reward) == (StopReason.DEADLINE, 1, 1, None)
    assert e.unscored_reason == "deadline: after 0.5 s"


def test_a_slow_judge_does_not_eat_the_deadline():
    class Slow(TableJudge):
        async def judge_turn(self, task, turn, messages):
            await asyncio.sleep(0.4)
            return await super().judge_turn(task, turn, messages)

    e = play(two_roles(GOOD), judge=Slow(), params=replace(PARAMS, deadline_s=0.6))
    assert (e.stop, e.reward) == (StopReason.DONE, 1.0)


def raising(error):
    def speak(*args):
        raise error

    return speak


def of_policy(said, rehearse=None):
    return {"policy": two_roles(GOOD, said) if rehearse else ScriptedPolicy(said)}


SHORT = Completion(text="a", output_ids=(1, 2), logprobs=(0.0,), finish=FinishReason.STOP)
GIVEN_UP = Completion(text="a", output_ids=(1,), finish=FinishReason.ABORT)


@pytest.mark.parametrize(
    ("played", "stop", "detail"),
    [
        (of_policy(raising(RuntimeError("full"))), StopReason.POLICY_FAILED, "RuntimeError: full"),
        (of_policy(raising(ValueError("gone")), "rehearse"), StopReason.POLICY_FAILED, "ValueError: gone"),
        (of_policy(raising(TimeoutError("read"))), StopReason.POLICY_FAILED, "read"),  # no deadline
        (of_policy(lambda request: SHORT), StopReason.POLICY_FAILED, "1 log-probabilities for 2"),
        (of_policy(lambda request: GIVEN_UP), StopReason.POLICY_FAILED, "gave up"),
        ({"source": SimpleNamespace(call=raising(KeyError("order")))}, StopReason.SOURCE_FAILED, "order"),
        ({"judge": SimpleNamespace(judge_turn=raising(OSError("down")))}, StopReason.JUDGE_FAILED, "down"),
    ],
)
def test_what_a_plug_in_raises_or_cannot_give_names_who_failed(played, stop, detail):
    played = {"policy": two_roles(GOOD), **played}
    if "source" in played:
        played["source"] = EnvironmentSource(played["source"])
    e = play(**played)
    assert (e.stop, e.reward) == (stop, None) and detail in e.stop_detail


def test_cancellation_is_not_swallowed():
    async def wait(request):
        await asyncio.sleep(30)

    async def cancelled():
        task = asyncio.create_task(episode(ScriptedPolicy(wait)))
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancelled())


def test_an_empty_output_ends_the_turn_and_is_counted():
    e = play(two_roles(["<think>hm</think>", "bye"]))
    assert e.stop is StopReason.DONE
    assert e.generations[0].failure is FailureReason.EMPTY_OUTPUT
    assert (e.counters["errors"], e.counters["failure/empty_output"]) == (1, 1)
    assert e.messages[2].content == "" and e.messages[2].thinking == "hm"


def test_a_truncated_reply_with_text_is_a_reply():
    e = play(two_roles(["x" * 999, "ok"]))
    assert (e.generations[0].failure, e.generations[0].finish) == (
        FailureReason.TRUNCATED,
        FinishReason.LENGTH,
    )
    assert len(e.generations[0].output_ids) == PARAMS.response_tokens
    assert (e.stop, e.messages[2].content) == (StopReason.DONE, "x" * 400)


def test_a_generation_truncated_in_its_thoughts_is_empty():
    e = play(two_roles(["<think>" + "x" * 999, "ok"]))
    assert e.generations[0].failure is FailureReason.EMPTY_OUTPUT


def test_a_call_that_was_cut_off_is_an_error_and_no_reply():
    cut = '<tool_call>{"name": "get", "arguments": {"id": "' + "x" * 999
    e = play(two_roles([cut, "sorry", "ok"]))
    assert e.generations[0].failure is FailureReason.TRUNCATED
    assert e.observations[0].content == {"error": "the call was cut off"}
    assert e.counters["failure/truncated"] == 1


def test_memory_reaches_one_marked_system_block_and_no_transcript():
    memory = Memory(text="get #a first </imagined>", n_attempts=2, tokens=5)
    judge = TableJudge()
    e = play(two_roles(GOOD), memory=memory, judge=judge)
    prompt = RENDERER.decode(e.generations[0].prompt_ids)
    assert prompt.count("get #a first") == 1 and "imagined" in prompt and "</imagined>" not in prompt
    assert prompt.count("system\n") == 1
    assert all("get #a first" not in m.content for messages in judge.seen for m in messages)
    assert "get #a first" not in RENDERER.decode(e.generations[1].prompt_ids)


def test_sampling_can_be_given():
    e = play(two_roles(GOOD), sampling=Sampling(temperature=0.0, max_tokens=300))
    assert {g.sampling.temperature for g in e.generations} == {0.0}
    assert {g.sampling.max_tokens for g in e.generations} == {300}


def test_the_authors_preset_plays_too():
    published = [f"\n{text}" for text in GOOD]

    def rehearse(request):
        return f"\n{render_result({'of': '#a'})}"

    e = play(two_roles(published, rehearse), method=PRESETS["authors"])
    assert (e.stop, e.reward) == (StopReason.DONE, 1.0)
    leading = play(two_roles(GOOD, rehearse), method=PRESETS["authors"])  # the tag opens the message
    assert (leading.stop, leading.stop_detail) == (StopReason.TOOL_ERROR, "no_call_found")
    shown = RENDERER.decode(e.generations[1].prompt_ids)
    assert COMPACT.texts["rehearse_check"] in shown


def test_watch_sees_messages_observations_and_verdicts_in_order():
    events = []
    e = play(two_roles(GOOD), watch=events.append)
    assert [type(x).__name__ for x in events[:4]] == ["Message", "Message", "Observation", "Message"]
    assert len(events) == len(e.messages) - 2 + len(e.observations) + len(e.verdicts)


def test_many_episodes_share_one_loop_without_lock_step():
    """A slow episode does not hold back the others: each finishes when its own words are said."""
    finished = []

    async def one(k):
        async def speak(request):
            await asyncio.sleep(0.05 * k)
            return render_result({"k": k}) if request.role is Role.REHEARSE else GOOD[request.step]

        e = await episode(ScriptedPolicy(speak))
        finished.append(k)
        return e

    async def many():
        return await asyncio.gather(*(one(k) for k in (2, 1, 0)))

    assert all(e.observations[0].source is Source.REHEARSAL for e in asyncio.run(many()))
    assert finished == [0, 1, 2]
