"""The VitaBench adapter: what is run, and what its files are worth.

Invariant: one job per (domain, trial). Its folder is its own, its results file has an absolute path, and the
keys of the three roles reach the process by variables only.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Unpack

from envace.bench.harness import planning
from envace.bench.harness.spec import EvalRequest, HarnessEnv, HarnessJob, HarnessSpec, RawRun
from envace.bench.labels import identity_of, labels
from envace.bench.scoring import Scoring
from envace.bench.vita import scores, tasks
from envace.bench.vita.parse import samples_of
from envace.errors import UserError
from envace.types import JSON, SampleRecord, ScoreRecord

DRIVER = Path(__file__).with_name("driver.py")
FLAGS = {"agent": "--agent-llm", "user": "--user-llm", "judge": "--evaluator-llm"}


class Vita:
    """The benchmark `vita`."""

    name = "vita"
    asks = ("user", "judge")
    subsets = default = tuple(tasks.DOMAINS)

    def spec(self, options: dict[str, JSON]) -> HarnessSpec:
        return HarnessSpec(
            name="vita",
            version=tasks.REVISION,
            kind="git",
            uri=tasks.VitaOptions.of(options).uri,
            python="3.11",
            lock="vita.lock",
            imports=("vita.run", "vita.cli"),
        )

    def plan(self, env: HarnessEnv, request: EvalRequest) -> list[HarnessJob]:
        options, jobs = tasks.VitaOptions.of(request.options), []
        for subset in request.subsets:
            known = [str(t["id"]) for t in tasks.read_tasks(env, subset, options.language)]
            ids = planning.choose(known, request.limit, request.seed, options.tasks)
            if not ids:
                raise UserError(f"vita: none of options.tasks is a task of {subset}; correct the ids")
            jobs += [_job(env, request, options, subset, ids, trial) for trial in range(request.trials)]
        return jobs

    def parse(self, env: HarnessEnv, request: EvalRequest, runs: Sequence[RawRun]) -> list[SampleRecord]:
        return [sample for run in runs for sample in samples_of(run, request)]

    def summarise(
        self, env: HarnessEnv, request: EvalRequest, samples: Sequence[SampleRecord], **how: Unpack[Scoring]
    ) -> list[ScoreRecord]:
        options, played, floors = tasks.VitaOptions.of(request.options), {s.task for s in samples}, {}
        for subset in request.subsets:  # an agent that does nothing wins where nothing is to be done
            known = tasks.read_tasks(env, subset, options.language)
            won = [tasks.without_work(t) for t in known if f"{subset}/{t['id']}" in played]
            floors[subset] = sum(won) / max(len(won), 1)
        data = tasks.data_hash(request.subsets, options.language)
        own = {"language": options.language, "seeds": "sent" if options.send_seed else "not sent"}
        own |= labels(request, data, user=True, judge=True)
        return scores.records(
            request.subsets,
            samples,
            floors,
            absent=tuple(s for s in tasks.DOMAINS if s not in request.subsets),
            **identity_of(env, request, data, how, own),
        )


def _job(
    env: HarnessEnv, request: EvalRequest, options: tasks.VitaOptions, subset: str, ids: list[str], trial: int
) -> HarnessJob:
    roles = {role: planning.endpoint_of("vita", request, role) for role in FLAGS}
    name, seed = f"{subset}-{trial}", planning.seed_of(request.seed, trial)
    folder = request.out.resolve() / name
    results, variables = str(folder / "results.json"), {r: f"VITA_{r.upper()}_KEY" for r in roles}
    # upstream knows a model by name only, and two roles may name the same
    named = {role: f"{role}/{endpoint.model}" for role, endpoint in roles.items()}
    argv = ["run", "--domain", tasks.DOMAINS[subset][0], "--language", options.language, "--num-trials", "1"]
    argv += [word for role, flag in FLAGS.items() for word in (flag, named[role])]
    argv += ["--max-steps", str(options.max_steps), "--max-concurrency", str(request.concurrency)]
    argv += ["--seed", str(seed), "--log-level", "WARNING", "--save-to", results, "--task-ids", *ids]
    argv += ["--enable-think"] if request.thinking else []
    told = {"agent": planning.thinking_body(request)}
    models = [
        {"name": named[r], "base_url": r, "headers": {}, "temperature": e.sampling.temperature}
        for r, e in roles.items()
    ]
    settings = {
        "argv": argv,
        "results": results,
        "attempts": str(folder / "attempts.jsonl"),
        "seed": seed,
        "send_seed": options.send_seed,
        "roles": {r: planning.chat_of(e, variables[r], **told.get(r, {})) for r, e in roles.items()},
    }
    environ = {
        "VITA_MODEL_CONFIG_PATH": str(folder / "models.yaml"),
        "PYTHON_DOTENV_DISABLED": "1",  # upstream would read any .env file of a parent folder
        "PYTHONUTF8": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        "COLUMNS": "160",
    }
    return planning.driver_job(
        env,
        request,
        name,
        DRIVER,
        settings,
        [(f"{subset}/{i}", trial) for i in ids],
        asked={variables[r]: e for r, e in roles.items()},
        files={"models.yaml": json.dumps({"default": {}, "models": models}, indent=1)},  # JSON is YAML
        environ=environ,
        tally=("results.json", '"termination_reason"'),
    )
