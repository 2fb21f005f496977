"""tau²-Bench as an adapter: one process per subset with all its trials, and one that plays the agent that
does nothing.

Invariant: nothing here starts a process or imports tau². The seeds of the trials are those tau² derives
itself. Keys are named by variable only; scores carry revision, source, tasks, user and judge in `harness`,
`data_hash`, `versions`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Unpack

from envace.bench.harness.planning import check_room, driver_job, endpoint_of, refuse_query, thinking_body
from envace.bench.harness.spec import EvalRequest, HarnessEnv, HarnessJob, HarnessSpec, RawRun
from envace.bench.labels import identity_of, labels
from envace.bench.scoring import Scoring
from envace.bench.tau2 import tasks
from envace.bench.tau2.parse import parse_folder
from envace.bench.tau2.scores import Tau2Domain, average_scores, domain_scores
from envace.bench.tau2.tasks import Tau2Options, Tau2Task
from envace.errors import UserError
from envace.types import JSON, Endpoint, SampleRecord, ScoreRecord

DRIVER = Path(__file__).with_name("driver.py")
RAW, FLOOR, NOBODY = "raw", "floor", "openai/nobody"
# The user leaves before the agent has said a word; a judge that grades nothing is no score, which the floor
# counts 0.
MUTE: dict[str, JSON] = {"mock_response": "###STOP###", "temperature": 0.0}
NO_VERDICT: dict[str, JSON] = {"mock_response": '{"results": []}', "temperature": 0.0}
Asked = tuple[str, dict[str, JSON]]  # model as litellm is given it (the server sees no first part), settings


class Tau2:
    """The benchmark `tau2`, from upstream's repository or from the package fork."""

    name = "tau2"
    asks = ("user", "judge")
    subsets = tasks.SUBSETS
    default = tasks.AVERAGED

    def spec(self, options: dict[str, JSON]) -> HarnessSpec:
        return tasks.spec(Tau2Options.of(options))

    def plan(self, env: HarnessEnv, request: EvalRequest) -> list[HarnessJob]:
        o = Tau2Options.of(request.options)
        check_room("tau2", request.roles.agent)
        owed = tasks.owed(env, request, o)
        jobs = [_play_job(env, request, o, subset, own) for subset, own in owed.items()]
        if o.floor and owed:  # in the harness's own environment and under its own graders; no model is asked
            nobody = {"agent": (NOBODY, MUTE), "user": (NOBODY, MUTE)}
            runs = [
                _argv(o, subset, own, request, _floor_folder(request, subset), nobody, 1)
                for subset, own in owed.items()
            ]
            jobs.append(_job(env, request, o, FLOOR, runs, {}, (NOBODY, NO_VERDICT), []))
        return jobs

    def parse(self, env: HarnessEnv, request: EvalRequest, runs: Sequence[RawRun]) -> list[SampleRecord]:
        played = [run for run in runs if run.job.planned]  # the floor owes none
        return [r for run in played for r in parse_folder(run.folder / RAW, run.job.name, run.job.planned)]

    def summarise(
        self, env: HarnessEnv, request: EvalRequest, samples: Sequence[SampleRecord], **how: Unpack[Scoring]
    ) -> list[ScoreRecord]:
        o = Tau2Options.of(request.options)
        reasons = [reason for subset in request.subsets if (reason := tasks.unavailable(o, subset))]
        gate = {name: how.pop(name) for name in ("bootstrap", "min_complete") if name in how}
        how["skipped"] = (*how.get("skipped", ()), *reasons)
        domains = []
        for name, own in tasks.owed(env, request, o).items():
            data, nothing = tasks.data_hash(env, o, name), floor(request, name)
            versions = labels(request, data, user=True, judge=any(t.judged for t in own)) | {
                "tau2": env.spec.label or env.spec.version,
                "tau2_source": o.source,
                "tau2_split": o.split,
                "tau2_basis": "; ".join(sorted({"+".join(t.basis) for t in own})),
            }
            if name == tasks.UNSPLIT:
                versions["tau2_retrieval"] = o.retrieval
            if o.floor and nothing is None:
                versions["tau2_floor"] = "could not be played, see the log of the job floor"
            domains.append(
                Tau2Domain(
                    name=name,
                    samples=[s for s in samples if s.task.split("/", 1)[0] == name],
                    trials=request.trials,
                    floor=nothing,
                    identity=identity_of(env, request, data, how, versions),
                )
            )
        absent = {name: tasks.unavailable(o, name) or f"{name}: not asked for" for name in tasks.AVERAGED}
        scores = [record for d in domains for record in domain_scores(d, **gate)]
        return [*scores, *average_scores(domains, absent, **gate)]


