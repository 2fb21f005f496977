"""A request -> processes of tau²: one a subset with all its trials, and one that plays the agent that does nothing.

Flows in: a built harness, a request, the tasks it owes. Flows out: `Job`s whose planned samples are the whole
evaluation.
Invariant: one process holds all trials of a subset, so that the seeds of the trials are those tau² derives
itself. Addresses stand as text in the job file and in `reaches`; keys are named by variable only.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from envace.bench.harness.planning import refuse_query, thinking_body
from envace.bench.harness.spec import EvalRequest, HarnessEnv, Job
from envace.bench.tau2.sources import Options
from envace.bench.tau2.tasks import TaskInfo
from envace.errors import UserError
from envace.types import Endpoint

DRIVER = Path(__file__).with_name("driver.py")
RESULTS = "raw/results.json"  # below a job's folder
FLOOR = "floor"
JOB_FILE = "job.json"
MUTE = {"mock_response": "###STOP###"}  # the user leaves before the agent has said a word
NO_VERDICT = {
    "mock_response": '{"results": []}'
}  # a judge that grades nothing: parsed as no score, which the floor counts 0


def play_job(
    env: HarnessEnv, request: EvalRequest, o: Options, subset: str, tasks: Sequence[TaskInfo]
) -> Job:
    """All trials of a subset in one process. Each role is asked with the settings of its own endpoint."""
    roles = {
        "agent": request.roles.agent,
        "user": _needed(request.roles.user),
        "judge": _judge(request, subset, tasks),
    }
    args = {
        "agent": model_args(
            request.roles.agent, o, **_sampling(request.roles.agent, **thinking_body(request))
        ),
        "user": model_args(roles["user"], o, **_sampling(roles["user"])),
        "judge": model_args(roles["judge"], o, **_sampling(roles["judge"])) if roles["judge"] else {},
    }
    folder = request.out.resolve() / subset
    argv = _argv(o, subset, [t.id for t in tasks], request, folder, models(request), args)
    return _job(env, request, o, subset, [argv], roles, args["judge"], [t.id for t in tasks])


def floor_job(
    env: HarnessEnv, request: EvalRequest, o: Options, tasks: Mapping[str, Sequence[TaskInfo]]
) -> Job:
    """The agent that does nothing, in the harness's own environment and under its own graders; no model is asked."""
    args = {"agent": {**MUTE, "temperature": 0.0}, "user": {**MUTE, "temperature": 0.0}}
    named = {"agent": "openai/nobody", "user": "openai/nobody"}
    runs = [
        _argv(o, subset, [t.id for t in owed], request, floor_folder(request, subset), named, args, trials=1)
        for subset, owed in tasks.items()
    ]
    return _job(env, request, o, FLOOR, runs, {}, {**NO_VERDICT, "temperature": 0.0}, [])


def floor_folder(request: EvalRequest, subset: str) -> Path:
    return request.out.resolve() / FLOOR / subset


def models(request: EvalRequest) -> dict[str, str]:
    """Role -> the name litellm is given; the server sees it without the first part."""
    roles = request.roles
    asked = {"agent": roles.agent, "user": roles.user, "judge": roles.judge}
    return {role: f"openai/{endpoint.model}" for role, endpoint in asked.items() if endpoint}


def model_args(endpoint: Endpoint, o: Options, **sampling: Any) -> dict[str, Any]:
    """What tau² hands to litellm with each request of a role."""
    args = {
        "api_base": endpoint.base_url,
        "timeout": o.request_s,
        "num_retries": o.request_retries,
        **sampling,
    }
    body = {**args.pop("extra_body", {}), **endpoint.extra_body}
    return args | ({"extra_body": body} if body else {})


def _sampling(endpoint: Endpoint, **more: Any) -> dict[str, Any]:
    s = endpoint.sampling
    body = {"top_k": s.top_k, **more} if s.top_k > 0 else more
    return {"temperature": s.temperature, "top_p": s.top_p, "max_tokens": s.max_tokens, "extra_body": body}


