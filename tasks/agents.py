"""Who is asked in an upstream benchmark: the policy, served for as long as it is needed, and the other parts.

Flows in: a policy's name (or a folder of weights), the roles of `bench`. Flows out: `Endpoint`s.
Invariant: a checkpoint that is served is shown the prompts it was trained on, or nothing starts; servers
started here end with their block.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from envace.chat.renderer import HFRenderer
from envace.config import BaselineParams, BenchParams, RoleParams
from envace.policy.card import read_card
from envace.serving.checks import check_served_prompts
from envace.serving.scripted import scripted
from envace.serving.serve import Vllm, serve
from envace.types import Endpoint, PolicyRef, Sampling, replace
from tasks.run import Run

SERVER_CONTEXT = 32768  # tokens, of a baseline's server whose context is not given


@contextmanager
def agent_of(run: Run, policy: str, folder: Path | None = None) -> Iterator[tuple[Endpoint, PolicyRef]]:
    """An address at which the policy answers, and its card; weights are served for as long as the block
    lasts.
    """
    p, own = run.params.bench, folder or run.path("models", policy)
    ref, base = read_card(own), p.baselines.get(policy, BaselineParams())
    sampling = Sampling(temperature=p.temperature, top_p=p.top_p, top_k=p.top_k, max_tokens=p.max_tokens)
    if ref.kind == "endpoint":
        yield (
            Endpoint(
                base_url=base.base_url,
                model=base.model,
                key_env=base.key_env,
                context=base.context or SERVER_CONTEXT,
                sampling=sampling,
                extra_body=base.extra_body,
            ),
            ref,
        )
        return
    e = run.params.engine
    vllm = Vllm(
        python=e.python,
        tensor_parallel=e.tensor_parallel,
        gpu_memory=e.gpu_memory,
        tool_parser=base.tool_parser or p.tool_parser,
        reasoning_parser=base.reasoning_parser or p.reasoning_parser,
    )
    with serve(
        base.uri or own,
        name=policy,
        revision=base.revision,
        device=e.device,
        context=base.context or p.context,
        thinking=thinks(p, base),
        concurrency=p.concurrency,
        vllm=vllm,
        say=run.say,
        log=run.state / "logs" / f"serve-{policy}.log",
    ) as endpoint:
        if not base.uri:
            check_prompts(run, endpoint, policy, own)
        # top_k is said also where it is every token: else the weights' own generation_config counts
        yield replace(endpoint, sampling=sampling, extra_body={"top_k": p.top_k} | base.extra_body), ref


def check_prompts(run: Run, endpoint: Endpoint, policy: str, folder: Path) -> None:
    """Before any harness starts: what is served shows the policy the prompts of training. Raises
    ParamsError.
    """
    start, thinking = run.path("models/start"), run.params.bench.thinking
    trained_on = HFRenderer.of(start if start.is_dir() else folder, thinking)
    check_served_prompts(endpoint, trained_on, thinking, policy)
    run.say(f"{policy} is shown the prompts of training")


def thinks(p: BenchParams, base: BaselineParams) -> bool:
    """Whether a policy is asked to think."""
    return p.thinking if base.thinking == "bench" else base.thinking == "always"


@contextmanager
def part(role: RoleParams) -> Iterator[Endpoint | None]:
    """The server of a role, started here when its lines are fixed; None where nobody plays it."""
    if role.script:
        with scripted(role.script) as endpoint:
            yield endpoint
        return
    sampling = Sampling(temperature=role.temperature, max_tokens=role.max_tokens)
    server = Endpoint(
        base_url=role.base_url,
        model=role.model,
        key_env=role.key_env,
        context=role.context,
        sampling=sampling,
        extra_body=role.extra_body,
    )
    yield server if role.base_url else None
