"""BFCL-v4 as a benchmark of the harness runner.

Flows in: options and a request. Flows out: jobs, one a category and trial; sample and score records.
Invariant: each job is a process and a project root of its own, because BFCL keeps the state of its simulated
backends in module globals under the entry's id. The model is registered under one fixed name.

Options: `version` (a key of pins.VERSIONS), `serpapi_key_env` (variable with the key of the search service) and
`open_network` for web search, `vector_model` (folder of a hub cache that holds all-MiniLM-L6-v2) for memory_vector,
`request_timeout_s`, `retries`, and `template_kwargs: false` for endpoints that refuse chat_template_kwargs.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from envace.bench.bfcl import categories, questions
from envace.bench.bfcl.parse import read_job, records
from envace.bench.bfcl.pins import NEWEST, VERSIONS
from envace.bench.bfcl.scores import score_records
from envace.bench.harness.planning import refuse_query, thinking_body
from envace.bench.harness.spec import EvalRequest, HarnessEnv, HarnessSpec, Job, RawRun
from envace.bench.labels import labels
from envace.errors import UserError
from envace.track.redact import Redactor
from envace.types import JSON, SampleRecord, ScoreRecord, to_json

DRIVER = Path(__file__).with_name("driver.py")
VECTOR_MODEL = "models--sentence-transformers--all-MiniLM-L6-v2"
NO_KEY = "none"  # the client insists on one


class Bfcl:
    """Adapter of spec.Adapter."""

    name = "bfcl"
    subsets = tuple(dict.fromkeys((*categories.GROUPS, *categories.GROUPS["all"])))
    default = categories.DEFAULT

    def spec(self, options: dict[str, JSON]) -> HarnessSpec:
        version = str(options.get("version", NEWEST))
        if version not in VERSIONS:
            raise UserError(f"bfcl has no pinned version {version!r}; known are {', '.join(VERSIONS)}")
        pin = VERSIONS[version]
        return HarnessSpec(
            name="bfcl", version=version, kind="pypi", python="3.11", lock=pin.lock,
            imports=("bfcl_eval.__main__",),
            data={f"{questions.DATA.as_posix()}/{file}": sha for file, sha in pin.data.items()},
        )  # fmt: skip

    def plan(self, env: HarnessEnv, request: EvalRequest) -> list[Job]:
        _check_room(request)
        return [
            _job(env, request, category, ids, trial)
            for category, ids in _Chosen(env, request).ids.items()
            for trial in range(request.trials)
        ]

    def parse(self, env: HarnessEnv, request: EvalRequest, runs: Sequence[RawRun]) -> list[SampleRecord]:
        redact = Redactor(to_json(request.roles.agent)).text
        made = []
        for run in runs:
            tasks, trials = zip(*run.job.planned)
            category = tasks[0].split("/", 1)[0]
            ids = [t.split("/", 1)[1] for t in tasks]
            found = read_job(run.folder, category)
            made += records(found, category, ids, trials[0], _seed(request, trials[0]), redact)
        return made

    def summarise(
        self,
        env: HarnessEnv,
        request: EvalRequest,
        samples: Sequence[SampleRecord],
        *,
        bootstrap: int = 2000,
        min_complete: float = 1.0,
        **identity: Any,
    ) -> list[ScoreRecord]:
        chosen = _Chosen(env, request)
        data = hashlib.sha256(json.dumps(env.spec.data, sort_keys=True).encode()).hexdigest()
        own = {"harness": env.identity, "variant": request.variant, "data_hash": data, **identity}
        own["versions"] = dict(own.get("versions") or {}) | labels(request, data)
        return score_records(
            samples,
            {c: [f"{c}/{i}" for i in ids] for c, ids in chosen.ids.items()},
            request.trials,
            floors={c: questions.do_nothing(env.source, c, ids) for c, ids in chosen.ids.items()},
            skipped=chosen.skipped, min_complete=min_complete, bootstrap=bootstrap, **{"seed": request.seed} | own,
        )  # fmt: skip


class _Chosen:
    """What a request runs: category -> ids, and category -> why not."""

    def __init__(self, env: HarnessEnv, request: EvalRequest):
        self.env, self.request = env, request

    @cached_property
    def _selected(self) -> tuple[list[str], dict[str, str]]:
        return categories.select(
            self.request.subsets, lambda c: reason_against(self.env, self.request.options, c)
        )

    @property
    def skipped(self) -> dict[str, str]:
        return self._selected[1]

    @cached_property
    def ids(self) -> dict[str, list[str]]:
        r = self.request
        return {
            c: questions.choose(questions.question_ids(self.env.source, c), r.limit, r.seed)
            for c in self._selected[0]
        }


def reason_against(env: HarnessEnv, options: dict[str, JSON], category: str) -> str:
    """Why a category cannot be run here, or ""."""
    if category == categories.FORMAT:
        return "asks models without function calling only and counts in no score"
    if category in categories.WEB_SEARCH:
        key = str(options.get("serpapi_key_env", "SERPAPI_API_KEY"))
        if not options.get("open_network"):
            return "needs the open web: set the option open_network"
        return "" if os.environ.get(key) else f"needs the key of a search service in ${key}"
    if category == "memory_vector":
        return _vector_reason(env, options)
    return ""


def _vector_reason(env: HarnessEnv, options: dict[str, JSON]) -> str:
    lacking = [p for p in ("torch", "faiss", "sentence_transformers") if not (env.source / p).is_dir()]
    if lacking:
        return f"needs {', '.join(lacking)}, which the lean environment leaves out"
    cache = options.get("vector_model")
    if not cache or not (Path(str(cache)) / "hub" / VECTOR_MODEL).is_dir():
        return "needs all-MiniLM-L6-v2: set the option vector_model to a hub cache that holds it"
    return ""


def _check_room(request: EvalRequest) -> None:
    agent = request.roles.agent
    refuse_query("bfcl", agent)
    if agent.sampling.max_tokens >= agent.context:
        raise UserError(
            f"bfcl: max_tokens {agent.sampling.max_tokens} leaves no room for a prompt in a context of {agent.context}"
        )


def _job(env: HarnessEnv, request: EvalRequest, category: str, ids: list[str], trial: int) -> Job:
    agent, web = request.roles.agent, category in categories.WEB_SEARCH
    name = f"{category}-{trial}"
    secrets = {"OPENAI_API_KEY": agent.key_env} if agent.key_env else {}
    if web:
        secrets["SERPAPI_API_KEY"] = str(request.options.get("serpapi_key_env", "SERPAPI_API_KEY"))
    return Job(
        name=name,
        # -X utf8: BFCL opens its files in the locale's encoding
        argv=(str(env.python), "-I", "-u", "-X", "utf8", str(DRIVER), str(request.out.absolute() / name / "job.json")),
        env=_environment(request, category),
        secrets=secrets,
        files={"job.json": json.dumps(_settings(env, request, category, ids, trial), indent=1)},
        planned=tuple((f"{category}/{i}", trial) for i in ids),
        reaches=(agent.base_url,), open_network=web, deadline_s=request.deadline_s,
        goes_on=True,  # BFCL asks only for what has no answer yet, and the driver first forgets what failed
    )  # fmt: skip


def _environment(request: EvalRequest, category: str) -> dict[str, str]:
    env = {"OPENAI_BASE_URL": request.roles.agent.base_url, "TQDM_DISABLE": "1", "HF_HUB_OFFLINE": "1"}
    if not request.roles.agent.key_env:
        env["OPENAI_API_KEY"] = NO_KEY
    if category == "memory_vector":
        env["HF_HOME"] = str(request.options["vector_model"])
    return env


def _settings(
    env: HarnessEnv, request: EvalRequest, category: str, ids: list[str], trial: int
) -> dict[str, JSON]:
    """job.json of the driver."""
    agent = request.roles.agent
    sampling, partly = agent.sampling, bool(request.limit) and len(ids) < categories.COUNTS[category]
    asked = {"max_tokens": sampling.max_tokens, "top_p": sampling.top_p, "seed": _seed(request, trial)}
    return {
        "model": agent.model,
        "category": category,
        "ids": [*questions.prerequisite_ids(env.source, category, ids), *ids] if partly else [],
        "threads": request.concurrency,
        "temperature": sampling.temperature,
        "timeout_s": float(request.options.get("request_timeout_s", 600)),
        "retries": int(request.options.get("retries", 3)),
        "request": {**asked, "extra_body": _extra_body(request)},
    }


def _extra_body(request: EvalRequest) -> dict[str, JSON]:
    """Fields beyond OpenAI's; those of the endpoint win."""
    agent = request.roles.agent
    body: dict[str, JSON] = {"top_k": agent.sampling.top_k} if agent.sampling.top_k > 0 else {}
    return body | thinking_body(request) | agent.extra_body


def _seed(request: EvalRequest, trial: int) -> int:
    """Of a trial's requests: apart between trials, the same for every policy."""
    base = request.roles.agent.sampling.seed
    return (request.seed if base is None else base) + trial
