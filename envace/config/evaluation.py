"""Sections of params.yaml that evaluation, the report and the servers read: eval, tts, fidelity, bench,
dynamics, report, prefect, mlflow.

Defaults are the laptop size; a field's docstring is its comment in params.yaml.
"""

from __future__ import annotations

from dataclasses import field, replace
from typing import Annotated, Literal, get_args

from pydantic import AfterValidator, Field, JsonValue
from pydantic.dataclasses import dataclass

from envace.config.values import (
    CONFIG,
    Benchmark,
    Count,
    CountOrZero,
    Curve,
    Flag,
    Free,
    Harness,
    Listed,
    MaybeListed,
    NotNegative,
    Port,
    Positive,
    Share,
    Table,
    Temperature,
    TopP,
    Whole,
)

OWN = ("limit", "trials")
"""Keys of `bench` that `bench.options.<benchmark>` may give as well."""


def _every_harness(options: dict[str, dict[str, JsonValue]]) -> dict[str, dict[str, JsonValue]]:
    """Each harness has its options, if none: DVC asks for `bench.options.<benchmark>`."""
    return {name: {} for name in get_args(Harness)} | options


@dataclass(frozen=True, kw_only=True, config=CONFIG)
class EvalParams:
    policies: Listed[str] = ("start", "envace-1")
    benchmarks: MaybeListed[Benchmark] = ("desk",)
    trials: Count = 2
    temperature: Temperature = 1.0
    limit: CountOrZero = 0
    """Tasks, chosen by hash; 0 is all."""
    min_complete: Share = 1.0
    """Below this share of planned samples no headline is given."""
    seed: Whole = 11

    @property
    def first(self) -> str:
        """The benchmark of the headline; empty when none is played."""
        return self.benchmarks[0] if self.benchmarks else ""


@dataclass(frozen=True, kw_only=True, config=CONFIG)
class TTSParams:
    policy: str = "envace-1"
    points: MaybeListed[str] = ("plain-0", "parallel-2", "sequential-2")
    """<mode>-<private rehearsals>; plain-0 is the control."""
    trials: Count = 2
    limit: CountOrZero = 12
    memory_tokens: Count = 96
    feedback_tokens: Count = 64


@dataclass(frozen=True, kw_only=True, config=CONFIG)
class FidelityParams:
    policies: Listed[str] = ("start", "envace-1")
    limit: CountOrZero = 48
    """(call, true response) pairs; 0 is all."""
    episodes: CountOrZero = 24
    """Tasks played in rehearsal and in the true world; 0 leaves the collusion gap out."""
    trials: Count = 2
    """Plays of each task."""


@dataclass(frozen=True, kw_only=True, config=CONFIG)
class RoleParams:
    """Who plays a part in a benchmark: an OpenAI-compatible server, or fixed lines; neither leaves the
    part out."""

    base_url: str = ""
    model: str = ""
    key_env: str = ""
    """Variable that holds the key."""
    context: Count = 32768
    temperature: Temperature = 0.0
    max_tokens: Count = 4096
    extra_body: Free = field(default_factory=dict)
    """Sent with every request."""
    script: MaybeListed[str] = ()
    """Lines said in order, in place of a server: smoke runs."""


@dataclass(frozen=True, kw_only=True, config=CONFIG)
class BaselineParams:
    """A policy to compare with: weights on the hub at a revision, or a server."""

    uri: str = ""
    """Hub id."""
    revision: str = ""
    """40-digit commit; `python -m envace.policy.hub resolve ID` prints the newest."""
    base_url: str = ""
    model: str = ""
    key_env: str = ""
    context: CountOrZero = 0
    """Tokens; 0 is what its configuration says, behind a server 32768."""
    tool_parser: str = ""
    """vLLM's, for weights served here; empty is bench.tool_parser."""
    reasoning_parser: str = ""
    """The same; empty is bench.reasoning_parser."""
    thinking: Literal["bench", "always", "never"] = "bench"
    """bench: as bench.thinking says."""
    extra_body: Free = field(default_factory=dict)
    """Sent with every request."""


