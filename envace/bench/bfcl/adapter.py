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

from envace.bench.bfcl import tasks
from envace.bench.bfcl.parse import sample_records
from envace.bench.bfcl.scores import score_records
from envace.bench.harness import planning
from envace.bench.harness.spec import EvalRequest, HarnessEnv, HarnessJob, HarnessSpec, RawRun
from envace.bench.labels import identity_of, labels
from envace.bench.scoring import Scoring
from envace.io.redact import Redactor
from envace.types import JSON, SampleRecord, ScoreRecord, to_json

DRIVER = Path(__file__).with_name("driver.py")
SUMS = Path(__file__).resolve().parents[3] / "locks" / "harness" / "bfcl.sha256"
"""Of the data files that scores depend on, the same in all versions; below bfcl_eval/data."""
VECTOR_MODEL = "models--sentence-transformers--all-MiniLM-L6-v2"
VECTOR_PACKAGES = ("torch", "faiss", "sentence_transformers")


@dataclass(frozen=True, slots=True, kw_only=True)
class BfclOptions:
    """`bench.options.bfcl`."""

    version: str = tasks.NEWEST  # a key of tasks.VERSIONS
    full: bool = False  # the environment that also holds torch and a vector store, for memory_vector
    serpapi_key_env: str = "SERPAPI_API_KEY"  # variable with the key of the search service
    open_network: bool = False  # allow web search
    vector_model: str = (
        ""  # folder of a hub cache with all-MiniLM-L6-v2, for memory_vector; "": the user's own
    )
    request_timeout_s: float = 600
    retries: int = 3  # of one request
    template_kwargs: bool = True  # tell the agent's chat template whether to think; false where it is refused
    parallel: int = 1  # jobs beside each other (the harness runner's)

    @classmethod
    def of(cls, options: dict[str, JSON]) -> BfclOptions:
        """Raises UserError for an unknown option or version."""
        made = planning.read_options("bfcl", cls, options)
        planning.check_one_of("bfcl", "version", made.version, tasks.FULL if made.full else tasks.VERSIONS)
        return made


class Bfcl:
    """Adapter of spec.Adapter."""

    name = "bfcl"
    asks = ()
    subsets = tuple(dict.fromkeys((*tasks.GROUPS, *tasks.GROUPS["all"])))
    default = tasks.DEFAULT

    def spec(self, options: dict[str, JSON]) -> HarnessSpec:
        made = BfclOptions.of(options)
        sums = (line.split("  ") for line in SUMS.read_text(encoding="utf-8").splitlines())
        return HarnessSpec(
            name="bfcl",
            version=made.version,
            kind="pypi",
            python="3.11",
            lock=(tasks.FULL if made.full else tasks.VERSIONS)[made.version],
            imports=("bfcl_eval.__main__",),
            data={f"{tasks.DATA.as_posix()}/{file}": sha for sha, file in sums},
        )

    def plan(self, env: HarnessEnv, request: EvalRequest) -> list[HarnessJob]:
        planning.refuse_query("bfcl", request.roles.agent)
        planning.check_room("bfcl", request.roles.agent)
        chosen, _ = _chosen(env, request)
        return [
            _job(env, request, c, ids, trial) for c, ids in chosen.items() for trial in range(request.trials)
        ]

    def parse(self, env: HarnessEnv, request: EvalRequest, runs: Sequence[RawRun]) -> list[SampleRecord]:
        redact, made = Redactor(to_json(request.roles.agent)).text, []
        for run in runs:
            seed = _seed(request, run.job.planned[0][1])
            made += sample_records(run.folder, run.job.planned, seed, redact)
        return made

    def summarise(
        self, env: HarnessEnv, request: EvalRequest, samples: Sequence[SampleRecord], **how: Unpack[Scoring]
    ) -> list[ScoreRecord]:
        chosen, skipped = _chosen(env, request)
        data = hashlib.sha256(json.dumps(env.spec.data, sort_keys=True).encode()).hexdigest()
        return score_records(
            samples,
            {c: [f"{c}/{i}" for i in ids] for c, ids in chosen.items()},
            request.trials,
            floors={c: tasks.do_nothing(env.source, c, ids) for c, ids in chosen.items()},
            skipped=skipped,
            **identity_of(env, request, data, how, labels(request, data)),
        )


def _chosen(env: HarnessEnv, request: EvalRequest) -> tuple[dict[str, list[str]], dict[str, str]]:
    """What a request runs: category -> ids, and category -> why not."""
    options = BfclOptions.of(request.options)
    names, skipped = tasks.select(request.subsets, lambda c: reason_against(env, options, c))
    known = {c: tasks.question_ids(env.source, c) for c in names}
    return {c: planning.choose(ids, request.limit, request.seed) for c, ids in known.items()}, skipped


def reason_against(env: HarnessEnv, options: BfclOptions, category: str) -> str:
    """Why a category cannot be run here, or ""."""
    key = options.serpapi_key_env
    if category == tasks.FORMAT:
        return "asks models without function calling only and counts in no score"
    if category in tasks.WEB_SEARCH and not options.open_network:
        return "needs the open web: set the option open_network"
    if category in tasks.WEB_SEARCH and not os.environ.get(key):
        return f"needs the key of a search service in ${key}"
    if category == "memory_vector":
        if lacking := [p for p in VECTOR_PACKAGES if not (env.source / p).is_dir()]:
            return f"needs {', '.join(lacking)}, which the lean environment leaves out: set the option full"
        if not (_hub_home(options) / "hub" / VECTOR_MODEL).is_dir():
            return "needs all-MiniLM-L6-v2: set the option vector_model to a hub cache that holds it"
    return ""


def _hub_home(options: BfclOptions) -> Path:
    """The folder whose `hub` holds the embedding model."""
    own = Path.home() / ".cache" / "huggingface"
    return Path(options.vector_model or os.environ.get("HF_HOME") or own)


def _job(env: HarnessEnv, request: EvalRequest, category: str, ids: list[str], trial: int) -> HarnessJob:
    agent, options, web = request.roles.agent, BfclOptions.of(request.options), category in tasks.WEB_SEARCH
    sampling, partly = agent.sampling, bool(request.limit) and len(ids) < tasks.COUNTS[category]
    top_k: dict[str, JSON] = {"top_k": sampling.top_k} if sampling.top_k > 0 else {}
    settings = {
        "model": agent.model,
        "category": category,
        "ids": [*tasks.prerequisite_ids(env.source, category, ids), *ids] if partly else [],
        "threads": request.concurrency,
        "temperature": sampling.temperature,
        "timeout_s": float(options.request_timeout_s),
        "retries": int(options.retries),
        "request": {
            "max_tokens": sampling.max_tokens,
            "top_p": sampling.top_p,
            "seed": _seed(request, trial),
            "extra_body": top_k | planning.thinking_body(request) | agent.extra_body,  # the endpoint's win
        },
    }
    environ = {"OPENAI_BASE_URL": agent.base_url, "TQDM_DISABLE": "1", "HF_HUB_OFFLINE": "1"}
    environ |= {} if agent.key_env else {"OPENAI_API_KEY": "none"}  # the client insists on one
    environ |= {"HF_HOME": str(_hub_home(options))} if category == "memory_vector" else {}
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
        tally=(f"root/result/**/BFCL_v4_{category}_result.json", "\n"),
    )


def _seed(request: EvalRequest, trial: int) -> int:
    """Of a trial's requests: apart between trials, the same for every policy."""
    base = request.roles.agent.sampling.seed
    return (request.seed if base is None else base) + trial
