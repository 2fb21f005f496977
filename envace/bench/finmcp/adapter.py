"""The FinMCP-Bench adapter: the published protocol, run by our own runner in a process of its own.

Invariant: upstream has no program to pin, so the pin is the data set's revision and the runner is this
project's; replayed tool replies are labelled "replay, not official" in every score.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Unpack

import envace
from envace.bench.finmcp.data import FinMcpOptions, files
from envace.bench.finmcp.parse import samples_of
from envace.bench.finmcp.rows import SUBSETS, FinMcpRow, digest, read
from envace.bench.finmcp.scores import records
from envace.bench.harness.planning import chat_of, choose, driver_job, seed_of, thinking_body
from envace.bench.harness.spec import EvalRequest, HarnessEnv, HarnessJob, HarnessSpec, RawRun
from envace.bench.labels import identity_of, labels
from envace.bench.summary import Identity
from envace.errors import UserError
from envace.types import JSON, SampleRecord, ScoreRecord

RUNNER = "envace.bench.finmcp.run"
AGENT_KEY, SERVER_KEY = "FINMCP_AGENT_KEY", "FINMCP_SERVER_KEY"  # variables of the runner
LABELS = {"live": "own runner, live tools", "replay": "own runner, replay, not official"}


class FinMcp:
    """The benchmark `finmcp`."""

    name = "finmcp"
    subsets = default = tuple(SUBSETS.values())

    def spec(self, options: dict[str, JSON]) -> HarnessSpec:
        made = FinMcpOptions.of(options)
        # the client of tool servers; replay needs this interpreter only
        return HarnessSpec(
            name="finmcp",
            version=made.version,
            kind="pypi" if made.live else "none",
            lock="finmcp.lock" if made.live else "",
            imports=("mcp", "httpx") if made.live else (),
            label=LABELS[made.mode],
        )

    def plan(self, env: HarnessEnv, request: EvalRequest) -> list[HarnessJob]:
        """Fetches the hub's rows first, where they are not here yet."""
        options = FinMcpOptions.of(request.options)
        paths = files(options)
        rows = read(paths)
        if options.tools and not Path(options.tools).is_file():
            raise UserError(
                f"finmcp: options.tools {options.tools!r} is no file; correct it, or leave it empty"
            )
        # of the files a job reads: edited under the same name, they make it another job
        content = {"rows": digest(paths), "tools": digest([Path(options.tools)]) if options.tools else ""}
        settings = {"rows": list(map(str, paths)), "content": content}
        return [
            _job(env, request, options, settings, subset, tasks, trial)
            for subset in request.subsets
            for tasks in [chosen_of(rows, subset, options.tasks, request.limit, request.seed)]
            for trial in range(request.trials)
        ]

    def parse(self, env: HarnessEnv, request: EvalRequest, runs: Sequence[RawRun]) -> list[SampleRecord]:
        rows = {r.task: r for r in read(files(FinMcpOptions.of(request.options)))}
        return [s for run in runs for s in samples_of(run, request, rows)]

    def summarise(
        self,
        env: HarnessEnv,
        request: EvalRequest,
        samples: Sequence[SampleRecord],
        *,
        bootstrap: int = 2000,
        min_complete: float = 1.0,
        **identity: Unpack[Identity],
    ) -> list[ScoreRecord]:
        options = FinMcpOptions.of(request.options)
        paths = files(options)
        rows, data = {r.task: r for r in read(paths)}, digest(paths)
        origin = "file" if options.tools else "server" if options.live else "mined from gold calls"
        own = {"mode": options.mode, "tools": origin} | labels(request, data)
        whole = {r.subset for r in rows.values()} if options.is_local else self.subsets
        absent = [s for s in self.subsets if s in whole and s not in request.subsets]
        return records(
            request.subsets,
            samples,
            rows,
            absent=tuple(f"{s}: not asked for" for s in absent),
            bootstrap=bootstrap,
            min_complete=min_complete,
            **identity_of(env, request, data, identity, own),
        )


def chosen_of(
    rows: Sequence[FinMcpRow], subset: str, wanted: Sequence[str], limit: int, seed: int
) -> list[str]:
    """`limit` tasks of a subset by hash, in the order of the files. Raises UserError for one without rows."""
    ids = choose([r.id for r in rows if r.subset == subset], limit, seed, wanted)
    if not ids:
        has = ", ".join(sorted({r.subset for r in rows}))
        raise UserError(f"finmcp: no row is of subset {subset!r}; the rows are of {has}")
    return [f"{subset}/{i}" for i in ids]


def _job(
    env: HarnessEnv,
    request: EvalRequest,
    options: FinMcpOptions,
    shared: dict[str, JSON],
    subset: str,
    tasks: Sequence[str],
    trial: int,
) -> HarnessJob:
    name, agent = f"{subset}-{trial}", request.roles.agent
    server = None
    if options.live:
        server = {
            "url": options.mcp_url,
            "transport": options.mcp_transport,
            "key": SERVER_KEY if options.mcp_key_env else "",
            "timeout_s": options.mcp_timeout_s,
        }
    settings = {
        "rows": shared["rows"],
        "tasks": list(tasks),
        "out": str(request.out.resolve() / name / "samples.jsonl"),
        "seed": seed_of(request.seed, trial),
        "concurrency": request.concurrency,
        "max_calls": options.max_calls,
        "tools": str(Path(options.tools).resolve()) if options.tools else "",
        "content": shared["content"],
        "agent": chat_of(agent, AGENT_KEY, **thinking_body(request)),
        "server": server,
    }
    return driver_job(
        env,
        request,
        name,
        RUNNER,
        settings,
        [(t, trial) for t in tasks],
        asked={AGENT_KEY: agent},
        flags=("-m",),
        environ={
            "PYTHONPATH": str(Path(envace.__file__).resolve().parents[1]),
            "PYTHONUTF8": "1",
            "PYTHONDONTWRITEBYTECODE": "1",
        },
        secrets={SERVER_KEY: options.mcp_key_env} if options.live and options.mcp_key_env else {},
        reaches=(options.mcp_url,) if options.live else (),
    )
