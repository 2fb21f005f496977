"""BFCL-v4 as a benchmark of the harness runner.

Invariant: each job is a process and a project root of its own, because BFCL keeps the state of its simulated
backends in module globals under the entry's id. The model is registered under one fixed name.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Unpack

from envace.bench.bfcl import categories, questions
from envace.bench.bfcl.parse import sample_records
from envace.bench.bfcl.pins import NEWEST, VERSIONS
from envace.bench.bfcl.scores import score_records
from envace.bench.harness import planning
from envace.bench.harness.spec import EvalRequest, HarnessEnv, HarnessJob, HarnessSpec, RawRun
from envace.bench.labels import identity_of, labels
from envace.bench.summary import Identity
from envace.io.redact import Redactor
from envace.types import JSON, SampleRecord, ScoreRecord, to_json

DRIVER = Path(__file__).with_name("driver.py")
VECTOR_MODEL = "models--sentence-transformers--all-MiniLM-L6-v2"
VECTOR_PACKAGES = ("torch", "faiss", "sentence_transformers")
NO_KEY = "none"  # the client insists on one


@dataclass(frozen=True, slots=True, kw_only=True)
class BfclOptions:
    """`bench.options.bfcl`."""

    version: str = NEWEST
    """A key of pins.VERSIONS."""
    serpapi_key_env: str = "SERPAPI_API_KEY"
    """Variable with the key of the search service."""
    open_network: bool = False
    """Allow web search."""
    vector_model: str = ""
    """Folder of a hub cache that holds all-MiniLM-L6-v2, for memory_vector."""
    request_timeout_s: float = 600
    retries: int = 3
    """Of one request."""
    template_kwargs: bool = True
    """Tell the agent's chat template whether to think; false for endpoints that refuse
    chat_template_kwargs.
    """
    parallel: int = 1
    """Jobs beside each other (the harness runner's)."""

    @classmethod
    def of(cls, options: dict[str, JSON]) -> BfclOptions:
        """Raises UserError for an unknown option or version."""
        made = planning.read_options("bfcl", cls, options)
        planning.check_one_of("bfcl", "version", made.version, VERSIONS)
        return made


class Bfcl:
    """Adapter of spec.Adapter."""

    name = "bfcl"
    subsets = tuple(dict.fromkeys((*categories.GROUPS, *categories.GROUPS["all"])))
    default = categories.DEFAULT

    def spec(self, options: dict[str, JSON]) -> HarnessSpec:
        version = BfclOptions.of(options).version
        lock, data = VERSIONS[version]
        return HarnessSpec(
            name="bfcl",
            version=version,
            kind="pypi",
            python="3.11",
            lock=lock,
            imports=("bfcl_eval.__main__",),
            data={f"{questions.DATA.as_posix()}/{file}": sha for file, sha in data.items()},
        )

    def plan(self, env: HarnessEnv, request: EvalRequest) -> list[HarnessJob]:
        agent, options = request.roles.agent, BfclOptions.of(request.options)
        planning.refuse_query("bfcl", agent)
        planning.check_room("bfcl", agent)
        chosen, _ = _chosen(env, request, options)
        return [
            _job(env, request, options, category, ids, trial)
            for category, ids in chosen.items()
            for trial in range(request.trials)
        ]

    def parse(self, env: HarnessEnv, request: EvalRequest, runs: Sequence[RawRun]) -> list[SampleRecord]:
        redact = Redactor(to_json(request.roles.agent)).text
        made = []
        for run in runs:
            trial = run.job.planned[0][1]
            made += sample_records(run.folder, run.job.planned, _seed(request, trial), redact)
        return made

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
        chosen, skipped = _chosen(env, request, BfclOptions.of(request.options))
        data = hashlib.sha256(json.dumps(env.spec.data, sort_keys=True).encode()).hexdigest()
        return score_records(
            samples,
            {c: [f"{c}/{i}" for i in ids] for c, ids in chosen.items()},
            request.trials,
            floors={c: questions.do_nothing(env.source, c, ids) for c, ids in chosen.items()},
            skipped=skipped,
            min_complete=min_complete,
            bootstrap=bootstrap,
            **identity_of(env, request, data, identity, labels(request, data)),
        )


def _chosen(
    env: HarnessEnv, request: EvalRequest, options: BfclOptions
) -> tuple[dict[str, list[str]], dict[str, str]]:
    """What a request runs: category -> ids, and category -> why not."""
    names, skipped = categories.select(request.subsets, lambda c: reason_against(env, options, c))
    known = {c: questions.question_ids(env.source, c) for c in names}
    return {c: planning.choose(ids, request.limit, request.seed) for c, ids in known.items()}, skipped


def reason_against(env: HarnessEnv, options: BfclOptions, category: str) -> str:
    """Why a category cannot be run here, or ""."""
    if category == categories.FORMAT:
        return "asks models without function calling only and counts in no score"
    if category in categories.WEB_SEARCH:
        if not options.open_network:
            return "needs the open web: set the option open_network"
        key = options.serpapi_key_env
        return "" if os.environ.get(key) else f"needs the key of a search service in ${key}"
    if category == "memory_vector":
        if lacking := [p for p in VECTOR_PACKAGES if not (env.source / p).is_dir()]:
            return f"needs {', '.join(lacking)}, which the lean environment leaves out"
        if not options.vector_model or not (Path(options.vector_model) / "hub" / VECTOR_MODEL).is_dir():
            return "needs all-MiniLM-L6-v2: set the option vector_model to a hub cache that holds it"
    return ""


def _job(
    env: HarnessEnv, request: EvalRequest, options: BfclOptions, category: str, ids: list[str], trial: int
) -> HarnessJob:
    agent, web = request.roles.agent, category in categories.WEB_SEARCH
    sampling, partly = agent.sampling, bool(request.limit) and len(ids) < categories.COUNTS[category]
    top_k: dict[str, JSON] = {"top_k": sampling.top_k} if sampling.top_k > 0 else {}
    settings = {
        "model": agent.model,
        "category": category,
        "ids": [*questions.prerequisite_ids(env.source, category, ids), *ids] if partly else [],
        "threads": request.concurrency,
        "temperature": sampling.temperature,
        "timeout_s": float(options.request_timeout_s),
        "retries": int(options.retries),
        "request": {
            "max_tokens": sampling.max_tokens,
            "top_p": sampling.top_p,
            "seed": _seed(request, trial),
            "extra_body": top_k
            | planning.thinking_body(request)
            | agent.extra_body,  # those of the endpoint win
        },
    }
    environ = {"OPENAI_BASE_URL": agent.base_url, "TQDM_DISABLE": "1", "HF_HUB_OFFLINE": "1"}
    environ |= {} if agent.key_env else {"OPENAI_API_KEY": NO_KEY}
    environ |= {"HF_HOME": options.vector_model} if category == "memory_vector" else {}
    return planning.driver_job(
        env,
        request,
        f"{category}-{trial}",
        DRIVER,
        settings,
        [(f"{category}/{i}", trial) for i in ids],
        asked={"OPENAI_API_KEY": agent},
        flags=("-I", "-u", "-X", "utf8"),  # BFCL opens its files in the locale's encoding
        environ=environ,
        secrets={"SERPAPI_API_KEY": options.serpapi_key_env} if web else {},
        open_network=web,
    )


def _seed(request: EvalRequest, trial: int) -> int:
    """Of a trial's requests: apart between trials, the same for every policy."""
    base = request.roles.agent.sampling.seed
    return (request.seed if base is None else base) + trial
