"""The same ids as verl's continuous-token builder where that can be right, and Qwen3's real vocabulary."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_tokens_properties import steps
from token_kit import TOOLS, play, renderer, result, said, user, written

from benchmarks import qwen3
from envace.chat.probes import probe_dialogues
from envace.chat.renderer import HFRenderer, as_dicts

OPEN = [user("hi")]


@pytest.fixture(scope="module")
def builder():
    """verl's for Qwen3, on the bundled vocabulary with Qwen3's template."""
    verl = pytest.importorskip("verl.utils.tokenizer.continuous_token")
    r = renderer("qwen3 thinking")
    return verl.QwenContinuousTokenBuilder(r.tokenizer, chat_template_kwargs={"enable_thinking": True})


def peers_prompts(builder, r, chat):
    """The stream before every assistant message, as verl's agent loop grows it."""
    dicts = [r._entry(d) for d in as_dicts(chat)]  # with control tokens broken, which verl leaves to others
    n = next(k for k, m in enumerate(chat) if m.role == "assistant")
    stream = builder.build_initial_tokens(dicts[:n], tools=TOOLS)
    prompts = [stream]
    while n < len(chat):
        stream = builder.merge_assistant_tokens(stream, written(r, chat[n])).token_ids
        end = next((k for k in range(n + 1, len(chat)) if chat[k].role == "assistant"), len(chat))
        if end > n + 1:
            stream = builder.merge_context_tokens(dicts[: n + 1], dicts[:end], stream, tools=TOOLS).token_ids
            prompts.append(stream)
        n = end
    return prompts


def our_prompts(r, chat):
    prompts = []
    play(r, chat, check=lambda log, _: prompts.append(list(log.prompt_ids())))
    return prompts


@given(st.lists(steps(), max_size=3))
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_tool_turns_give_the_ids_of_verls_builder(builder, rounds):
    r = renderer("qwen3 thinking")
    chat = [*OPEN, *[message for step in rounds for message in step], said("done")]
    assert our_prompts(r, chat) == peers_prompts(builder, r, chat)


def test_verls_builder_keeps_thoughts_that_a_full_render_drops(builder):
    r = renderer("qwen3 thinking")
    chat = [*OPEN, said("so", thinking="musing"), user("and"), said("bye")]
    ours, peers = our_prompts(r, chat)[-1], peers_prompts(builder, r, chat)[-1]
    assert ours == r.render(chat[:-1], TOOLS)
    assert "musing" in r.decode(peers) and "musing" not in r.decode(ours)


@pytest.mark.parametrize("thinking", [True, False])
def test_qwen3s_own_vocabulary(thinking):
    files = qwen3.vocabulary_file(), qwen3.template_file()
    if None in files:
        pytest.skip(
            "the packages dashscope and trl, which carry Qwen3's vocabulary and template, are not here"
        )
    tokenizer = qwen3.qwen3_tokenizer(*files)
    named = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<tool_call>", "<think>", "</think>")
    assert tokenizer.convert_tokens_to_ids(list(named)) == [151643, 151644, 151645, 151657, 151667, 151668]
    assert tokenizer.encode("Hello world") == [9707, 1879]
    r = HFRenderer(tokenizer, thinking)

    def check(log, so_far):
        assert list(log.prompt_ids()) == r.render(so_far, TOOLS)

    for chat in [*probe_dialogues(), [*OPEN, said("", "get"), result("…\n\n 漢字 '\"}"), said("ok")]]:
        play(r, chat, check=check)
