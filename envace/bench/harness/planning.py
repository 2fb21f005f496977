"""What the adapters of all benchmarks plan with: options, tasks by hash, endpoints, processes of a driver.

Invariant: a key is named by its variable and never stands in a job; a limit picks the same tasks for every
policy; a score says of thinking what the agent's server was told, never what was meant.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlsplit

from envace.bench.harness.spec import EvalRequest, HarnessEnv, HarnessJob
from envace.errors import UserError
from envace.io.addresses import below
from envace.types import JSON, Endpoint

T = TypeVar("T")
JOB_FILE = "job.json"


def read_options(benchmark: str, cls: type[T], options: Mapping[str, JSON]) -> T:
    """A benchmark's options as its dataclass; lists become tuples. UserError for a name it does not have."""
    known = [f.name for f in fields(cls)]  # type: ignore[arg-type]
    if unknown := sorted(set(options) - set(known)):
        raise UserError(f"{benchmark} has no option {unknown[0]!r}; known are {', '.join(known)}")
    return cls(**{k: tuple(v) if isinstance(v, list) else v for k, v in options.items()})


def check_one_of(benchmark: str, name: str, value: str, allowed: Collection[str]) -> None:
    """Raises UserError that names what the option may be."""
    if value not in allowed:
        raise UserError(f"{benchmark}: {name} {value!r} is not one of {', '.join(allowed)}")


def choose(ids: Sequence[str], limit: int, seed: int, wanted: Collection[str] = ()) -> list[str]:
    """`limit` ids by hash of seed and id, in the order they came; 0 is all. `wanted` ids count before it."""
    if not wanted and (not limit or limit >= len(ids)):
        return list(ids)
    by_hash = sorted(ids, key=lambda i: hashlib.sha256(f"{seed}/{i}".encode()).hexdigest())
    kept = set(wanted or by_hash[:limit])
    return [i for i in ids if i in kept]


def seed_of(seed: int, trial: int) -> int:
    """The seed of a trial: apart between trials, the same for every policy."""
    return (seed * 1000 + trial) % 2**31


def endpoint_of(benchmark: str, request: EvalRequest, role: str, why: str = "") -> Endpoint:
    """The endpoint of a role the benchmark cannot do without. Raises UserError where nobody plays it."""
    if role not in (played := request.roles.filled()):
        raise UserError(
            f"{benchmark} needs a {role}{why}: name an endpoint by bench.{role} (it may be the agent's own "
            "server)"
        )
    return played[role]


def check_room(benchmark: str, agent: Endpoint) -> None:
    """An answer as long as the context would overflow it at every request, each counted against the agent."""
    if agent.sampling.max_tokens >= agent.context:
        raise UserError(
            f"{benchmark}: max_tokens {agent.sampling.max_tokens} leaves no room for a prompt in a context "
            f"of {agent.context}"
        )


def refuse_query(benchmark: str, endpoint: Endpoint) -> None:
    """The client library of some harnesses appends to the whole address. UserError where that would break."""
    if urlsplit(endpoint.base_url).query:
        raise UserError(
            f"{benchmark} cannot ask {endpoint.model}: its client puts the path behind the query of the "
            "address; name the key by key_env, or put a proxy in front"
        )


def chat_of(endpoint: Endpoint, variable: str, **more: JSON) -> dict[str, JSON]:
    """What a driver is told of an endpoint: address, model, variable of its key (empty without one), body."""
    s = endpoint.sampling
    body: dict[str, JSON] = {"temperature": s.temperature, "top_p": s.top_p, "max_tokens": s.max_tokens}
    top_k: dict[str, JSON] = {"top_k": s.top_k} if s.top_k > 0 else {}
    return {
        "url": below(endpoint.base_url, "chat/completions"),
        "model": endpoint.model,
        "key": variable if endpoint.key_env else "",
        "body": body | top_k | more | endpoint.extra_body,
    }


def thinking_body(request: EvalRequest) -> dict[str, JSON]:
    """What tells the agent's chat template whether to think; the option `template_kwargs: false` leaves it
    out.
    """
    told = request.options.get("template_kwargs", True)
    return {"chat_template_kwargs": {"enable_thinking": request.thinking}} if told else {}


def thinking_of(request: EvalRequest) -> str:
    """ "true" or "false" as the agent's server was told; "unknown" where it was told nothing."""
    told = (thinking_body(request) | request.roles.agent.extra_body).get("chat_template_kwargs") or {}
    return str(told["enable_thinking"]).lower() if "enable_thinking" in told else "unknown"


def driver_job(
    env: HarnessEnv,
    request: EvalRequest,
    name: str,
    driver: Path | str,
    settings: Mapping[str, JSON],
    planned: Sequence[tuple[str, int]],
    *,
    asked: Mapping[str, Endpoint],
    flags: Sequence[str] = ("-P",),
    environ: Mapping[str, str] | None = None,
    secrets: Mapping[str, str] | None = None,
    files: Mapping[str, str] | None = None,
    reaches: Sequence[str] = (),
    open_network: bool = False,
    tally: tuple[str, str] = ("", ""),
) -> HarnessJob:
    """The process that runs a driver in the harness's interpreter on `settings`, which it finds in job.json.

    asked: variable of the driver -> the endpoint whose key it holds. `reaches` are addresses beside theirs.
    Given what an interrupted run left, every driver goes on there.
    """
    keys = {variable: e.key_env for variable, e in asked.items() if e.key_env}
    return HarnessJob(
        name=name,
        argv=(str(env.python), *flags, str(driver), str(request.out.resolve() / name / JOB_FILE)),
        env=dict(environ or {}),
        secrets=keys | dict(secrets or {}),
        files={JOB_FILE: json.dumps(settings, indent=1), **(files or {})},
        planned=tuple(planned),
        reaches=tuple(dict.fromkeys([*(e.base_url.rstrip("/") for e in asked.values()), *reaches])),
        open_network=open_network,
        tally=tally,
        goes_on=True,
        deadline_s=request.deadline_s,
    )
