"""What a harness's process is told of an endpoint, and what a score says of how it was asked.

Flows in: an `Endpoint` and the name of the variable that will hold its key; a request. Flows out: plain data for a
job file; labels.
Invariant: the key itself is never in it. A score is labelled by what the agent's server was told, never by what was
meant.
"""

from __future__ import annotations

from urllib.parse import urlsplit

from envace.bench.harness.spec import EvalRequest
from envace.errors import UserError
from envace.types import JSON, Endpoint


def chat_of(endpoint: Endpoint, variable: str, **more: JSON) -> dict[str, JSON]:
    """Address of its chat completions, model, key variable (empty where it wants no key) and the body's settings."""
    s = endpoint.sampling
    body: dict[str, JSON] = {"temperature": s.temperature, "top_p": s.top_p, "max_tokens": s.max_tokens}
    if s.top_k > 0:
        body["top_k"] = s.top_k
    return {
        "url": address(endpoint.base_url, "chat/completions"),
        "model": endpoint.model,
        "key": variable if endpoint.key_env else "",
        "body": body | more | endpoint.extra_body,
    }


def address(base_url: str, path: str) -> str:
    """`path` below a base address, before its query where it has one."""
    parts = urlsplit(base_url)
    return parts._replace(path=f"{parts.path.rstrip('/')}/{path}").geturl()


def refuse_query(benchmark: str, endpoint: Endpoint) -> None:
    """The client library of some harnesses appends to the whole address. Raises UserError where that would break."""
    if urlsplit(endpoint.base_url).query:
        raise UserError(
            f"{benchmark} cannot ask {endpoint.model}: its client puts the path behind the query of the address; "
            "name the key by key_env, or put a proxy in front"
        )


def thinking_body(request: EvalRequest) -> dict[str, JSON]:
    """What tells the agent's chat template whether to think. The option `template_kwargs: false` leaves it out."""
    if not request.options.get("template_kwargs", True):
        return {}
    return {"chat_template_kwargs": {"enable_thinking": request.thinking}}


def thinking_of(request: EvalRequest) -> str:
    """ "true" or "false" as the agent's server was told; "unknown" where it was told nothing."""
    told = (thinking_body(request) | request.roles.agent.extra_body).get("chat_template_kwargs") or {}
    return str(told["enable_thinking"]).lower() if "enable_thinking" in told else "unknown"


def seed_of(seed: int, trial: int) -> int:
    """Of a trial: apart between trials, the same for every policy."""
    return (seed * 1000 + trial) % 2**31
