"""The scripted user of smoke runs."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import pytest

from envace.serving.scripted import MODEL, line_for, scripted

LINES = ("Please add it.", "###STOP###")


def ask(base_url: str, messages: list | None) -> str:
    request = urllib.request.Request(
        f"{base_url}/chat/completions", json.dumps({"model": MODEL, "messages": messages}).encode()
    )
    with urllib.request.urlopen(request, timeout=10) as answer:
        return json.load(answer)["choices"][0]["message"]["content"]


def conversation(turns: int) -> list[dict[str, str]]:
    return [{"role": "system", "content": "s"}] + [{"role": "assistant", "content": "x"}] * turns


def test_the_line_is_chosen_by_how_far_the_conversation_is():
    assert [line_for(conversation(n), LINES) for n in range(4)] == [LINES[0], *[LINES[1]] * 3]


def test_conversations_beside_each_other_do_not_mix():
    with scripted(LINES) as endpoint, ThreadPoolExecutor(8) as pool:
        said = list(pool.map(lambda n: ask(endpoint.base_url, conversation(n % 2)), range(16)))
    assert said == [LINES[n % 2] for n in range(16)]


def test_a_request_without_messages_is_refused():
    with scripted(LINES) as endpoint, pytest.raises(urllib.error.HTTPError, match="400"):
        ask(endpoint.base_url, None)


def test_nothing_listens_when_the_context_is_left():
    with scripted(LINES) as endpoint:
        pass
    with pytest.raises(urllib.error.URLError):
        ask(endpoint.base_url, conversation(0))
