"""`python -m envace.play`: play one episode and print it step by step.

Flows in: a task id, a policy and params.yaml. Flows out: the transcript with verdicts and reward on stdout,
or the whole episode as JSON.
Invariant: no orchestrator and no trainer is imported; with the scripted expert no torch either.
"""

from __future__ import annotations

import argparse
import asyncio
import difflib
import json
import re
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import get_args, get_type_hints

from envace.chat.renderer import ByteRenderer, Renderer
from envace.config import Params, RolloutParams, load
from envace.config.method import Method
from envace.data.store import read_tasks
from envace.errors import DataError, EnvironmentUnready, StageFailed, boundary
from envace.judge.base import make_judge
from envace.policy.protocol import Policy
from envace.policy.reference import ReferencePolicy
from envace.rollout.episode import run_episode
from envace.rollout.prompts import load_prompt_set
from envace.rollout.show import Printer, wants_colour
from envace.rollout.sources import make_source
from envace.rollout.state import FAILED
from envace.types import Endpoint, Episode, Task, replace, to_json
from envace.worlds import registry as worlds
from envace.worlds.desk.tasks import generate as desk_tasks
from envace.worlds.expert import ExpertPolicy
from envace.worlds.files.tasks import generate as files_tasks

EXAMPLES = """\
examples:
  python -m envace.play --list
  python -m envace.play --task desk-held-3 --policy expert
  python -m envace.play --task desk-held-3 --policy models/start --source environment
  python -m envace.play --task desk-held-3 --policy http://localhost:8000/v1 --model Qwen/Qwen3-8B \
--max-tokens 2048

Desk tasks (desk-train-K, desk-held-K) and files-held-K are made on the fly while no data is staged.
"""
MADE_ID = re.compile(r"(?:desk-(train|held|validation|unseen|warm)|files-held)-(\d{1,6})")


