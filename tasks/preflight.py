"""What a pipeline needs of its machine and of other servers, looked at before its first stage.

Device, interpreter, rows and disk within a second; the hub and the servers of judge, simulator, users and
baselines side by side within `PATIENCE_S`. One line each; what fails says in one sentence what to mend. A
check is there only where a stage that is about to run needs it.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx

from envace.config import Params
from envace.config.check import harnesses_used
from envace.errors import EnvironmentUnready, UserError
from envace.io.addresses import base_address, below, is_loopback, shown
from envace.io.chat_connection import ChatOptions

PATIENCE_S = 3.0
PLAYING = ("train", "sft", "evaluate", "tts", "fidelity", "bench", "dynamics")
"""Stages that run a model."""
JUDGED = ("train", "evaluate", "tts", "fidelity", "dynamics")
FREE_GB = {"cpu": 1, "gpu": 20}
"""Below this much free space nothing starts."""
FIND = "import importlib.util as u, sys; print(*(n for n in sys.argv[1:] if u.find_spec(n) is None))"


@dataclass(frozen=True, slots=True)
class Finding:
    """`Finding("disk", "12 GB free")`; with `fix`, what is to be done before anything can run."""

    what: str
    found: str
    fix: str = ""

    def __str__(self) -> str:
        return f"preflight | {self.what:<12} {self.found}" + (f": {self.fix}" if self.fix else "")


def preflight(
    params: Params, root: Path, stages: Collection[str], say: Callable[[str], None] = print
) -> list[Finding]:
    """Look at everything that `stages` (names as DVC gives them) need, and say it. Raises EnvironmentUnready
    with the first fix when one is needed."""
    kinds = {stage.partition("@")[0] for stage in stages}
    findings = [*_machine(params, root, kinds), *asyncio.run(_answering(servers(params, kinds)))]
    for finding in findings:
        say(str(finding))
    wrong = [finding for finding in findings if finding.fix]
    if wrong:
        more = f" (and {len(wrong) - 1} more, listed above)" if len(wrong) > 1 else ""
        raise EnvironmentUnready(f"{wrong[0].what}: {wrong[0].found}: {wrong[0].fix}{more}")
    return findings


def _machine(params: Params, root: Path, kinds: set[str]) -> Iterator[Finding]:
    engine, plays = params.engine, bool(kinds & {*PLAYING})
    if plays:
        yield _device(params)
    if "train" in kinds:
        yield _interpreter(params)
    if "train" in kinds or "stage_data" in kinds:
        yield _rows(params, root, staged="stage_data" not in kinds)
    free = shutil.disk_usage(root).free / 1e9
    needed = FREE_GB[engine.device if plays else "cpu"]
    fix = "" if free >= needed else f"at least {needed} GB are needed; free some, or move the project"
    yield Finding("disk", f"{free:.0f} GB free", fix)


def _device(params: Params) -> Finding:
    if params.engine.device == "cpu":
        return Finding("device", f"cpu, {os.cpu_count()} cores")
    here = len(list(Path("/dev").glob("nvidia[0-9]*"))) + len(list(Path("/dev/dri").glob("renderD*")))
    if here or params.engine.ray_address not in ("", "auto"):
        return Finding("device", f"gpu, {here} here" if here else f"gpu, at {params.engine.ray_address}")
    fix = "run this size where there is one, or take a size for CPU: `make size NAME=laptop`"
    return Finding("device", f"engine.device is gpu and this machine has no GPU (size {params.size})", fix)


def _interpreter(params: Params) -> Finding:
    """The trainer's, with the packages it imports."""
    python = params.engine.python or sys.executable
    needed = ["torch", "transformers", "ray", "verl"] + ["vllm"] * (params.engine.rollout == "vllm")
    named = f"{python}" if params.engine.python else "this one"
    if any(letter.isspace() for letter in python):
        where = "move the project, or name a path without one in engine.python (a link to the folder will do)"
        return Finding("interpreter", f"{python} has a space in its path, which Ray cannot start from", where)
    fix = "name the interpreter of the trainer's environment in engine.python"
    try:
        done = subprocess.run([python, "-c", FIND, *needed], capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired) as e:
        return Finding("interpreter", f"{named} cannot be started ({type(e).__name__})", fix)
    if done.returncode:
        return Finding("interpreter", f"{named} ended with status {done.returncode}", fix)
    lacking = done.stdout.split()
    if lacking:
        return Finding("interpreter", f"{named} lacks {', '.join(lacking)}", f"install them there, or {fix}")
    return Finding("interpreter", f"{named}, with {', '.join(needed)}")


def _rows(params: Params, root: Path, staged: bool) -> Finding:
    """Of a step, against those that are staged or about to be made."""
    wanted, manifest = params.train.prompts, root / "data/staged/manifest.json"
    if params.data.source == "desk":
        rows = params.desk.train_tasks
    elif staged and manifest.is_file():
        rows = json.loads(manifest.read_text(encoding="utf-8"))["counts"]["train"]
    else:
        return Finding("rows", f"counted once they are staged; a step takes {wanted}")
    fix = "" if rows >= wanted else "lower train.prompts, or stage more rows"
    return Finding("rows", f"{rows} to train on, {wanted} a step", fix)


