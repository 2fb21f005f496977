"""The chat template: Qwen3's shape, tools kept terse, one token stream across the turns of an episode."""

import pytest
from test_tokenizer import TOOL, texts

from envace.warmstart.tokenizer import build_tokenizer

CALL = {"type": "function", "function": {"name": "get_order", "arguments": {"order_id": "#kite"}}}
CALL_TEXT = '<tool_call>\n{"name": "get_order", "arguments": {"order_id": "#kite"}}\n</tool_call>'
SILENT = "<think>\n\n</think>\n\n"


@pytest.fixture(scope="module")
def tokenizer():
    return build_tokenizer(texts(), vocab=420, context=256)


def render(tokenizer, messages, **kw):
    return tokenizer.apply_chat_template(messages, tokenize=False, **{"add_generation_prompt": True, **kw})


def test_system_text_and_tools_share_one_block(tokenizer):
    chat = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "hi"}]
    text = render(tokenizer, chat, tools=[TOOL], enable_thinking=True)
    head, _, rest = text.partition("<|im_end|>\n")
    assert head.startswith('<|im_start|>system\nBe kind.\n<tools>\n{"name": "get_order", "description"')
    assert head.endswith("}\n</tools>")
    assert rest == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"


def test_no_system_and_no_tools_give_no_system_block(tokenizer):
    assert render(tokenizer, [{"role": "user", "content": "hi"}]).startswith("<|im_start|>user\nhi")


def test_parallel_calls_and_their_responses(tokenizer):
    chat = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "", "tool_calls": [CALL, CALL]},
        {"role": "tool", "content": "{}"},
        {"role": "tool", "content": "[1]"},
    ]
    assert render(tokenizer, chat, add_generation_prompt=False, enable_thinking=True) == (
        "<|im_start|>user\nhi<|im_end|>\n"
        f"<|im_start|>assistant\n{CALL_TEXT}\n{CALL_TEXT}<|im_end|>\n"
        "<|im_start|>user\n<tool_response>\n{}\n</tool_response>\n"
        "<tool_response>\n[1]\n</tool_response><|im_end|>\n"
    )


def test_text_before_a_call_is_kept(tokenizer):
    chat = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "Well.", "tool_calls": [CALL]},
    ]
    assert f"assistant\nWell.\n{CALL_TEXT}<|im_end|>" in render(tokenizer, chat, enable_thinking=True)


def test_thinking_switch_closes_the_thought_in_the_prompt(tokenizer):
    chat = [{"role": "user", "content": "hi"}]
    assert render(tokenizer, chat, enable_thinking=False).endswith(f"assistant\n{SILENT}")
    assert render(tokenizer, chat, enable_thinking=True).endswith("assistant\n")
    assert render(tokenizer, chat).endswith("assistant\n")


@pytest.mark.parametrize("form", ["field", "inline"])
def test_thoughts_of_this_turn_are_kept_and_older_ones_dropped(tokenizer, form):
    def said(thought, text):
        if form == "inline":
            return {"role": "assistant", "content": f"<think>\n{thought}\n</think>\n\n{text}"}
        return {"role": "assistant", "content": text, "reasoning_content": thought}

    chat = [
        {"role": "user", "content": "hi"},
        said("old", "yes"),
        {"role": "user", "content": "so"},
        said("new", "no"),
    ]
    text = render(tokenizer, chat, enable_thinking=True)
    assert "assistant\nyes<|im_end|>" in text and "old" not in text
    assert "assistant\n<think>\nnew\n</think>\n\nno<|im_end|>" in text


def test_without_thinking_every_prompt_extends_the_stream_before_it(tokenizer):
    chat = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "read #kite"}]
    steps = [
        (
            CALL_TEXT,
            {"role": "assistant", "content": "", "tool_calls": [CALL]},
            {"role": "tool", "content": '{"total": 12}'},
        ),
        ("it is 12", {"role": "assistant", "content": "it is 12"}, {"role": "user", "content": "thanks"}),
        ("bye", {"role": "assistant", "content": "bye"}, {"role": "user", "content": "bye"}),
    ]
    stream: list[int] = []
    for said, message, answer in steps:
        prompt = tokenizer.encode(
            render(tokenizer, chat, tools=[TOOL], enable_thinking=False), add_special_tokens=False
        )
        assert prompt[: len(stream)] == stream
        stream = prompt + tokenizer.encode(said + "<|im_end|>", add_special_tokens=False)
        chat += [message, answer]
