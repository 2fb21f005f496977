"""The VitaBench adapter: what is run, and what its files mean.

Flows in: an `EvalRequest`. Flows out: one job a (domain, trial), sample records, score records.
Invariant: a job's folder is its own, its results file has an absolute path, and the keys of the three roles reach
the process by variables only.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from envace.bench.harness.planning import chat_of, seed_of, thinking_body
from envace.bench.harness.spec import EvalRequest, HarnessEnv, HarnessSpec, Job, RawRun
from envace.bench.labels import labels
from envace.bench.vita import parse, scores
from envace.bench.vita.source import (
    DOMAINS,
    Options,
    chosen,
    data_hash,
    read_tasks,
    spec_of,
    task_file,
    without_work,
)
from envace.errors import UserError
from envace.types import JSON, Endpoint, SampleRecord, ScoreRecord

DRIVER = Path(__file__).with_name("driver.py")
ROLES = ("agent", "user", "judge")


class Vita:
    name = "vita"
    subsets = default = tuple(DOMAINS)

    def spec(self, options: dict[str, JSON]) -> HarnessSpec:
        return spec_of(Options.of(options))

    def plan(self, env: HarnessEnv, request: EvalRequest) -> list[Job]:
        options = Options.of(request.options)
        roles = _roles(request)
        jobs = []
        for subset in request.subsets:
            ids = [str(t["id"]) for t in read_tasks(task_file(env, subset, options.language))]
            ids = chosen(ids, options.tasks, request.limit, request.seed)
            if not ids:
                raise UserError(f"vita: none of options.tasks is a task of {subset}; correct the ids")
            jobs += [_job(env, request, options, roles, subset, ids, t) for t in range(request.trials)]
        return jobs

    def parse(self, env: HarnessEnv, request: EvalRequest, runs: Sequence[RawRun]) -> list[SampleRecord]:
        return [sample for run in runs for sample in parse.samples_of(run, request)]

    def summarise(
        self, env: HarnessEnv, request: EvalRequest, samples: Sequence[SampleRecord], **identity: Any
    ) -> list[ScoreRecord]:
        options = Options.of(request.options)
        floors = {s: _floor(env, s, options, samples) for s in request.subsets}
        data = data_hash(request.subsets, options.language)
        own = {"language": options.language, "seeds": "sent" if options.send_seed else "not sent"}
        own |= labels(request, data, user=True, judge=True)
        known = {"harness": env.identity, "variant": request.variant, "seed": request.seed, "data_hash": data}
        identity = known | identity
        identity["versions"] = dict(identity.get("versions") or {}) | own
        return scores.records(request.subsets, samples, floors, absent=_absent(request), **identity)


def _roles(request: EvalRequest) -> dict[str, Endpoint]:
    roles = {name: getattr(request.roles, name) for name in ROLES}
    for name, endpoint in roles.items():
        if endpoint is None:
            raise UserError(f"vita needs a {name} endpoint; name one (it may be the agent's own server)")
    return roles


def _absent(request: EvalRequest) -> tuple[str, ...]:
    return tuple(s for s in DOMAINS if s not in request.subsets)


def _floor(env: HarnessEnv, subset: str, options: Options, samples: Sequence[SampleRecord]) -> float:
    """Share of the tasks that a judge who credits only what was done would give an agent that does nothing."""
    used = {s.task.partition("/")[2] for s in samples if s.task.startswith(subset + "/")}
    tasks = [t for t in read_tasks(task_file(env, subset, options.language)) if str(t["id"]) in used]
    return sum(map(without_work, tasks)) / max(len(tasks), 1)


def _job(
    env: HarnessEnv,
    request: EvalRequest,
    options: Options,
    roles: dict[str, Endpoint],
    subset: str,
    ids: list[str],
    trial: int,
) -> Job:
    name = f"{subset}-{trial}"
    folder = request.out.resolve() / name
    files = {
        "models.yaml": json.dumps(_models(roles), indent=1),  # JSON is YAML
        "job.json": json.dumps(_driven(request, options, roles, subset, ids, trial, folder), indent=1),
    }
    return Job(
        name=name,
        argv=(str(env.python), "-P", str(DRIVER), str(folder / "job.json")),
        env={
            "VITA_MODEL_CONFIG_PATH": str(folder / "models.yaml"),
            "PYTHON_DOTENV_DISABLED": "1",  # upstream would read any .env file of a parent folder
            "PYTHONUTF8": "1",
            "PYTHONDONTWRITEBYTECODE": "1",
            "COLUMNS": "160",
        },
        secrets={_variable(r): e.key_env for r, e in roles.items() if e.key_env},
        files=files,
        planned=tuple((f"{subset}/{i}", trial) for i in ids),
        reaches=tuple(dict.fromkeys(e.base_url.rstrip("/") for e in roles.values())),
        goes_on=True,  # the driver takes up an unfinished results file
        deadline_s=request.deadline_s,
    )


def _variable(role: str) -> str:
    return f"VITA_{role.upper()}_KEY"


def _alias(role: str, endpoint: Endpoint) -> str:
    return f"{role}/{endpoint.model}"  # upstream knows a model by name only: two roles may name the same


def _models(roles: dict[str, Endpoint]) -> dict[str, JSON]:
    models = [
        {"name": _alias(r, e), "base_url": r, "headers": {}, "temperature": e.sampling.temperature}
        for r, e in roles.items()
    ]
    return {"default": {}, "models": models}


def _driven(
    request: EvalRequest,
    options: Options,
    roles: dict[str, Endpoint],
    subset: str,
    ids: list[str],
    trial: int,
    folder: Path,
) -> dict[str, JSON]:
    seed = seed_of(request.seed, trial)
    results = str(folder / "results.json")
    argv = ["run", "--domain", DOMAINS[subset][0], "--language", options.language, "--num-trials", "1"]
    for role, flag in (("agent", "--agent-llm"), ("user", "--user-llm"), ("judge", "--evaluator-llm")):
        argv += [flag, _alias(role, roles[role])]
    argv += ["--max-steps", str(options.max_steps), "--max-concurrency", str(request.concurrency)]
    argv += ["--seed", str(seed), "--log-level", "WARNING", "--save-to", results, "--task-ids", *ids]
    argv += ["--enable-think"] if request.thinking else []
    return {
        "argv": argv,
        "results": results,
        "attempts": str(folder / "attempts.jsonl"),
        "seed": seed,
        "send_seed": options.send_seed,
        "roles": {
            r: chat_of(e, _variable(r), **(thinking_body(request) if r == "agent" else {}))
            for r, e in roles.items()
        },
    }