# --- servers --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Asked:
    """One server, or the hub's page of one model or data set."""

    what: str
    url: str
    key: str = ""
    """A parameter's name, for the sentence."""
    key_env: str = ""
    fix: str = ""
    """Where another one than the usual is of help."""


def servers(params: Params, kinds: set[str]) -> list[Asked]:
    """All that a stage of these kinds will ask, each address once."""
    found, bench, judge = [], params.bench, params.judge
    if kinds & {*JUDGED} and judge.kind == "llm":
        urls = [judge.base_url] * bool(judge.base_url) + list(judge.endpoints)
        found += [Asked("judge", url, "judge.base_url", judge.key_env) for url in urls]
    simulator = params.rollout.simulator
    if "train" in kinds and "simulator" in {params.resolved_method(a).source for a in params.arms_trained}:
        found.append(Asked("simulator", simulator.base_url, "rollout.simulator.base_url", simulator.key_env))
    if kinds & {"bench", "dynamics"}:
        used = harnesses_used(params)
        parts = {"user": {"tau2", "vita"}, "judge": {"tau2", "vita"}}
        roles = {name: getattr(bench, name) for name, needed in parts.items() if used & needed}
        found += [
            Asked(f"bench {name}", role.base_url, f"bench.{name}.base_url", role.key_env)
            for name, role in roles.items()
            if role.base_url
        ]
        for name in set(bench.policies) & set(bench.baselines):
            base = bench.baselines[name]
            if base.base_url:
                found.append(Asked(name, base.base_url, f"bench.baselines.{name}.base_url", base.key_env))
    found += _on_the_hub(params, kinds)
    return list({(asked.what, asked.url): asked for asked in found}.values())


def _on_the_hub(params: Params, kinds: set[str]) -> Iterator[Asked]:
    """Pages of what is to be fetched from the hub and is not in its cache."""
    data, policy, bench = params.data, params.policy, params.bench
    asked = []
    if "stage_data" in kinds and data.source == "hub":
        asked.append(("datasets", data.uri, data.revision))
    if "policy" in kinds and policy.kind == "hub":
        asked.append(("models", policy.uri, policy.revision))
    if "bench" in kinds:
        rows = (bench.baselines[name] for name in sorted(set(bench.policies) & set(bench.baselines)))
        asked += [("models", row.uri, row.revision) for row in rows if row.uri]
    if not asked:
        return
    from huggingface_hub import constants, try_to_load_from_cache

    for kind, repo, revision in asked:
        if kind == "models" and isinstance(
            try_to_load_from_cache(repo, "config.json", revision=revision or None), str
        ):
            continue
        endpoint = os.environ.get("HF_ENDPOINT") or constants.ENDPOINT
        url = f"{endpoint.rstrip('/')}/api/{kind}/{repo}" + (f"/revision/{revision}" if revision else "")
        fix = f"allow access to it, set HF_TOKEN where it needs one, or correct {repo} and its revision"
        yield Asked("hub", url, repo, "HF_TOKEN", fix)


async def _answering(asked: list[Asked]) -> list[Finding]:
    return list(await asyncio.gather(*(_ask(one) for one in asked)))


async def _ask(asked: Asked) -> Finding:
    """Whether a server answers at all and takes the key; its `/models` need not exist."""
    hub = asked.what == "hub"
    fix = asked.fix or f"start that server, or correct {asked.key}"
    at = asked.key if hub else shown(asked.url)
    try:
        key = os.environ.get("HF_TOKEN", "") if hub else ""
        url = asked.url
        if not hub:
            options = ChatOptions(
                model="", servers={url: 1.0}, key_env=asked.key_env, what=f"the {asked.what}"
            )
            key, url = options.key(), below(base_address(url, asked.key), "models")
        headers = {"authorization": f"Bearer {key}"} if key else {}
        async with httpx.AsyncClient(timeout=PATIENCE_S, trust_env=not is_loopback(url)) as client:
            status = (await asyncio.wait_for(client.get(url, headers=headers), PATIENCE_S)).status_code
    except UserError as e:
        return Finding(asked.what, at, str(e))
    except (httpx.HTTPError, httpx.InvalidURL, OSError, TimeoutError) as e:
        return Finding(asked.what, f"{at} does not answer ({type(e).__name__})", fix)
    refused = status in (401, 403) or status not in (501, *range(500)) or (hub and status >= 400)
    if refused and status < 500 and asked.key_env and not hub:
        fix = f"correct the key in {asked.key_env}"
    return Finding(
        asked.what, f"{at} answers {status}" if refused else f"{at} answers", fix if refused else ""
    )
