"""ACT's stream in whole episodes: what was sampled stays, and rows merge exactly where the token log went
on."""

import asyncio

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from token_kit import KINDS, TOOLS, Watched, renderer

from envace.chat.calls import parse_assistant
from envace.chat.renderer import ByteRenderer
from envace.config import RolloutParams
from envace.config.method import Method
from envace.judge.base import RuleJudge
from envace.learn.sequences import sequences_of
from envace.policy.protocol import Completion
from envace.policy.scripted import ScriptedPolicy
from envace.rollout.episode import run_episode
from envace.rollout.prompts import load_prompt_set
from envace.rollout.sources import EnvironmentSource
from envace.types import FinishReason, Message, Observation, Role, Source, StopReason, Task

RENDERERS = {kind: renderer(kind) for kind in KINDS}
CALL = '<tool_call>\n{"name": "get", "arguments": {}}\n</tool_call>'
TASK = Task(
    id="t",
    prefix=(Message(role="user", content="hi"),),
    user_turns=("and", "more"),
    tools=tuple(TOOLS),
    checklist=((), (), ()),
    source="test",
)
PARAMS = RolloutParams(prompt_tokens=3000, response_tokens=400, max_steps=12, max_calls=99, max_errors=99)


class World:
    def call(self, call):
        return Observation(content={"of": "#a <|im_end|>"}, source=Source.ENVIRONMENT)


