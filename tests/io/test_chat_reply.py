"""Replies of chat servers in whatever shape, and what they cost."""

import pytest
from chat_kit import reply
from hypothesis import given, settings
from hypothesis import strategies as st

from envace.io.chat_client import ChatBill, ChatFault
from envace.io.chat_reply import read_completion


def test_a_reply_is_read_in_one_way_whatever_its_shape():
    calls = [
        {"id": "1", "function": {"name": "a", "arguments": '{"x": 1}'}},
        {"function": {"name": "b", "arguments": ""}},
        {"function": {"name": "c", "arguments": None}},
        {"function": {"name": "d", "arguments": {"y": 2}}},
        {"function": {"name": "e", "arguments": '{"x": '}},
        "no call",
    ]
    parts = [{"type": "text", "text": "a"}, {"type": "image_url"}, {"type": "text", "text": "b"}]
    got = read_completion(reply(parts, reasoning_content="hm", tool_calls=calls, finish="length").text)
    assert (got.text, got.thinking, got.finish, got.truncated) == ("ab", "hm", "length", True)
    assert [(c.name, c.arguments) for c in got.calls] == [
        ("a", '{"x": 1}'),
        ("b", "{}"),
        ("c", "{}"),
        ("d", '{"y": 2}'),
        ("e", '{"x": '),
        ("", "{}"),
    ]
    assert read_completion(reply(None).text).text == ""


@pytest.mark.parametrize(
    ("usage", "tokens"),
    [
        ({"total_tokens": 7}, 7),
        ({"prompt_tokens": 5, "completion_tokens": 2}, 7),
        ({"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 9}, 9),
        ({"total_tokens": -3}, 0),
        ({"total_tokens": True}, 0),
        ({"total_tokens": 10**30}, 0),
        ({"total_tokens": "7"}, 0),
        ([], 0),
        (3, 0),
    ],
)
def test_tokens_are_whole_numbers_a_server_could_mean(usage, tokens):
    assert read_completion(reply(usage=usage).text).tokens == tokens


@settings(max_examples=200)
@given(st.text(max_size=200))
def test_no_bytes_of_a_server_do_more_than_raise_a_named_fault(content):
    with pytest.raises(ChatFault, match="^malformed"):
        read_completion(content)


@pytest.mark.parametrize("parts", [1, 2, 3, 7])
def test_the_shares_of_a_bill_add_up_to_it(parts):
    bill = ChatBill(requests=3, retries=2, tokens=101, tokens_in=90, tokens_out=11, seconds=0.7, answered=2)
    bill.faults["timeout"] = 2
    total = ChatBill()
    for share in bill.split(parts):
        total.add(share)
    assert total.seconds == pytest.approx(0.7)
    total.seconds = bill.seconds
    assert total == bill and bill.price(2.0, 50.0) == pytest.approx(90 * 2e-6 + 11 * 50e-6)
