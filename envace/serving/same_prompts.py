"""The check that a server shows a policy the prompts it was trained on.

Flows in: a served endpoint, the renderer of training. Flows out: nothing, or an error that names what differs.
Invariant: the probes go to the server as a harness would send them, as JSON of the OpenAI protocol; what is compared
are the ids the server itself makes of them. No token is generated.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from envace.bench.harness.relay import is_loopback
from envace.chat.probes import check_same_prompts
from envace.chat.renderer import Renderer, as_dicts
from envace.chat.text import clip
from envace.errors import EnvironmentUnready
from envace.types import Endpoint, Message

DEADLINE_S = 60.0  # of one request


def check_served_prompts(endpoint: Endpoint, training: Renderer, thinking: bool, name: str = "") -> None:
    """Ask the server for the ids of every probe, thoughts switched as the harnesses switch them.

    Raises ParamsError at the first prompt that differs from training's, EnvironmentUnready where the server does not
    show its prompts.
    """
    import httpx

    url = endpoint.base_url.rstrip("/").removesuffix("/v1") + "/tokenize"
    with httpx.Client(trust_env=not is_loopback(url), timeout=DEADLINE_S) as client:

        def served(messages: Sequence[Message], tools: Sequence[dict[str, Any]]) -> list[int]:
            return _ids(client.post(url, json=body_of(endpoint.model, messages, tools, thinking)), url)

        try:
            check_same_prompts(training, served, name or endpoint.model)
        except httpx.HTTPError as e:
            raise EnvironmentUnready(
                f"{url} cannot be asked which prompts it makes ({type(e).__name__}): see the server's log"
            ) from e


def body_of(
    model: str, messages: Sequence[Message], tools: Sequence[dict[str, Any]], thinking: bool
) -> dict[str, Any]:
    """A request as harnesses write it: arguments as text, results known by the id of their call alone."""
    chat = [
        {k: v for k, v in m.items() if (m["role"], k) != ("tool", "name")}
        for m in as_dicts(messages, arguments_as_text=True)
    ]
    body = {"model": model, "messages": chat, "tools": list(tools)}
    return body | {"chat_template_kwargs": {"enable_thinking": thinking}}


def _ids(answer: Any, url: str) -> list[int]:
    try:
        return [int(i) for i in answer.raise_for_status().json()["tokens"]]
    except (ValueError, KeyError, TypeError) as e:
        raise EnvironmentUnready(
            f"{url} answers without token ids ({clip(str(e), 80)}): serve the policy by `vllm serve` or envace.serving"
        ) from e