def main(argv: list[str] | None = None) -> None:
    """The command."""
    cli = argparse.ArgumentParser(
        prog="python -m envace.play",
        description="Play one episode and print it step by step.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    what = cli.add_mutually_exclusive_group(required=True)
    what.add_argument("--task", metavar="ID", help="task to play, e.g. desk-held-3")
    what.add_argument("--list", action="store_true", help="list task ids and exit")
    add, sources = cli.add_argument, get_args(get_type_hints(Method)["source"])
    policies = "the scripted expert (default), the task's own dialogue, a server, or a folder of weights"
    add("--policy", default="expert", metavar="expert|reference|URL|PATH", help=policies)
    add("--source", choices=sources, help="who answers calls; default: method.source of params.yaml")
    add("--arm", default="", help="use the method switches of this arm of params.yaml")
    add("--data", default="data/staged/held.parquet", metavar="FILE", help="staged tasks (%(default)s)")
    add("--params", default="params.yaml", metavar="FILE", help="parameters (%(default)s)")
    add("--model", default="", help="model name the server knows; needed with a URL")
    add("--key-env", default="", metavar="VAR", help="environment variable that holds the server's key")
    add("--max-tokens", type=int, default=1024, help="longest output, with a URL (%(default)s)")
    add("--temperature", type=float, help="0 is greedy; default: rollout.temperature")
    add("--seed", type=int, help="default: seed of params.yaml")
    add("--json", action="store_true", help="print the episode as JSON instead")
    args = cli.parse_args(argv)
    with boundary("play"):
        params, data = load(args.params), Path(args.data)
        worlds.load(params.rollout.worlds)
        if args.list:
            staged = data.exists()
            tasks = (
                read_tasks(data) if staged else desk_tasks(params.desk.seed, "held", params.desk.held_tasks)
            )
            where = data if staged else f"made on the fly: {data} does not exist"
            print(f"{len(tasks)} tasks, {where}", file=sys.stderr)
            for task in tasks:
                print(f"{task.id:20} {task.n_turns} turns   {' '.join(task.tags)}")
            return
        episode = asyncio.run(_play(find_task(args.task, data, params), params, args))
        if args.json:
            print(json.dumps(to_json(episode)))
        if episode.stop in FAILED:
            raise StageFailed(f"the episode is unscored, {episode.stop.value}: {episode.stop_detail}")


async def _play(task: Task, params: Params, args: argparse.Namespace) -> Episode:
    method = params.resolved_method(args.arm)
    method = replace(method, source=args.source or method.source)
    prompts = load_prompt_set(params.rollout.prompt_set)
    seed = params.seed if args.seed is None else args.seed
    printer = Printer(task, print, wants_colour(sys.stdout))
    if args.temperature is not None:
        params = replace(params, rollout=replace(params.rollout, temperature=args.temperature))
    async with _policy(task, params, args) as (policy, renderer, rollout):
        if not args.json:
            print(
                f"task {task.id}   policy {args.policy}   source {method.source}   seed {seed}   "
                f"prompts {prompts.name}@{prompts.hash[:8]}\n"
            )
            printer.prefix()
        episode = await run_episode(
            task,
            policy=policy,
            source=make_source(task, method, policy, renderer, rollout),
            renderer=renderer,
            judge=make_judge(params.judge, method.judge_mode),
            method=method,
            params=rollout,
            episode_id=f"{task.id}/{seed}",
            group_id=task.id,
            seed=seed,
            prompt_set=prompts,
            watch=None if args.json else printer.watch,
        )
    if not args.json:
        printer.summary(episode)
    return episode


@asynccontextmanager
async def _policy(
    task: Task, params: Params, args: argparse.Namespace
) -> AsyncIterator[tuple[Policy, Renderer, RolloutParams]]:
    """The policy `--policy` names, its renderer, and budgets in that renderer's unit.

    Without a tokenizer prompts are counted in bytes, so the budgets are opened wide: a server holds its own
    limit, and the expert is short.
    """
    wide = replace(params.rollout, prompt_tokens=5_000_000, response_tokens=args.max_tokens)
    if args.policy in ("expert", "reference"):
        renderer = ByteRenderer()
        scripted = ExpertPolicy if args.policy == "expert" else ReferencePolicy
        yield scripted(task, renderer), renderer, replace(wide, response_tokens=100_000)
    elif args.policy.startswith(("http://", "https://")):
        from envace.rollout.endpoint import EndpointPolicy  # brings an HTTP client

        if not args.model:
            raise EnvironmentUnready(f"say with --model which model {args.policy} serves")
        endpoint = Endpoint(base_url=args.policy, model=args.model, key_env=args.key_env, context=10_000_000)
        async with EndpointPolicy(endpoint, attempts=3) as policy:
            yield policy, ByteRenderer(), wide
    elif Path(args.policy).is_dir():
        from envace.policy.local import LocalPolicy  # brings torch

        local = LocalPolicy(args.policy, enable_thinking=params.rollout.enable_thinking)
        yield local, local.renderer, params.rollout
    else:
        raise EnvironmentUnready(
            f"{args.policy} is neither 'expert', 'reference', a URL nor a folder of weights"
        )


def find_task(task_id: str, data: Path, params: Params) -> Task:
    """From the staged file, or the splits beside it; made on the fly while there is none. Raises
    DataError."""
    if data.exists():
        files = [data, *sorted(f for f in data.parent.glob("*.parquet") if f != data)]
        found = next((t for f in files for t in read_tasks(f) if t.id == task_id), None)
        if found is None:
            near = difflib.get_close_matches(task_id, [t.id for t in read_tasks(data)], n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise DataError(f"{data} holds no task {task_id!r}{hint}")
        return found
    if match := MADE_ID.fullmatch(task_id):
        seed, n = params.desk.seed, int(match[2]) + 1
        return (desk_tasks(seed, match[1], n) if match[1] else files_tasks(seed, n))[-1]
    raise DataError(
        f"{data} does not exist, and {task_id!r} is no desk task such as desk-held-3; stage the data first"
    )


if __name__ == "__main__":
    main()