@dataclass(frozen=True, kw_only=True, config=CONFIG)
class BenchParams:
    """Upstream benchmarks, each in its own harness: `policies` x `benchmarks` (docs/evaluation.md)."""

    policies: MaybeListed[str] = ()
    """Of models/ or of baselines."""
    benchmarks: MaybeListed[Harness] = ()
    """bfcl | tau2 | vita | finmcp."""
    baselines: Table[BaselineParams] = field(default_factory=dict)
    """name: {uri: hub id, revision: commit} or {base_url, model, key_env}."""
    trials: Count = 1
    limit: CountOrZero = 0
    """Tasks of each subset, chosen by hash; 0 is all."""
    seed: CountOrZero = 300
    temperature: Temperature = 0.0
    top_p: TopP = 1.0
    top_k: Annotated[Whole, Field(ge=-1)] = -1
    """-1 samples from every token."""
    max_tokens: Count = 4096
    context: CountOrZero = 0
    """Tokens of prompt and reply that weights are served with; 0 is what they hold."""
    thinking: Flag = False
    other_thinking: Flag = False
    """A trained policy may be asked to think otherwise than in training."""
    tool_parser: str = "hermes"
    """vLLM's, which serves weights on a GPU."""
    reasoning_parser: str = "qwen3"
    """vLLM's, where the model thinks."""
    concurrency: Count = 8
    deadline_s: Positive = 14400.0
    """Seconds of one process of a harness."""
    min_complete: Share = 1.0
    """Below this share of planned samples no score is given."""
    user: RoleParams = RoleParams()
    judge: RoleParams = RoleParams()
    options: Annotated[Table[Free], AfterValidator(_every_harness)] = field(
        default_factory=lambda: _every_harness({})
    )
    """benchmark: {subsets: [...], limit, trials, what its adapter takes}; {} is all defaults."""

    def of(self, benchmark: str) -> BenchParams:
        """As one benchmark is run: its own limit and trials, where `options` has them, instead of
        everybody's."""
        asked = self.options.get(benchmark, {})
        rest = {key: value for key, value in asked.items() if key not in OWN}
        own = {key: value for key in OWN if isinstance(value := asked.get(key), int)}
        limit, trials = own.get("limit", self.limit), own.get("trials", self.trials)
        return replace(self, limit=limit, trials=trials, options={benchmark: rest})


@dataclass(frozen=True, kw_only=True, config=CONFIG)
class DynamicsParams:
    """The curve of training: `runs` x `steps` x `benchmarks`, each kept step evaluated
    (docs/evaluation.md)."""

    runs: MaybeListed[str] = ()
    """Of train.runs."""
    steps: MaybeListed[CountOrZero] = ()
    """0 (the start), multiples of train.keep_every, train.steps."""
    benchmarks: MaybeListed[Curve] = ()
    """desk | desk-validation | desk-unseen | files | bfcl | tau2 | vita | finmcp."""
    limit: CountOrZero = 24
    """Tasks of a benchmark, or of each of its subsets, chosen by hash; 0 is all."""
    trials: Count = 1


@dataclass(frozen=True, kw_only=True, config=CONFIG)
class ReportParams:
    bootstrap: Annotated[Whole, Field(ge=100, le=1000000)] = 2000
    title: str = "EnvACE"


@dataclass(frozen=True, kw_only=True, config=CONFIG)
class PrefectParams:
    port: Port = 4200
    work_pool: str = "envace"
    cron: str = "0 3 * * *"
    retries: CountOrZero = 1
    retry_delay_s: NotNegative = 5.0


@dataclass(frozen=True, kw_only=True, config=CONFIG)
class MlflowParams:
    port: Port = 5000
    experiment: str = "envace"
    traces: CountOrZero = 16
    """Episodes of a stage shown as traces, whole groups by hash (docs/traces.md); 0 shows none."""
    failed_traces: Annotated[Whole, Field(ge=-1)] = -1
    """And at most so many that failed; -1 is all of them."""
