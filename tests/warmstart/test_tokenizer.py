"""The small BPE: lossless, deterministic, Qwen3's marks whole, JSON scaffolding in single tokens."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer

from envace.warmstart.tokenizer import MARKS, SPECIAL, build_tokenizer, json_documents, scaffolding

TOOL = {
    "type": "function",
    "function": {
        "name": "get_order",
        "description": "read an order",
        "parameters": {
            "type": "object",
            "properties": {"order_id": {"type": "string"}},
            "required": ["order_id"],
        },
    },
}


def texts() -> list[str]:
    out = []
    for k, word in enumerate("kite maple ember delta frost lunar".split() * 2):
        call = json.dumps({"name": "get_order", "arguments": {"order_id": f"#{word}"}})
        out.append(f"<tools>\n{json.dumps(TOOL['function'])}\n</tools>\nplease read order #{word}")
        out.append(f"<tool_call>\n{call}\n</tool_call>")
        result = json.dumps({"order_id": f"#{word}", "total": 10 + k, "status": "pending"})
        out.append(f"<execution_result>\n{result}\n</execution_result>")
    return out


@pytest.fixture(scope="module")
def tokenizer():
    return build_tokenizer(texts(), vocab=420, context=256)


def pieces(tokenizer, text):
    return [tokenizer.decode([i]) for i in tokenizer.encode(text, add_special_tokens=False)]


def test_a_call_is_scaffolding_and_values(tokenizer):
    call = json.dumps({"name": "get_order", "arguments": {"order_id": "#kite"}})
    assert pieces(tokenizer, call) == [
        '{"name": "',
        "get_order",
        '", "arguments": {"order_id": "',
        "#",
        "kite",
        '"}}',
    ]


def test_digits_stand_alone_and_marks_are_whole(tokenizer):
    assert pieces(tokenizer, "274") == ["2", "7", "4"]
    for mark in (*SPECIAL, *MARKS):
        assert len(tokenizer.encode(mark, add_special_tokens=False)) == 1


def test_marks_survive_a_decode_that_skips_special_tokens(tokenizer):
    ids = tokenizer.encode("<think></think><tool_call><|im_end|>", add_special_tokens=False)
    assert tokenizer.decode(ids, skip_special_tokens=True) == "<think></think><tool_call>"


def test_a_value_word_inside_another_word_is_left_alone(tokenizer):
    assert "kite" not in pieces(tokenizer, "mintkite kites")


@settings(max_examples=60, deadline=None)
@given(st.text(max_size=40))
def test_any_text_survives(tokenizer, text):
    text = text.encode("utf-8", "replace").decode()
    assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False)) == text


def test_line_breaks_are_cut_alike_with_and_without_text_behind():
    tokenizer = build_tokenizer([*texts(), *["yes\n\nno\n\n"] * 50], vocab=420, context=256)
    assert pieces(tokenizer, "yes\n\n") + pieces(tokenizer, "no") == pieces(tokenizer, "yes\n\nno")
    assert pieces(tokenizer, "\n\n") == ["\n\n"]


def test_same_texts_same_tokenizer(tokenizer):
    again = build_tokenizer(texts(), vocab=420, context=256)
    assert again.backend_tokenizer.to_str() == tokenizer.backend_tokenizer.to_str()


def test_the_vocabulary_cap_holds(tokenizer):
    assert len(tokenizer) <= 420
    assert len(build_tokenizer(texts(), vocab=320, context=256)) <= 320


def test_a_saved_tokenizer_reads_the_same(tokenizer, tmp_path):
    tokenizer.save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "qwen3"}')
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    for text in [*texts(), "unseen ünï 🙂 <|im_end|>"]:
        assert loaded.encode(text, add_special_tokens=False) == tokenizer.encode(
            text, add_special_tokens=False
        )
    assert (loaded.eos_token, loaded.pad_token) == ("<|im_end|>", "<|endoftext|>")
    assert loaded.chat_template == tokenizer.chat_template


def test_documents_are_found_whole_and_broken_ones_skipped():
    assert list(json_documents('a {"x": [1, {"y": 2}]} b {broken [3] c')) == ['{"x": [1, {"y": 2}]}', "[3]"]


def test_values_never_enter_the_scaffolding():
    runs, words = scaffolding(texts(), room=200)
    assert not any("kite" in run or "1" in run for run in runs)
    assert {"kite", "get_order", "pending"} <= set(words)
