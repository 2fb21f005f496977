"""The same ids as verl's continuous-token builder where that can be right, and Qwen3's real vocabulary."""

import unicodedata
from functools import cache

import pytest
import qwen3_kit as qwen3
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_tokens_properties import steps
from token_kit import TOOLS, play, renderer, result, said, user, written

from envace.chat.probes import probe_dialogues
from envace.chat.renderer import HFRenderer, as_dicts

OPEN = [user("hi")]


@cache
def qwen3_tokenizer():
    """Qwen3's own, which the package dashscope of the extra `dev` brings."""
    return qwen3.qwen3_tokenizer()


@pytest.fixture(scope="module", params=["bundled vocabulary", "Qwen3's vocabulary"])
def peer(request):
    """A renderer with Qwen3's template, and verl's builder of the same."""
    verl = pytest.importorskip("verl.utils.tokenizer.continuous_token")
    bundled = request.param == "bundled vocabulary"
    r = renderer("qwen3 thinking") if bundled else HFRenderer(qwen3_tokenizer(), True)
    return r, verl.QwenContinuousTokenBuilder(r.tokenizer, chat_template_kwargs={"enable_thinking": True})


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
def test_tool_turns_give_the_ids_of_verls_builder(peer, rounds):
    r, builder = peer
    chat = [*OPEN, *[message for step in rounds for message in step], said("done")]
    assert our_prompts(r, chat) == peers_prompts(builder, r, chat)


def test_verls_builder_keeps_thoughts_that_a_full_render_drops(peer):
    r, builder = peer
    chat = [*OPEN, said("so", thinking="musing"), user("and"), said("bye")]
    ours, peers = our_prompts(r, chat)[-1], peers_prompts(builder, r, chat)[-1]
    assert ours == r.render(chat[:-1], TOOLS)
    assert "musing" in r.decode(peers) and "musing" not in r.decode(ours)


@pytest.mark.parametrize("thinking", [True, False])
def test_qwen3s_own_vocabulary(thinking):
    tokenizer = qwen3_tokenizer()
    named = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<tool_call>", "<think>", "</think>")
    assert tokenizer.convert_tokens_to_ids(list(named)) == [151643, 151644, 151645, 151657, 151667, 151668]
    assert tokenizer.encode("Hello world") == [9707, 1879]
    r = HFRenderer(tokenizer, thinking)

    def check(log, so_far):
        assert list(log.prompt_ids()) == r.render(so_far, TOOLS)

    for chat in [*probe_dialogues(), [*OPEN, said("", "get"), result("…\n\n 漢字 '\"}"), said("ok")]]:
        play(r, chat, check=check)


@given(st.text(st.characters(exclude_categories=["Cs", "Cn"]), max_size=80))
@settings(max_examples=100, deadline=None)
def test_qwen3s_vocabulary_encodes_as_its_own_library_does(text):
    text = unicodedata.normalize("NFC", text)
    assert qwen3_tokenizer().encode(text) == tiktoken_encoding().encode(text, allowed_special="all")
    assert qwen3_tokenizer().decode(qwen3_tokenizer().encode(text)) == text


@cache
def tiktoken_encoding():
    import tiktoken
    from tiktoken.load import load_tiktoken_bpe

    ranks = load_tiktoken_bpe(str(qwen3.vocabulary_file()))
    marks = {token: len(ranks) + k for k, token in enumerate((*qwen3.SPECIAL, *qwen3.MARKS))}
    return tiktoken.Encoding("qwen3", pat_str=qwen3.SPLIT, mergeable_ranks=ranks, special_tokens=marks)
