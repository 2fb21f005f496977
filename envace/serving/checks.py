"""What is asked of a server before any work depends on it: does it answer, and does it show the prompts of
training?

Invariant: `probe` answers within its deadline, because some harnesses wait for a dead server for ever;
neither a key nor a password is in what is said. The prompts are compared as a harness would send them, as
JSON of the OpenAI protocol, by the ids the server itself makes of them; no token is generated.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence

import httpx

from envace.chat.probes import check_same_prompts
from envace.chat.renderer import Renderer, as_dicts
from envace.chat.text import clip
from envace.errors import EnvironmentUnready
from envace.io.addresses import below, is_loopback
from envace.io.redact import Redactor
from envace.types import JSON, Endpoint, Message

PAUSE_S = 0.5
NO_LIST = {404, 405, 501}
"""Serves chat completions, perhaps, but lists no models."""
TOKENIZE_S = 60.0
"""Deadline of one request for ids."""


def probe(endpoint: Endpoint, deadline_s: float = 30.0) -> None:
    """Ask for the list of models until it comes or the deadline has passed, and look for the endpoint's
    model.

    Raises EnvironmentUnready. A server that keeps no list is taken at its word.
    """
    base, shown = endpoint.base_url.rstrip("/"), Redactor().text
    url, until, headers = below(base, "models"), time.monotonic() + deadline_s, {}
    if endpoint.key_env:
        if not (key := os.environ.get(endpoint.key_env)):
            name = endpoint.key_env
            raise EnvironmentUnready(f"{shown(base)} needs a key: set the environment variable {name}")
        headers = {"Authorization": f"Bearer {key}"}
    tls = url.startswith("https")  # loading certificates for nothing takes as long as the whole probe
    with httpx.Client(trust_env=not is_loopback(url), verify=tls, headers=headers) as client:
        while True:
            try:
                reply = client.get(url, timeout=max(until - time.monotonic(), 0.1))
            except (httpx.TransportError, httpx.InvalidURL) as e:
                problem = f"{type(e).__name__}{': ' + str(e) if str(e) else ''}"
            else:
                if reply.status_code == 404 and _lists_models(client, below(base, "v1/models")):
                    raise EnvironmentUnready(f"the base address {shown(base)} lacks /v1: add it")
                if reply.status_code < 500 or reply.status_code in NO_LIST:
                    return _check_list(endpoint, shown(url), reply)
                problem = f"status {reply.status_code}"
            time.sleep(max(0.0, min(PAUSE_S, until - time.monotonic())))
            if time.monotonic() >= until:
                break
    raise EnvironmentUnready(
        f"no model server answers at {shown(url)} within {deadline_s:g} s ({clip(shown(problem), 200)}): "
        f"start it, or correct the address of {endpoint.model!r}"
    )


def _lists_models(client: httpx.Client, url: str) -> bool:
    try:
        return client.get(url, timeout=5).status_code == 200
    except httpx.TransportError:
        return False  # it was no more than a guess


def _check_list(endpoint: Endpoint, url: str, reply: httpx.Response) -> None:
    """The server lets us in and serves the model."""
    if reply.status_code in (401, 403):
        held = f"the key in {endpoint.key_env}"
        held = held if endpoint.key_env else "requests without a key (name one by key_env)"
        raise EnvironmentUnready(f"{url} refuses {held} (status {reply.status_code}): correct the key")
    if reply.status_code in NO_LIST:
        return
    try:
        served = [str(entry["id"]) for entry in reply.json()["data"]]
    except (ValueError, KeyError, TypeError):
        raise EnvironmentUnready(
            f"{url} answers with status {reply.status_code} and no list of models: "
            "it is no OpenAI-compatible server, or its base address lacks /v1"
        ) from None
    if served and not any(name == endpoint.model or name.endswith(f"/{endpoint.model}") for name in served):
        raise EnvironmentUnready(
            f"{url} serves {clip(', '.join(served[:5]), 200)} and not {endpoint.model!r}: "
            "name one of those, or serve it under that name"
        )


def check_served_prompts(endpoint: Endpoint, training: Renderer, thinking: bool, name: str = "") -> None:
    """Ask the server for the ids of every probe, thoughts switched as the harnesses switch them.

    Raises ParamsError at the first prompt that differs from training's, EnvironmentUnready where the server
    does not show its prompts.
    """
    url = endpoint.base_url.rstrip("/").removesuffix("/v1") + "/tokenize"
    with httpx.Client(trust_env=not is_loopback(url), timeout=TOKENIZE_S) as client:

        def served(messages: Sequence[Message], tools: Sequence[dict[str, JSON]]) -> list[int]:
            reply = client.post(url, json=chat_body(endpoint.model, messages, tools, thinking))
            try:
                return [int(i) for i in reply.raise_for_status().json()["tokens"]]
            except (ValueError, KeyError, TypeError) as e:
                raise EnvironmentUnready(
                    f"{url} answers without token ids ({clip(str(e), 80)}): serve the policy by "
                    "`vllm serve` or envace.serving"
                ) from e

        try:
            check_same_prompts(training, served, name or endpoint.model)
        except httpx.HTTPError as e:
            raise EnvironmentUnready(
                f"{url} cannot be asked which prompts it makes ({type(e).__name__}): see the server's log"
            ) from e


def chat_body(
    model: str, messages: Sequence[Message], tools: Sequence[dict[str, JSON]], thinking: bool
) -> dict[str, JSON]:
    """A request as harnesses write it: arguments as text, results known by the id of their call alone."""
    chat = as_dicts(messages, arguments_as_text=True)
    for message in chat:
        if message["role"] == "tool":
            del message["name"]
    switches = {"enable_thinking": thinking}
    return {"model": model, "messages": chat, "tools": list(tools), "chat_template_kwargs": switches}
