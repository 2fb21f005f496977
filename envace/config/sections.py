"""The sections of params.yaml as frozen dataclasses: every key, its type, its range, its default.

Flows in: nothing. Flows out: `Params` and its sections; `envace.params` reads the file into them.
Invariant: a default is the value of the laptop size or a neutral one; a comment says what a key means. Nothing here
imports torch, verl, Prefect or MLflow.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal

from envace.config.method import READING, Method, resolve_method
from envace.config.ranges import (
    MAY_BE_EMPTY,
    Benchmark,
    Count,
    CountOrZero,
    Port,
    Positive,
    Range,
    Share,
)
from envace.config.sections_bench import BenchParams, DynamicsParams

SFT = "sft"  # how policies of continued supervised training are named: sft-<seed>


@dataclass(frozen=True, kw_only=True)
class MethodParams:
    preset: Literal["authors", "paper", "envace"] = "envace"
    override: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class DataParams:
    source: Literal["desk", "local", "s3", "hub"] = "desk"
    uri: str = ""  # folder, s3:// prefix or hub id; empty for the desk
    revision: str = ""
    patterns: tuple[str, ...] = ("*.json", "*.jsonl", "*.parquet")  # files of the source; * crosses slashes
    sha256: dict[str, str] = field(default_factory=dict)  # file -> checksum it must have
    accept_changed: bool = False  # take a source whose files changed since they were fetched
    require_thinking: bool = False  # one thought in every assistant message, as the published set has
    strict_tool_schema: bool = False  # leave out rows whose tools the published loader refuses
    select: dict[str, Any] = field(
        default_factory=dict
    )  # shares dropped by difficulty, see envace/data/select.py
    max_first_prompt_tokens: Count = 3500  # rows whose first prompt is longer are rejected
    licence: str = ""  # of rows that state none; empty is what their source states
    splits: dict[str, str] = field(
        default_factory=dict
    )  # {train: pattern, held: pattern} of the source's files
    split: Literal["hash", "first_n"] = "hash"  # of rows that bring no split of their own
    held_share: Share = 0.0625  # held out under `hash`, chosen by seed and id
    held_rows: Count = 100  # of the source's first, held out under `first_n`
    workers: CountOrZero = 0  # processes; 0 is one a core


@dataclass(frozen=True, kw_only=True)
class DeskParams:
    seed: int = 7
    train_tasks: Annotated[int, Range(4, 1_000_000)] = 96
    held_tasks: Annotated[int, Range(2, 1_000_000)] = 24
    unseen_tasks: CountOrZero = 0  # of combinations that no other split has; 0 leaves the split out
    files_tasks: CountOrZero = 0  # of the second world, for transfer; 0 leaves the split out


@dataclass(frozen=True, kw_only=True)
class TinyParams:
    """The tiny Qwen3-architecture policy, made from scratch."""

    hidden: Annotated[int, Range(16, 1024)] = 128
    layers: Annotated[int, Range(1, 24)] = 3
    heads: Annotated[int, Range(1, 32)] = 4
    vocab: Annotated[int, Range(320, 32000)] = 640
    updates: CountOrZero = 600  # warm-start updates on expert transcripts; 0 leaves random weights
    batch: Count = 32
    lr: Positive = 3e-3
    tasks: Count = 1000  # transcripts to warm-start from, disjoint from train and held-out tasks
    threads: Count = 2


@dataclass(frozen=True, kw_only=True)
class PolicyParams:
    kind: Literal["bundled", "tiny", "hub", "local"] = "tiny"
    uri: str = ""
    revision: str = ""
    tiny: TinyParams = TinyParams()


@dataclass(frozen=True, kw_only=True)
class SimulatorParams:
    """An OpenAI-compatible server that plays the world where method.source is simulator."""

    base_url: str = ""
    model: str = ""
    key_env: str = ""  # variable that holds the key
    temperature: Annotated[float, Range(0.0, 5.0)] = 1.0
    top_p: Annotated[float, Range(1e-6, 1.0)] = 1.0
    max_tokens: CountOrZero = 0  # longest output, thoughts included; 0 is rollout.response_tokens
    timeout_s: Positive = 60.0  # of one attempt
    attempts: Count = 4
    concurrency: Count = 64  # requests in flight in one process
    extra_body: dict[str, Any] = field(default_factory=dict)  # sent with every request


@dataclass(frozen=True, kw_only=True)
class McpParams:
    """An MCP server that answers calls where method.source is mcp (docs/your-world.md)."""

    transport: Literal["http", "sse", "stdio"] = "http"
    url: str = ""  # with stdio: the command that starts a server, one for each episode
    key_env: str = ""  # variable that holds a bearer token; with stdio: variable the server is given
    timeout_s: Positive = 30.0  # to connect, and of one call
    attempts: Count = 3  # to connect; a call is asked once
    max_chars: Count = 4000  # of one response; the rest is cut off


@dataclass(frozen=True, kw_only=True)
class RolloutParams:
    prompt_set: str = "compact"  # a folder of envace/prompts: compact, full, or your own (docs/your-world.md)
    prompt_tokens: Count = (
        896  # longest REHEARSE prompt; ACT's may grow into the context, see method.context_stop
    )
    response_tokens: Count = 128  # longest output of one generation
    max_steps: Count = 12  # ACT generations an episode
    max_calls: Count = 12  # tool calls an episode
    max_parallel: Count = 4  # calls in one ACT generation
    max_errors: CountOrZero = 4  # failed calls an episode survives
    deadline_s: Positive = 120.0  # wall clock of one episode
    temperature: Annotated[float, Range(0.0, 5.0)] = 1.0
    top_p: Annotated[float, Range(1e-6, 1.0)] = 1.0
    enable_thinking: bool = False
    worlds: dict[str, str] = field(default_factory=dict)  # your own kinds of world: {shop: "my_shop:Shop"}
    simulator: SimulatorParams = SimulatorParams()
    mcp: McpParams = McpParams()

    @property
    def context(self) -> int:
        """Tokens a model must hold: prompt and response of one generation."""
        return self.prompt_tokens + self.response_tokens


@dataclass(frozen=True, kw_only=True)
class JudgeParams:
    kind: Literal["rule", "llm"] = "rule"
    base_url: str = ""
    model: str = ""
    key_env: str = ""
    temperature: Annotated[float, Range(0.0, 2.0)] = 0.6
    top_p: Annotated[float, Range(1e-6, 1.0)] = 0.8
    max_tokens: Count = 6000
    timeout_s: Positive = 120.0
    attempts: Count = 5
    concurrency: Count = 64
    endpoints: dict[str, float] = field(default_factory=dict)  # more servers of the model: address -> weight
    audit: Share = 0.02  # of turns that a language model judges in the other method.judge_mode too
    audit_seed: CountOrZero = 1
    cache: str = ""  # folder for answers; empty keeps none
    price_in: Annotated[float, Range(0.0)] = 0.0  # of a million tokens read
    price_out: Annotated[float, Range(0.0)] = 0.0  # of a million tokens written
    max_unscored: Share = 0.25  # the run stops above this rate of unscored episodes in a step


@dataclass(frozen=True, kw_only=True)
class TrainParams:
    runs: tuple[str, ...] = ("envace-1",)  # <arm>-<seed>, one training each
    steps: Count = 6
    prompts: Count = 4  # prompts a step
    group: Annotated[int, Range(2, 1024)] = 4  # episodes a prompt
    lr: Positive = 1e-4
    lr_schedule: Literal["constant", "cosine"] = "constant"  # cosine falls to nothing at the last step
    warmup_steps: CountOrZero = 0
    weight_decay: Annotated[float, Range(0.0)] = 0.01
    grad_clip: Positive = 1.0
    clip_ratio: Annotated[float, Range(0.0, 1.0)] = 0.2
    entropy: Annotated[float, Range(0.0)] = 0.0
    max_logprob_gap: Positive = 0.05  # mean |log p - log p'| of server and trainer above which a step warns
    save_every: Count = 2
    keep_every: CountOrZero = 0  # 0 keeps only rolling checkpoints; k also keeps every k-th step's weights
    rolling: Count = 2  # rolling checkpoints kept
    shuffle: bool = True


@dataclass(frozen=True, kw_only=True)
class SFTParams:
    """Continued supervised training, the control that spends its time on expert texts instead."""

    seeds: Annotated[tuple[int, ...], MAY_BE_EMPTY] = ()  # one policy each, named sft-<seed>
    updates: Count = 600
    lr: Positive = 3e-4  # peak; falls as in the warm start


@dataclass(frozen=True, kw_only=True)
class EngineParams:
    device: Literal["cpu", "gpu"] = "cpu"
    rollout: Literal["hf", "vllm"] = "hf"
    python: str = ""  # interpreter of the trainer environment; empty means this one
    nodes: Count = 1
    gpus_per_node: Count = 1  # on CPU: ranks
    tensor_parallel: Count = 1
    gpu_memory: Share = 0.6
    max_tokens_per_gpu: Count = 4096  # of one micro-batch
    offload: bool = False
    gradient_checkpointing: bool = False
    workers: Count = 1  # agent-loop processes
    concurrency: Count = 64  # sequences the rollout server decodes at once
    object_store_mb: Count = 500
    start_timeout_s: Positive = 300.0  # until the first sign of life
    step_timeout_s: Positive = 600.0  # longest silence between signs of life
    deadline_s: Positive = 3600.0  # whole training subprocess
    ray_address: str = ""  # empty starts a local Ray


@dataclass(frozen=True, kw_only=True)
class EvalParams:
    policies: tuple[str, ...] = ("start", "envace-1")
    benchmarks: Annotated[tuple[Benchmark, ...], MAY_BE_EMPTY] = ("desk",)
    trials: Count = 4
    temperature: Annotated[float, Range(0.0, 5.0)] = 1.0
    limit: CountOrZero = 0  # tasks, chosen by hash; 0 is all
    min_complete: Share = 1.0  # below this share of planned samples no headline is given
    seed: int = 11

    @property
    def first(self) -> str:
        """The benchmark of the headline; empty when none is played."""
        return self.benchmarks[0] if self.benchmarks else ""


@dataclass(frozen=True, kw_only=True)
class TTSParams:
    policy: str = "envace-1"
    points: tuple[str, ...] = (
        "plain-0",
        "parallel-2",
        "sequential-2",
    )  # <mode>-<private rehearsals>; plain-0: control
    trials: Count = 2
    limit: CountOrZero = 12
    memory_tokens: Count = 96
    feedback_tokens: Count = 64


@dataclass(frozen=True, kw_only=True)
class FidelityParams:
    policies: tuple[str, ...] = ("start", "envace-1")
    limit: CountOrZero = 48  # (call, true response) pairs; 0 is all
    episodes: CountOrZero = (
        48  # tasks played in rehearsal and in the true world; 0 leaves the collusion gap out
    )
    trials: Count = 2  # of each of them


@dataclass(frozen=True, kw_only=True)
class ReportParams:
    bootstrap: Annotated[int, Range(100, 1_000_000)] = 2000
    title: str = "EnvACE"


@dataclass(frozen=True, kw_only=True)
class PrefectParams:
    port: Port = 4200
    work_pool: str = "envace"
    cron: str = "0 3 * * *"
    retries: CountOrZero = 1
    retry_delay_s: Annotated[float, Range(0.0)] = 5.0


@dataclass(frozen=True, kw_only=True)
class MlflowParams:
    port: Port = 5000
    experiment: str = "envace"
    traces: CountOrZero = 16  # episodes of a stage shown as traces, whole groups by hash
    failed_traces: Annotated[int, Range(-1)] = -1  # and so many that failed, -1 for all; the rest is counted


@dataclass(frozen=True, kw_only=True)
class Params:
    size: str = "laptop"
    seed: int = 1
    method: MethodParams = MethodParams()
    data: DataParams = DataParams()
    desk: DeskParams = DeskParams()
    policy: PolicyParams = PolicyParams()
    rollout: RolloutParams = RolloutParams()
    judge: JudgeParams = JudgeParams()
    train: TrainParams = TrainParams()
    # arm name -> method overrides on top of `method`, or on top of the `preset` it names
    arms: dict[str, Any] = field(default_factory=dict)
    sft: SFTParams = SFTParams()
    engine: EngineParams = EngineParams()
    eval: EvalParams = EvalParams()
    tts: TTSParams = TTSParams()
    fidelity: FidelityParams = FidelityParams()
    bench: BenchParams = BenchParams()
    dynamics: DynamicsParams = DynamicsParams()
    report: ReportParams = ReportParams()
    prefect: PrefectParams = PrefectParams()
    mlflow: MlflowParams = MlflowParams()

    @property
    def arms_trained(self) -> tuple[str, ...]:
        """The arms of `train.runs`, each once."""
        return tuple(dict.fromkeys(split_run(run)[0] for run in self.train.runs))

    def resolved_method(self, arm: str = "") -> Method:
        """The method table of an arm: preset, then `method.override`, then the arm's own overrides.

        An arm that names a `preset` starts from that one afresh, without `method.override`.
        """
        own = dict(self.arms.get(arm) or {})
        if "preset" in own:
            return resolve_method(own.pop("preset"), own)
        return resolve_method(self.method.preset, {**self.method.override, **own})

    def played_method(self, policy: str) -> Method:
        """The method a policy is evaluated under: `method`, but its text read and shown back as its own arm trained it.

        All policies meet the same rules and caps, so that their scores compare.
        """
        arm = split_run(policy)[0] if policy in self.train.runs else ""
        own = self.resolved_method(arm)
        return replace(self.resolved_method(), **{key: getattr(own, key) for key in READING})


def split_run(name: str) -> tuple[str, int]:
    """The arm and the seed of a training: `no_grounding-2` -> ("no_grounding", 2)."""
    arm, _, seed = name.rpartition("-")
    return arm, int(seed)
