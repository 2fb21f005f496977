"""Is anybody there? Asked before a harness is started, because some of them wait for a dead server for ever.

Flows in: an endpoint. Flows out: nothing, or one sentence that names the address, the cause and the fix.
Invariant: the answer is given within the deadline; neither a key nor a password is in it.
"""

from __future__ import annotations

import os
import time

import httpx

from envace.bench.harness.planning import address
from envace.bench.harness.relay import is_loopback
from envace.chat.text import clip
from envace.errors import EnvironmentUnready
from envace.io.redact import Redactor
from envace.types import Endpoint

PAUSE_S = 0.5
NO_LIST = {404, 405, 501}  # serves chat completions, perhaps, but lists no models


def probe(endpoint: Endpoint, deadline_s: float = 30.0) -> None:
    """Ask for the list of models until it comes or the deadline has passed, and look for the endpoint's
    model.

    Raises EnvironmentUnready. A server that keeps no list is taken at its word.
    """

    base, headers = endpoint.base_url.rstrip("/"), _headers(endpoint)
    url, until = address(base, "models"), time.monotonic() + deadline_s
    problem, tries = "no answer", 0
    tls = url.startswith("https")  # loading certificates for nothing takes as long as the whole probe
    with httpx.Client(trust_env=not is_loopback(url), verify=tls) as client:
        while not tries or time.monotonic() < until:
            tries += 1
            try:
                reply = client.get(url, headers=headers, timeout=max(until - time.monotonic(), 0.1))
            except (httpx.TransportError, httpx.InvalidURL) as e:
                problem = f"{type(e).__name__}{': ' + str(e) if str(e) else ''}"
            else:
                if reply.status_code == 404 and _is_list(client, address(base, "v1/models"), headers):
                    raise EnvironmentUnready(f"the base address {_shown(base)} lacks /v1: add it")
                if reply.status_code < 500 or reply.status_code in NO_LIST:
                    return _judge(endpoint, url, reply)
                problem = f"status {reply.status_code}"
            time.sleep(max(0.0, min(PAUSE_S, until - time.monotonic())))
    raise EnvironmentUnready(
        f"no model server answers at {_shown(url)} within {deadline_s:g} s ({clip(_shown(problem), 200)}): "
        f"start it, or correct the address of {endpoint.model!r}"
    )


def _judge(endpoint: Endpoint, url: str, reply: httpx.Response) -> None:
    if reply.status_code in (401, 403):
        held = (
            f"the key in {endpoint.key_env}"
            if endpoint.key_env
            else "requests without a key (name one by key_env)"
        )
        raise EnvironmentUnready(
            f"{_shown(url)} refuses {held} (status {reply.status_code}): correct the key"
        )
    if reply.status_code in NO_LIST:
        return
    try:
        served = [str(entry["id"]) for entry in reply.json()["data"]]
    except (ValueError, KeyError, TypeError):
        raise EnvironmentUnready(
            f"{_shown(url)} answers with status {reply.status_code} and no list of models: "
            "it is no OpenAI-compatible server, or its base address lacks /v1"
        ) from None
    if served and not any(name == endpoint.model or name.endswith(f"/{endpoint.model}") for name in served):
        raise EnvironmentUnready(
            f"{_shown(url)} serves {clip(', '.join(served[:5]), 200)} and not {endpoint.model!r}: "
            "name one of those, or serve it under that name"
        )


def _is_list(client: httpx.Client, url: str, headers: dict[str, str]) -> bool:

    try:
        return client.get(url, headers=headers, timeout=5).status_code == 200
    except httpx.TransportError:
        return False  # it was no more than a guess


def _headers(endpoint: Endpoint) -> dict[str, str]:
    if not endpoint.key_env:
        return {}
    if not os.environ.get(endpoint.key_env):
        raise EnvironmentUnready(
            f"{_shown(endpoint.base_url)} needs a key: set the environment variable {endpoint.key_env}"
        )
    return {"Authorization": f"Bearer {os.environ[endpoint.key_env]}"}


def _shown(text: str) -> str:
    return Redactor().text(text)