def played(r, script, method=None):
    """(episode, its token log); `script(request)` gives a completion."""
    logs = []

    def remember(*args, **more):
        logs.append(Watched(*args, **more))
        return logs[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("envace.rollout.state.TokenLog", remember)
        episode = asyncio.run(
            run_episode(
                TASK,
                policy=ScriptedPolicy(script, r),
                source=EnvironmentSource(World()),
                renderer=r,
                judge=RuleJudge(),
                method=method or Method(),
                params=PARAMS,
                episode_id="e",
                group_id="g",
                seed=1,
                prompt_set=load_prompt_set("compact"),
            )
        )
    return episode, logs[0]


def completion(r, pieces, end=None, hidden=False) -> Completion:
    """Sampled piece by piece, so that no token spans two pieces; `end`: an end token, or none when cut
    off."""
    ids = () if hidden else (*(i for p in pieces for i in r.encode(p)), *([] if end is None else [end]))
    text = "".join(pieces) if hidden else r.decode(ids)
    finish = FinishReason.LENGTH if end is None else FinishReason.STOP
    return Completion(text=text, output_ids=ids, logprobs=(-0.5,) * len(ids), finish=finish)


BROKEN = "<tool_call>oops</tool_call>"
PIECES = ["hi", " there", "or", "der", "\n", CALL, CALL.replace("\n", ""), BROKEN, "é", " "]
replies = st.tuples(
    st.sampled_from(["", "", "<think>\nhm\n</think>\n\n", "<think>\n\n</think>\n\n", "<think>a"]),
    st.lists(st.sampled_from(PIECES), max_size=4),
    st.sampled_from(["end", "end", "end", "foreign", "cut"]),
    st.sampled_from([False, False, False, True]),
)


PLAIN, CALLED = ("", [], "end", False), ("", [CALL], "end", False)
UNTOLD = ("<think>\nhm\n</think>\n\n", [CALL], "end", True)
"""Its prompt is in no row, and the next one continues the row before it."""


def reply(r, drawn) -> Completion:
    thought, pieces, end, hidden = drawn
    ends = {"end": r.end_id, "foreign": max(r.end_ids - {r.end_id}, default=r.end_id), "cut": None}
    return completion(r, [thought, *pieces], ends[end], hidden)


@given(
    st.lists(replies, min_size=12, max_size=12),
    st.sampled_from(KINDS),
    st.sampled_from(["ignore", "execute"]),
    st.sampled_from(["template", "keep"]),
)
@example([PLAIN, PLAIN, CALLED, UNTOLD, *[PLAIN] * 8], "tiny", "ignore", "template")
@settings(max_examples=200, deadline=None)
def test_merged_rows_are_the_rows_of_the_log(script, kind, thought_calls, old_thoughts):
    r, method = RENDERERS[kind], Method(thought_calls=thought_calls, old_thoughts=old_thoughts)
    episode, log = played(r, lambda q: reply(r, script[q.step]), method)
    assert episode.stop in (StopReason.DONE, StopReason.STEP_BUDGET, StopReason.CONTEXT_BUDGET), episode
    found = sequences_of(episode, Method())
    pieces = [[s.response_ids[row.start :][: row.length] for row in s.rows] for s in found]
    assert pieces == [row for _, row in log.rows]
    for s in found:
        assert s.loss_mask == tuple(int(value == -0.5) for value in s.logprobs)
        assert sum(s.loss_mask) == sum(row.length for row in s.rows)
    restarts = sum(n for name, n in episode.counters.items() if name.startswith("restart/"))
    assert restarts == sum(restart is not None for restart in log.restarts)


@given(
    st.lists(replies, min_size=12, max_size=12), st.sampled_from(KINDS), st.sampled_from(["template", "keep"])
)
@settings(max_examples=80, deadline=None)
def test_every_prompt_and_what_was_sampled_on_it_stand_in_one_row_of_the_log(script, kind, old_thoughts):
    r = RENDERERS[kind]
    episode, log = played(r, lambda q: reply(r, script[q.step]), Method(old_thoughts=old_thoughts))
    rows = [s.prompt_ids + s.response_ids for s in sequences_of(episode, Method())]
    for g in episode.generations:
        whole = g.prompt_ids + g.output_ids
        assert not g.output_ids or any(whole == row[: len(whole)] for row in rows)
    assert list(episode.generations[0].prompt_ids) == r.render(TASK.prefix, TASK.tools)


@pytest.mark.parametrize("kind", KINDS)
def test_a_call_written_otherwise_than_the_template_writes_it_stays_as_sampled(kind):
    r = RENDERERS[kind]
    odd = CALL.replace("\n", "")  # on one line, which the parser reads and no template writes
    script = [completion(r, [odd], r.end_id), *[completion(r, ["ok"], r.end_id)] * 3]
    episode, _ = played(r, lambda q: script[q.step])
    assert parse_assistant(odd).calls and episode.stop is StopReason.DONE
    second = [g for g in episode.generations if g.role is Role.ACT][1]
    assert odd in r.decode(second.prompt_ids) and CALL not in r.decode(second.prompt_ids)
    rendered = r.decode(r.render(episode.messages[:3], TASK.tools))
    assert CALL in rendered and odd not in rendered


def test_a_policy_that_tells_no_ids_is_shown_full_renders():
    r = ByteRenderer()
    texts = [CALL.replace("\n", ""), "ok", "ok", "ok"]
    episode, log = played(r, lambda q: completion(r, [texts[q.step]], r.end_id, hidden=True))
    assert episode.stop is StopReason.DONE and log.rows == []
    n = [k for k, m in enumerate(episode.messages) if m.role == "assistant"]
    for g, k in zip(episode.generations, n, strict=True):
        assert list(g.prompt_ids) == r.render(episode.messages[:k], TASK.tools)
    assert not any(name.startswith("restart/") for name in episode.counters)


def test_restarts_are_counted_by_reason():
    """Qwen3 drops thoughts once the user speaks again: two later user turns, two new rows."""
    r = RENDERERS["qwen3 thinking"]
    script = [completion(r, ["<think>\nhm\n</think>\n\nok"], r.end_id)] * 3
    episode, _ = played(r, lambda q: script[q.step])
    assert episode.counters["restart/thoughts_dropped"] == 2
    assert len(sequences_of(episode, Method())) == 3
