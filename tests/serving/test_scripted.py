"""The scripted user of smoke runs."""

from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from envace.serving.scripted import MODEL, scripted

LINES = ("Please add it.", "###STOP###")


def ask(base_url, turns):
    """The line for a conversation with so many assistant messages."""
    messages = [{"role": "system", "content": "s"}] + [{"role": "assistant", "content": "x"}] * turns
    reply = httpx.post(f"{base_url}/chat/completions", json={"model": MODEL, "messages": messages})
    return reply.json()["choices"][0]["message"]["content"]


def test_the_line_is_chosen_by_how_far_a_conversation_is_also_beside_others():
    with scripted(LINES) as endpoint, ThreadPoolExecutor(8) as pool:
        said = list(pool.map(lambda n: ask(endpoint.base_url, n % 4), range(16)))
        refused = httpx.post(f"{endpoint.base_url}/chat/completions", json={"model": MODEL})
        served = httpx.get(f"{endpoint.base_url}/models").json()["data"]
    assert said == [LINES[min(n % 4, 1)] for n in range(16)]
    assert refused.status_code == 400 and [model["id"] for model in served] == [MODEL]
    with pytest.raises(httpx.TransportError):  # nothing listens when the context is left
        ask(endpoint.base_url, 0)
