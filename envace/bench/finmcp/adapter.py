"""The FinMCP-Bench adapter: the published protocol, run by our own runner in a process of its own.

Flows in: an `EvalRequest`. Flows out: one job a (subset, trial), sample records, score records.
Invariant: upstream has no program to pin, so the pin is the data set's revision and the runner is this project's;
replayed tool replies are labelled "replay, not official" in every score.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import envace
from envace.bench.finmcp import parse, scores
from envace.bench.finmcp.data import Options, files
from envace.bench.finmcp.rows import SUBSETS, Row, digest, read
from envace.bench.harness.planning import chat_of, seed_of, thinking_body
from envace.bench.harness.spec import EvalRequest, HarnessEnv, HarnessSpec, Job, RawRun
from envace.bench.labels import labels
from envace.errors import UserError
from envace.types import JSON, SampleRecord, ScoreRecord

AGENT_KEY, SERVER_KEY = "FINMCP_AGENT_KEY", "FINMCP_SERVER_KEY"  # variables of the runner
LABELS = {"live": "own runner, live tools", "replay": "own runner, replay, not official"}


class FinMcp:
    name = "finmcp"
    subsets = default = tuple(SUBSETS.values())

    def spec(self, options: dict[str, JSON]) -> HarnessSpec:
        made = Options.of(options)
        live = made.mode == "live"  # the client of tool servers; replay needs this interpreter only
        return HarnessSpec(
            name="finmcp",
            version=made.version,
            kind="pypi" if live else "none",
            lock="finmcp.lock" if live else "",
            imports=("mcp", "httpx") if live else (),
            label=LABELS[made.mode],
        )

    def plan(self, env: HarnessEnv, request: EvalRequest) -> list[Job]:
        """Fetches the hub's rows first, where they are not here yet."""
        options = Options.of(request.options)
        paths = files(options)
        rows, content = read(paths), _content(options, paths)
        jobs = []
        for subset in request.subsets:
            chosen = chosen_of(rows, subset, options.tasks, request.limit, request.seed)
            jobs += [
                _job(env, request, options, paths, content, subset, chosen, t) for t in range(request.trials)
            ]
        return jobs

    def parse(self, env: HarnessEnv, request: EvalRequest, runs: Sequence[RawRun]) -> list[SampleRecord]:
        rows = {r.task: r for r in read(files(Options.of(request.options)))}
        return [s for run in runs for s in parse.samples_of(run, request, rows)]

    def summarise(
        self, env: HarnessEnv, request: EvalRequest, samples: Sequence[SampleRecord], **identity: Any
    ) -> list[ScoreRecord]:
        options = Options.of(request.options)
        paths = files(options)
        rows, data = {r.task: r for r in read(paths)}, digest(paths)
        own = {"mode": options.mode, "tools": _origin(options)} | labels(request, data)
        known = {"harness": env.identity, "variant": request.variant, "seed": request.seed, "data_hash": data}
        identity = known | identity
        identity["versions"] = dict(identity.get("versions") or {}) | own
        whole = {r.subset for r in rows.values()} if options.is_local else SUBSETS.values()
        absent = tuple(
            f"{s}: not asked for" for s in SUBSETS.values() if s in whole and s not in request.subsets
        )
        return scores.records(request.subsets, samples, rows, absent=absent, **identity)


def _origin(options: Options) -> str:
    return "file" if options.tools else "server" if options.mode == "live" else "mined from gold calls"


def _content(options: Options, paths: Sequence[Path]) -> dict[str, str]:
    """Hashes of the files a job reads: edited under the same name, they make it another job."""
    if options.tools and not Path(options.tools).is_file():
        raise UserError(f"finmcp: options.tools {options.tools!r} is no file; correct it, or leave it empty")
    return {"rows": digest(paths), "tools": digest([Path(options.tools)]) if options.tools else ""}


def chosen_of(rows: Sequence[Row], subset: str, wanted: tuple[str, ...], limit: int, seed: int) -> list[str]:
    """`limit` tasks of a subset by hash, in the order of the files. Raises UserError for one without rows."""
    own = [r for r in rows if r.subset == subset and (not wanted or r.id in wanted)]
    if not own:
        has = ", ".join(sorted({r.subset for r in rows}))
        raise UserError(f"finmcp: no row is of subset {subset!r}; the rows are of {has}")
    if limit and not wanted:
        ranked = sorted(own, key=lambda r: hashlib.sha256(f"{seed}/{r.id}".encode()).hexdigest())[:limit]
        own = [r for r in own if r in ranked]
    return [r.task for r in own]


def _job(
    env: HarnessEnv,
    request: EvalRequest,
    options: Options,
    paths: Sequence[Path],
    content: dict[str, str],
    subset: str,
    tasks: Sequence[str],
    trial: int,
) -> Job:
    name, agent = f"{subset}-{trial}", request.roles.agent
    folder = request.out.resolve() / name
    driven = {
        "rows": list(map(str, paths)),
        "tasks": list(tasks),
        "out": str(folder / "samples.jsonl"),
        "seed": seed_of(request.seed, trial),
        "concurrency": request.concurrency,
        "max_calls": options.max_calls,
        "tools": str(Path(options.tools).resolve()) if options.tools else "",
        "content": content,
        "agent": chat_of(agent, AGENT_KEY, **thinking_body(request)),
        "server": _server(options),
    }
    secrets = {AGENT_KEY: agent.key_env} if agent.key_env else {}
    live = options.mode == "live"
    if live and options.mcp_key_env:
        secrets[SERVER_KEY] = options.mcp_key_env
    return Job(
        name=name,
        argv=(str(env.python), "-m", "envace.bench.finmcp.run", str(folder / "job.json")),
        env={
            "PYTHONPATH": str(Path(envace.__file__).resolve().parents[1]),
            "PYTHONUTF8": "1",
            "PYTHONDONTWRITEBYTECODE": "1",
        },
        secrets=secrets,
        files={"job.json": json.dumps(driven, indent=1)},
        planned=tuple((t, trial) for t in tasks),
        reaches=(agent.base_url.rstrip("/"), *((options.mcp_url,) if live else ())),
        goes_on=True,
        deadline_s=request.deadline_s,
    )


def _server(options: Options) -> dict[str, JSON] | None:
    if options.mode == "replay":
        return None
    return {
        "url": options.mcp_url,
        "transport": options.mcp_transport,
        "key": SERVER_KEY if options.mcp_key_env else "",
        "timeout_s": options.mcp_timeout_s,
    }
