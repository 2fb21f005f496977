"""The sections `bench` and `dynamics` of params.yaml: the upstream benchmarks, who plays in them, and curves of training.

Flows in: nothing. Flows out: dataclasses that are fields of `envace.config.sections.Params`.
Invariant: as in `envace.config.sections`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal

from envace.config.ranges import MAY_BE_EMPTY, Count, CountOrZero, Curve, Harness, Positive, Range, Share


@dataclass(frozen=True, kw_only=True)
class RoleParams:
    """Who plays a part in a benchmark: an OpenAI-compatible server, or fixed lines; neither leaves the part out."""

    base_url: str = ""
    model: str = ""
    key_env: str = ""  # variable that holds the key
    context: Count = 32768
    temperature: Annotated[float, Range(0.0, 5.0)] = 0.0
    max_tokens: Count = 4096
    extra_body: dict[str, Any] = field(default_factory=dict)  # sent with every request
    script: Annotated[
        tuple[str, ...], MAY_BE_EMPTY
    ] = ()  # lines said in order, in place of a server: smoke runs


@dataclass(frozen=True, kw_only=True)
class BaselineParams:
    """A policy to compare with: weights on the hub at a revision, or a server."""

    uri: str = ""  # hub id
    revision: str = ""  # 40-digit commit; `python -m envace.policy.hub resolve ID` prints the newest
    base_url: str = ""
    model: str = ""
    key_env: str = ""
    context: CountOrZero = 0  # tokens; 0 is what its configuration says, behind a server 32768
    tool_parser: str = ""  # vLLM's, for weights served here; empty is bench.tool_parser
    reasoning_parser: str = ""  # the same; empty is bench.reasoning_parser
    thinking: Literal["bench", "always", "never"] = "bench"  # bench: as bench.thinking says
    extra_body: dict[str, Any] = field(default_factory=dict)  # sent with every request


@dataclass(frozen=True, kw_only=True)
class BenchParams:
    """Upstream benchmarks, each in its own harness: `policies` x `benchmarks` (docs/evaluation.md)."""

    policies: Annotated[tuple[str, ...], MAY_BE_EMPTY] = ()  # of models/ or of `baselines`
    benchmarks: Annotated[tuple[Harness, ...], MAY_BE_EMPTY] = ()
    baselines: dict[str, BaselineParams] = field(default_factory=dict)
    trials: Count = 1
    limit: CountOrZero = 0  # tasks of each subset, chosen by hash; 0 is all
    seed: CountOrZero = 300
    temperature: Annotated[float, Range(0.0, 5.0)] = 0.0
    top_p: Annotated[float, Range(1e-6, 1.0)] = 1.0
    top_k: Annotated[int, Range(-1)] = -1  # -1 is every token
    max_tokens: Count = 4096
    context: CountOrZero = 0  # tokens of prompt and reply that weights are served with; 0 is what they hold
    thinking: bool = False
    other_thinking: bool = False  # a trained policy may be asked to think otherwise than in training
    tool_parser: str = "hermes"  # of vLLM, which serves weights on a GPU
    reasoning_parser: str = "qwen3"  # the same, where the model thinks
    concurrency: Count = 8
    deadline_s: Positive = 14400.0  # of one process of a harness
    min_complete: Share = 1.0
    user: RoleParams = RoleParams()
    judge: RoleParams = RoleParams()
    options: dict[str, dict[str, Any]] = field(
        default_factory=dict
    )  # benchmark: its subsets, its own limit and trials, what its adapter takes

    def of(self, benchmark: str) -> BenchParams:
        """As one benchmark is run: its own limit and trials, where `options` has them, instead of everybody's."""
        options = dict(self.options.get(benchmark) or {})
        own = {key: options.pop(key) for key in OWN if key in options}
        return replace(self, **own, options={benchmark: options})


OWN = ("limit", "trials")  # keys of bench that bench.options.<benchmark> may give as well


@dataclass(frozen=True, kw_only=True)
class DynamicsParams:
    """The curve of training: `runs` x `steps` x `benchmarks`, each kept step evaluated on a cut of the tasks."""

    runs: Annotated[tuple[str, ...], MAY_BE_EMPTY] = ()  # of train.runs
    steps: Annotated[tuple[CountOrZero, ...], MAY_BE_EMPTY] = ()  # kept ones (train.keep_every); 0: the start
    benchmarks: Annotated[tuple[Curve, ...], MAY_BE_EMPTY] = ()  # of eval or of bench
    limit: CountOrZero = 20  # tasks of a benchmark, or of each of its subsets, chosen by hash; 0 is all
    trials: Count = 1