def floor(request: EvalRequest, name: str) -> float | None:
    """Reward of the agent that does nothing on the same tasks, or None where it was not played.

    It has said nothing that a judge could find right, so a task with sentences to judge counts 0.
    """
    played = parse_folder(_floor_folder(request, name) / RAW, name)
    return sum(s.reward or 0.0 for s in played) / len(played) if played else None


def _floor_folder(request: EvalRequest, subset: str) -> Path:
    return request.out.resolve() / FLOOR / subset


def _play_job(
    env: HarnessEnv, request: EvalRequest, o: Tau2Options, subset: str, owed: Sequence[Tau2Task]
) -> HarnessJob:
    """Each role is asked with the settings of its own endpoint, a judge only where a task is graded by one.

    Raises UserError for a role that is needed and absent.
    """
    roles = {"agent": request.roles.agent, "user": endpoint_of("tau2", request, "user")}
    if judged := sum(t.judged for t in owed):
        why = f" for {subset}, which has {judged} tasks graded by a judge model (the fork's tasks need none)"
        roles["judge"] = endpoint_of("tau2", request, "judge", why)
    asked = {}
    for role, e in roles.items():
        body = {"top_k": e.sampling.top_k} if e.sampling.top_k > 0 else {}
        body |= (thinking_body(request) if role == "agent" else {}) | e.extra_body
        settings = {"api_base": e.base_url, "timeout": o.request_s, "num_retries": o.request_retries}
        settings |= {"temperature": e.sampling.temperature, "top_p": e.sampling.top_p}
        settings |= {"max_tokens": e.sampling.max_tokens} | ({"extra_body": body} if body else {})
        asked[role] = (f"openai/{e.model}", settings)
    judge = asked.pop("judge", (NOBODY, {}))
    argv = _argv(o, subset, owed, request, request.out.resolve() / subset, asked, request.trials)
    planned = [(f"{subset}/{t.id}", trial) for t in owed for trial in range(request.trials)]
    return _job(env, request, o, subset, [argv], roles, judge, planned)


def _argv(
    o: Tau2Options,
    subset: str,
    owed: Sequence[Tau2Task],
    request: EvalRequest,
    folder: Path,
    asked: Mapping[str, Asked],
    trials: int,
) -> list[str]:
    """Arguments of `tau2 run`. The ids stand last: the option takes all that follows."""
    results = str(folder / RAW)
    argv = ["run", "--domain", subset, "--num-trials", str(trials), "--seed", str(request.seed)]
    argv += ["--max-concurrency", str(request.concurrency), "--max-steps", str(o.max_steps)]
    for role, (model, settings) in asked.items():
        argv += [f"--{role}-llm", model, f"--{role}-llm-args", json.dumps(settings)]
    if o.is_fork:
        argv += ["--results-dir", results, "--save-to", "results", "--skip-failed-samples"]
        argv += ["--max-retries", str(o.request_retries)]  # the fork means requests by it
    else:
        argv += ["--save-to", results, "--auto-resume", "--max-retries", str(o.retries)]
    choice = (
        ("--retrieval-config", o.retrieval) if subset == tasks.UNSPLIT else ("--task-split-name", o.split)
    )
    return [*argv, *choice, "--task-ids", *(t.id for t in owed)]


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
    """Raises UserError when one model at one address would need two keys: requests look alike."""
    variables, keys = {role: f"TAU2_{role.upper()}_KEY" for role in roles}, dict[tuple[str, str], str]()
    for e in roles.values():
        refuse_query("tau2", e)
        if keys.setdefault((e.model, e.base_url), e.key_env) != e.key_env:
            same = "one address has two keys (key_env); give all its roles the same"
            raise UserError(f"tau2: {e.model} at {same}")
    routes = {role: {"model": f"openai/{e.model}", "api_base": e.base_url} for role, e in roles.items()}
    settings = {
        "fork": o.is_fork,
        "runs": runs,
        "results": str(request.out.resolve() / name / RAW / "results.json"),
        "routes": [route | {"variable": variables[role]} for role, route in routes.items()],
        "judge": {"model": judge[0], "args": judge[1]},
        "concurrency": request.concurrency,
    }
    environ = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "COLUMNS": "120"}
    environ |= {} if o.is_fork else {"TAU2_DATA_DIR": str(env.source / "data")}
    asked = {variables[role]: e for role, e in roles.items()}
    how = {"asked": asked, "environ": environ, "tally": (f"{RAW}/results.json", '"termination_reason"')}
    return driver_job(env, request, name, DRIVER, settings, planned, **how)
