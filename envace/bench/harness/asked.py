"""What a harness's process is told of an endpoint, where it is a program of ours that sends the requests.

Flows in: an `Endpoint` and the name of the variable that will hold its key. Flows out: plain data for a job file.
Invariant: the key itself is never in it.
"""

from __future__ import annotations

from envace.types import JSON, Endpoint


def chat_of(endpoint: Endpoint, variable: str) -> dict[str, JSON]:
    """Address of its chat completions, model, key variable (empty where it wants no key) and the body's settings."""
    s = endpoint.sampling
    body: dict[str, JSON] = {"temperature": s.temperature, "top_p": s.top_p, "max_tokens": s.max_tokens}
    if s.top_k > 0:
        body["top_k"] = s.top_k
    return {
        "url": endpoint.base_url.rstrip("/") + "/chat/completions",
        "model": endpoint.model,
        "key": variable if endpoint.key_env else "",
        "body": body | endpoint.extra_body,
    }


def seed_of(seed: int, trial: int) -> int:
    """Of a trial: apart between trials, the same for every policy."""
    return (seed * 1000 + trial) % 2**31
