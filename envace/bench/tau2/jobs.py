"""A request -> processes of tau²: one per subset with all its trials, and one that plays the agent that does
nothing.

Invariant: one process holds all trials of a subset, so that the seeds of the trials are those tau² derives
itself. Addresses stand as text in the job file and in `reaches`; keys are named by variable only.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from envace.bench.harness.planning import driver_job, endpoint_of, refuse_query, thinking_body
from envace.bench.harness.spec import EvalRequest, HarnessEnv, HarnessJob
from envace.bench.tau2.tasks import UNSPLIT, Tau2Options, Tau2Task
from envace.errors import UserError
from envace.types import JSON, Endpoint

DRIVER = Path(__file__).with_name("driver.py")
RESULTS = "raw/results.json"  # below a job's folder
FLOOR = "floor"
NOBODY = "openai/nobody"
# The user leaves before the agent has said a word; a judge that grades nothing is no score, which the floor
# counts 0.
MUTE: dict[str, JSON] = {"mock_response": "###STOP###", "temperature": 0.0}
NO_VERDICT: dict[str, JSON] = {"mock_response": '{"results": []}', "temperature": 0.0}
Asked = tuple[str, dict[str, JSON]]  # model as litellm is given it (the server sees no first part), settings


def play_job(
    env: HarnessEnv, request: EvalRequest, o: Tau2Options, subset: str, tasks: Sequence[Tau2Task]
) -> HarnessJob:
    """All trials of a subset in one process. Each role is asked with the settings of its own endpoint.

    A judge is asked only where a task is graded by one. Raises UserError for a role that is needed and
    absent.
    """
    roles = {"agent": request.roles.agent, "user": endpoint_of("tau2", request, "user")}
    if judged := sum(t.judged for t in tasks):
        why = f" for {subset}, which has {judged} tasks graded by a judge model (the fork's tasks need none)"
        roles["judge"] = endpoint_of("tau2", request, "judge", why)
    asked = {role: (f"openai/{e.model}", _settings(e, o)) for role, e in roles.items()}
    asked["agent"] = (asked["agent"][0], _settings(roles["agent"], o, thinking_body(request)))
    judge = asked.pop("judge", (NOBODY, {}))
    ids = [t.id for t in tasks]
    argv = _argv(o, subset, ids, request, request.out.resolve() / subset, asked, request.trials)
    planned = [(f"{subset}/{i}", trial) for i in ids for trial in range(request.trials)]
    return _job(env, request, o, subset, [argv], roles, judge, planned)


def floor_job(
    env: HarnessEnv, request: EvalRequest, o: Tau2Options, tasks: Mapping[str, Sequence[Tau2Task]]
) -> HarnessJob:
    """The agent that does nothing, in the harness's own environment and under its own graders; no model is
    asked.
    """
    asked = {"agent": (NOBODY, MUTE), "user": (NOBODY, MUTE)}
    runs = [
        _argv(o, subset, [t.id for t in owed], request, floor_folder(request, subset), asked, 1)
        for subset, owed in tasks.items()
    ]
    return _job(env, request, o, FLOOR, runs, {}, (NOBODY, NO_VERDICT), [])


def floor_folder(request: EvalRequest, subset: str) -> Path:
    return request.out.resolve() / FLOOR / subset


def _settings(e: Endpoint, o: Tau2Options, told: Mapping[str, JSON] | None = None) -> dict[str, JSON]:
    """What tau² hands to litellm with each request of a role."""
    top_k: dict[str, JSON] = {"top_k": e.sampling.top_k} if e.sampling.top_k > 0 else {}
    body = {**top_k, **(told or {}), **e.extra_body}
    return {
        "api_base": e.base_url,
        "timeout": o.request_s,
        "num_retries": o.request_retries,
        "temperature": e.sampling.temperature,
        "top_p": e.sampling.top_p,
        "max_tokens": e.sampling.max_tokens,
    } | ({"extra_body": body} if body else {})


def _argv(
    o: Tau2Options,
    subset: str,
    ids: Sequence[str],
    request: EvalRequest,
    folder: Path,
    asked: Mapping[str, Asked],
    trials: int,
) -> list[str]:
    """Arguments of `tau2 run`. The ids stand last: the option takes all that follows."""
    results = str((folder / RESULTS).parent)
    argv = ["run", "--domain", subset, "--num-trials", str(trials), "--seed", str(request.seed)]
    argv += ["--max-concurrency", str(request.concurrency), "--max-steps", str(o.max_steps)]
    for role, (model, settings) in asked.items():
        argv += [f"--{role}-llm", model, f"--{role}-llm-args", json.dumps(settings)]
    if o.is_fork:
        argv += ["--results-dir", results, "--save-to", "results", "--skip-failed-samples"]
        argv += ["--max-retries", str(o.request_retries)]  # the fork means requests by it
    else:
        argv += ["--save-to", results, "--auto-resume", "--max-retries", str(o.retries)]
    if subset == UNSPLIT:
        argv += ["--retrieval-config", o.retrieval]
    else:
        argv += ["--task-split-name", o.split]
    return [*argv, "--task-ids", *ids]


def _job(
    env: HarnessEnv,
    request: EvalRequest,
    o: Tau2Options,
    name: str,
    runs: list[list[str]],
    roles: Mapping[str, Endpoint],
    judge: Asked,
    planned: Sequence[tuple[str, int]],
) -> HarnessJob:
    """Raises UserError when one model at one address would need two keys: requests could not be
    told apart.
    """
    routes, keys = [], dict[tuple[str, str], str]()
    for role, e in roles.items():
        refuse_query("tau2", e)
        if keys.setdefault((e.model, e.base_url), e.key_env) != e.key_env:
            raise UserError(
                f"tau2: {e.model} at one address has two keys (key_env); give all its roles the same"
            )
        routes.append({"model": f"openai/{e.model}", "api_base": e.base_url, "variable": _variable(role)})
    settings = {
        "fork": o.is_fork,
        "runs": runs,
        "results": str(request.out.resolve() / name / RESULTS),
        "routes": routes,
        "judge": {"model": judge[0], "args": judge[1]},
        "concurrency": request.concurrency,
    }
    environ = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "COLUMNS": "120"}
    environ |= {} if o.is_fork else {"TAU2_DATA_DIR": str(env.source / "data")}
    asked = {_variable(role): e for role, e in roles.items()}
    return driver_job(env, request, name, DRIVER, settings, planned, asked=asked, environ=environ)


def _variable(role: str) -> str:
    return f"TAU2_{role.upper()}_KEY"
