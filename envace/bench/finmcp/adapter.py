"""The FinMCP-Bench adapter: the published protocol, run by our own runner in a process of its own.

Invariant: upstream has no program to pin, so the pin is the data set's revision and the runner is this
project's; replayed tool replies are labelled "replay, not official" in every score. Names are compared with
the gold conversation here, not in the runner; a conversation that broke off for the agent's fault misses all
its gold calls, for another's has no score. A call left in the text unread is the agent's fault; upstream
takes the text for an answer, and `upstream_*` count so.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Unpack

import envace
from envace.bench.finmcp.data import FinMcpOptions, files
from envace.bench.finmcp.rows import SUBSETS, UNREAD, FinMcpRow, digest, read
from envace.bench.finmcp.scores import COUNTS, counts, nothing, records
from envace.bench.harness.answers import LEFT_IN_TEXT, read_rows
from envace.bench.harness.planning import chat_of, choose, driver_job, seed_of, thinking_body
from envace.bench.harness.spec import EvalRequest, HarnessEnv, HarnessJob, HarnessSpec, RawRun
from envace.bench.labels import identity_of, labels
from envace.bench.scoring import Scoring
from envace.errors import UserError
from envace.io.redact import Redactor
from envace.types import JSON, SampleRecord, SampleStatus, ScoreRecord

RUNNER = "envace.bench.finmcp.run"
AGENT_KEY, SERVER_KEY = "FINMCP_AGENT_KEY", "FINMCP_SERVER_KEY"  # variables of the runner
LABELS = {"live": "own runner, live tools", "replay": "own runner, replay, not official"}
NAMED = 200  # characters of an error that a record quotes


class FinMcp:
    """The benchmark `finmcp`."""

    name = "finmcp"
    asks = ()
    subsets = default = tuple(SUBSETS.values())

    def spec(self, options: dict[str, JSON]) -> HarnessSpec:
        made = FinMcpOptions.of(options)
        # live: the client of tool servers; replay needs this interpreter only
        return HarnessSpec(
            name="finmcp",
            version="local" if made.is_local else made.revision,
            kind="pypi" if made.live else "none",
            lock="finmcp.lock" if made.live else "",
            imports=("mcp", "httpx") if made.live else (),
            label=LABELS[made.mode],
        )

    def plan(self, env: HarnessEnv, request: EvalRequest) -> list[HarnessJob]:
        """Fetches the hub's rows first, where they are not here yet."""
        options = FinMcpOptions.of(request.options)
        paths, own = files(options), [Path(options.tools)] if options.tools else []
        rows = read(paths)
        if own and not own[0].is_file():
            raise UserError(
                f"finmcp: options.tools {options.tools!r} is no file; correct it, or leave it empty"
            )
        # of the files a job reads: edited under the same name, they make it another job
        content = {"rows": digest(paths), "tools": digest(own) if own else ""}
        shared = {
            "rows": list(map(str, paths)),
            "tools": str(own[0].resolve()) if own else "",
            "content": content,
        }
        return [
            _job(env, request, options, shared, subset, tasks, trial)
            for subset in request.subsets
            for tasks in [chosen_of(rows, subset, options.tasks, request.limit, request.seed)]
            for trial in range(request.trials)
        ]

    def parse(self, env: HarnessEnv, request: EvalRequest, runs: Sequence[RawRun]) -> list[SampleRecord]:
        rows = {r.task: r for r in read(files(FinMcpOptions.of(request.options)))}
        return [s for run in runs for s in samples_of(run, request, rows)]

    def summarise(
        self, env: HarnessEnv, request: EvalRequest, samples: Sequence[SampleRecord], **how: Unpack[Scoring]
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
            **identity_of(env, request, data, how, own),
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
    name, key, server = f"{subset}-{trial}", options.mcp_key_env if options.live else "", None
    if options.live:
        server = {"url": options.mcp_url, "transport": options.mcp_transport}
        server |= {"key": SERVER_KEY if key else "", "timeout_s": options.mcp_timeout_s}
    settings = {
        "rows": shared["rows"],
        "tasks": list(tasks),
        "out": str(request.out.resolve() / name / "samples.jsonl"),
        "seed": seed_of(request.seed, trial),
        "concurrency": request.concurrency,
        "max_calls": options.max_calls,
        "tools": shared["tools"],
        "content": shared["content"],
        "agent": chat_of(request.roles.agent, AGENT_KEY, **thinking_body(request)),
        "server": server,
    }
    here = str(Path(envace.__file__).resolve().parents[1])
    return driver_job(
        env,
        request,
        name,
        RUNNER,
        settings,
        [(t, trial) for t in tasks],
        asked={AGENT_KEY: request.roles.agent},
        flags=("-m",),
        environ={"PYTHONPATH": here, "PYTHONUTF8": "1", "PYTHONDONTWRITEBYTECODE": "1"},
        secrets={SERVER_KEY: key} if key else {},
        reaches=(options.mcp_url,) if options.live else (),
        tally=("samples.jsonl", "\n"),
    )


def samples_of(run: RawRun, request: EvalRequest, rows: Mapping[str, FinMcpRow]) -> Iterator[SampleRecord]:
    """One record for each planned conversation that was played; its last line counts."""
    names = [request.roles.agent.key_env, str(request.options.get("mcp_key_env") or "")]
    clean = Redactor([{"key_env": n} for n in names])
    played = {line["task"]: line for line in read_rows(run.folder / "samples.jsonl")}
    for task, trial in run.job.planned:
        if task in played:
            line = played[task]
            status, error, metrics = _judged(line, rows[task].gold)
            yield SampleRecord(
                task=task,
                trial=trial,
                seed=seed_of(request.seed, trial),
                status=status,
                reward=metrics.get("reward"),
                metrics=metrics,
                stop="call_budget" if "call_budget" in line["stops"] else (line["stops"] or [""])[-1],
                error=clean.text(error)[:NAMED],
            )


def _judged(line: dict[str, JSON], gold: list[list[str]]) -> tuple[SampleStatus, str, dict[str, float]]:
    """Status, named cause and numbers of a line."""
    status, error = SampleStatus(line["status"]), line["error"]
    if status is SampleStatus.INFRA_FAILURE:
        return status, error, {}
    played, unread = counts(gold, line["groups"]), line["stops"].count(UNREAD)
    cost = {"malformed": float(unread), "calls": float(sum(map(len, line["groups"])))}
    cost |= {"steps": float(line["replies"]), **{k: float(line[k]) for k in ("tokens", "seconds")}}
    if status is SampleStatus.AGENT_FAILURE:  # the published scorer leaves rows with an error out
        return status, error, nothing(gold) | cost
    cost["upstream"] = played["f1"]
    if unread:  # and takes the text for an answer
        as_printed = {f"upstream_{c}": played[c] for c in COUNTS}
        error = f"agent: {UNREAD} ({LEFT_IN_TEXT})"
        return SampleStatus.AGENT_FAILURE, error, nothing(gold) | cost | as_printed
    return status, error, played | cost | {"reward": played["f1"]}