def _argv(
    o: Options,
    subset: str,
    ids: Sequence[str],
    request: EvalRequest,
    folder: Path,
    named: Mapping[str, str],
    args: Mapping[str, Any],
    trials: int = 0,
) -> list[str]:
    """Arguments of `tau2 run`. The ids stand last: the option takes all that follows."""
    results = (folder / RESULTS).parent
    argv = [
        "run",
        "--domain",
        subset,
        "--num-trials",
        str(trials or request.trials),
        "--seed",
        str(request.seed),
    ]
    argv += ["--max-concurrency", str(request.concurrency), "--max-steps", str(o.max_steps)]
    argv += ["--agent-llm", named["agent"], "--agent-llm-args", json.dumps(args["agent"])]
    argv += ["--user-llm", named["user"], "--user-llm-args", json.dumps(args["user"])]
    if o.source == "fork":
        argv += ["--results-dir", str(results), "--save-to", "results", "--skip-failed-samples"]
        argv += ["--max-retries", str(o.request_retries)]  # the fork means requests by it
    else:
        argv += ["--save-to", str(results), "--auto-resume", "--max-retries", str(o.retries)]
    if subset == "banking_knowledge":
        argv += ["--retrieval-config", o.retrieval]
    else:
        argv += ["--task-split-name", o.split]
    return [*argv, "--task-ids", *ids]


def _job(
    env: HarnessEnv,
    request: EvalRequest,
    o: Options,
    name: str,
    runs: list[list[str]],
    roles: Mapping[str, Endpoint | None],
    judge_args: dict[str, Any],
    ids: Sequence[str],
) -> Job:
    asked = {role: e for role, e in roles.items() if e}
    for endpoint in asked.values():
        refuse_query("tau2", endpoint)
    plan = {
        "fork": o.source == "fork",
        "runs": runs,
        "results": str(request.out.resolve() / name / RESULTS),
        "routes": _routes(asked, request),
        "judge": {
            "model": models(request)["judge"] if "judge" in asked else "openai/nobody",
            "args": judge_args,
        },
        "concurrency": request.concurrency,
    }
    environment = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "COLUMNS": "120"}
    if o.source != "fork":
        environment["TAU2_DATA_DIR"] = str(env.source / "data")
    return Job(
        name=name,
        argv=(str(env.python), "-P", str(DRIVER), str(request.out.resolve() / name / JOB_FILE)),
        env=environment,
        secrets={_variable(role): e.key_env for role, e in asked.items() if e.key_env},
        files={JOB_FILE: json.dumps(plan, indent=1)},
        planned=tuple((f"{name}/{i}", trial) for i in ids for trial in range(request.trials)),
        reaches=tuple(dict.fromkeys(e.base_url for e in asked.values())),
        goes_on=True,
        deadline_s=request.deadline_s,
    )


def _routes(asked: Mapping[str, Endpoint], request: EvalRequest) -> list[dict[str, str]]:
    """Raises UserError when one model at one address would need two keys: requests could not be told apart."""
    keys: dict[tuple[str, str], str] = {}
    routes = []
    for role, endpoint in asked.items():
        where = (models(request)[role], endpoint.base_url)
        if keys.setdefault(where, endpoint.key_env) != endpoint.key_env:
            raise UserError(
                f"tau2: {endpoint.model} at one address has two keys (key_env); give all its roles the same"
            )
        routes.append({"model": where[0], "api_base": where[1], "variable": _variable(role)})
    return routes


def _variable(role: str) -> str:
    return f"TAU2_{role.upper()}_KEY"


def check_room(agent: Endpoint) -> None:
    """An answer longer than the context would make every request an overflow, and each would count against the agent."""
    if agent.sampling.max_tokens >= agent.context:
        raise UserError(
            f"tau2: max_tokens {agent.sampling.max_tokens} leaves no room for a prompt in a context of {agent.context}"
        )


def _needed(user: Endpoint | None) -> Endpoint:
    if user is None:
        raise UserError("tau2 needs a user simulator: give the role user an endpoint (eval.roles.user)")
    return user


def _judge(request: EvalRequest, subset: str, tasks: Sequence[TaskInfo]) -> Endpoint | None:
    """Only where a task is graded by it. Raises UserError when it is needed and absent."""
    judged = sum(t.judged for t in tasks)
    if judged and request.roles.judge is None:
        raise UserError(
            f"tau2's {subset} has {judged} tasks graded by a judge model: give the role judge an endpoint (eval.roles.judge), "
            "or use the fork, whose tasks need none"
        )
    return request.roles.judge if judged else None
