"""Sections of params.yaml that rows, the start policy and training read: data, desk, policy, rollout, judge,
train, sft, engine.

Defaults are the laptop size or neutral; a field's docstring is its comment in params.yaml.
"""

from __future__ import annotations

from dataclasses import field
from typing import Annotated, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from envace.config.values import (
    CONFIG,
    Count,
    CountOrZero,
    Flag,
    Free,
    Listed,
    MaybeListed,
    NotNegative,
    Positive,
    Real,
    Share,
    Table,
    Temperature,
    TopP,
    Whole,
)


@dataclass(frozen=True, kw_only=True, config=CONFIG)
class MethodParams:
    preset: Literal["authors", "paper", "envace"] = "envace"
    """authors | paper | envace; `python -m envace.params` prints the resolved table."""
    override: Free = field(default_factory=dict)
    """Switches that differ from the preset."""


@dataclass(frozen=True, kw_only=True, config=CONFIG)
class DataParams:
    source: Literal["desk", "local", "s3", "hub"] = "desk"
    """desk | local | s3 | hub."""
    uri: str = ""
    """Folder, s3:// prefix or hub id; empty for the desk."""
    revision: str = ""
    patterns: Listed[str] = ("*.json", "*.jsonl", "*.parquet")
    """Files of the source; * crosses slashes."""
    sha256: Table[str] = field(default_factory=dict)
    """file: checksum it must have."""
    accept_changed: Flag = False
    """Take a source whose files changed since they were fetched."""
    require_thinking: Flag = False
    """One thought in every assistant message, as the published set has."""
    strict_tool_schema: Flag = False
    """Leave out rows whose tools the published loader refuses."""
    select: Table[object] = field(default_factory=dict)
    """Shares dropped by difficulty (docs/data.md)."""
    max_first_prompt_tokens: Count = 3500
    """Rows whose first prompt is longer are rejected."""
    licence: str = ""
    """Licence of rows that state none; empty is what their source states."""
    splits: Table[str] = field(default_factory=dict)
    """{train: pattern, held: pattern} of the source's files (docs/data.md)."""
    split: Literal["hash", "first_n"] = "hash"
    """hash | first_n, for rows that bring no split of their own."""
    held_share: Share = 0.1
    """Held out under `hash`, chosen by the hash of their id."""
    held_rows: Count = 100
    """Held out under `first_n`: the source's first rows."""
    workers: CountOrZero = 0
    """Processes; 0 is one a core."""


@dataclass(frozen=True, kw_only=True, config=CONFIG)
class DeskParams:
    seed: Whole = 7
    train_tasks: Annotated[Whole, Field(ge=4, le=1000000)] = 96
    held_tasks: Annotated[Whole, Field(ge=2, le=1000000)] = 24
    validation_tasks: CountOrZero = 0
    """Drawn like the held-out ones, to choose settings by; 0 leaves the split out."""
    unseen_tasks: CountOrZero = 0
    """Combinations of goal and refusal that training never meets; 0 leaves the split out."""
    files_tasks: CountOrZero = 0
    """Tasks of the second world, for transfer; 0 leaves the split out."""


@dataclass(frozen=True, kw_only=True, config=CONFIG)
class TinyParams:
    """The tiny Qwen3-architecture policy, made from scratch."""

    hidden: Annotated[Whole, Field(ge=16, le=1024)] = 128
    layers: Annotated[Whole, Field(ge=1, le=24)] = 3
    heads: Annotated[Whole, Field(ge=1, le=32)] = 4
    vocab: Annotated[Whole, Field(ge=320, le=32000)] = 768
    updates: CountOrZero = 2000
    """Warm-start updates on expert transcripts; 0 leaves random weights."""
    batch: Count = 32
    lr: Positive = 3e-3
    tasks: Count = 1600
    """Transcripts to warm-start from, disjoint from train and held-out tasks."""
    threads: Count = 2


@dataclass(frozen=True, kw_only=True, config=CONFIG)
class PolicyParams:
    kind: Literal["bundled", "tiny", "hub", "local"] = "bundled"
    """bundled (made by make warmstart) | tiny (warm-started here) | hub | local."""
    uri: str = ""
    revision: str = ""
    tiny: TinyParams = TinyParams()


@dataclass(frozen=True, kw_only=True, config=CONFIG)
class SimulatorParams:
    """An OpenAI-compatible server that plays the world where method.source is simulator."""

    base_url: str = ""
    model: str = ""
    key_env: str = ""
    """Variable that holds the key."""
    temperature: Temperature = 1.0
    top_p: TopP = 1.0
    max_tokens: CountOrZero = 0
    """Longest output, thoughts included; 0 is rollout.response_tokens."""
    timeout_s: Positive = 60.0
    """Seconds of one attempt."""
    attempts: Count = 4
    concurrency: Count = 64
    """Requests in flight in one process."""
    extra_body: Free = field(default_factory=dict)
    """Sent with every request."""


@dataclass(frozen=True, kw_only=True, config=CONFIG)
class McpParams:
    """An MCP server that answers calls where method.source is mcp (docs/your-world.md)."""

    transport: Literal["http", "sse", "stdio"] = "http"
    """http | sse | stdio."""
    url: str = ""
    """With stdio: the command that starts a server, one for each episode."""
    key_env: str = ""
    """Variable that holds a bearer token; with stdio: variable the server is given."""
    timeout_s: Positive = 30.0
    """To connect, and of one call."""
    attempts: Count = 3
    """To connect; a call is asked once."""
    max_chars: Count = 4000
    """Characters of one response; the rest is cut off."""


@dataclass(frozen=True, kw_only=True, config=CONFIG)
class RolloutParams:
    prompt_set: str = "compact"
    """A folder of envace/prompts: compact, full, or your own (docs/your-world.md)."""
    prompt_tokens: Count = 896
    """Longest REHEARSE prompt; ACT's may grow into the context, see method.context_stop."""
    response_tokens: Count = 128
    """Longest output of one generation."""
    max_steps: Count = 10
    """ACT generations an episode."""
    max_calls: Count = 10
    """Tool calls an episode."""
    max_parallel: Count = 4
    """Calls in one ACT generation."""
    max_errors: CountOrZero = 4
    """Failed calls an episode survives."""
    deadline_s: Positive = 120.0
    """Wall clock of one episode."""
    temperature: Temperature = 1.0
    top_p: TopP = 1.0
    enable_thinking: Flag = False
    worlds: Table[str] = field(default_factory=dict)
    """Your own executable worlds, name: module:Class (docs/your-world.md)."""
    simulator: SimulatorParams = SimulatorParams()
    mcp: McpParams = McpParams()

    @property
    def context(self) -> int:
        """Tokens a model must hold: prompt and response of one generation."""
        return self.prompt_tokens + self.response_tokens


@dataclass(frozen=True, kw_only=True, config=CONFIG)
class JudgeParams:
    kind: Literal["rule", "llm"] = "rule"
    """rule | llm."""
    base_url: str = ""
    model: str = ""
    key_env: str = ""
    temperature: Annotated[Real, Field(ge=0.0, le=2.0)] = 0.6
    top_p: TopP = 0.8
    max_tokens: Count = 6000
    timeout_s: Positive = 120.0
    attempts: Count = 5
    concurrency: Count = 64
    endpoints: Table[Real] = field(default_factory=dict)
    """More servers of the same model, address: weight."""
    audit: Share = 0.02
    """Share of turns that a language model judges in the other method.judge_mode too."""
    audit_seed: CountOrZero = 1
    cache: str = ""
    """Folder for answers (docs/judge.md); empty keeps none."""
    price_in: NotNegative = 0.0
    """Price of a million tokens read."""
    price_out: NotNegative = 0.0
    """Price of a million tokens written."""
    max_unscored: Share = 0.25
    """The run stops above this rate of unscored episodes in a step."""


@dataclass(frozen=True, kw_only=True, config=CONFIG)
class TrainParams:
    runs: Listed[str] = ("envace-1",)
    """<arm>-<seed>, one training each."""
    steps: Count = 16
    prompts: Count = 8
    """Prompts a step."""
    group: Annotated[Whole, Field(ge=2, le=1024)] = 8
    """Episodes a prompt."""
    lr: Positive = 2e-4
    lr_schedule: Literal["constant", "cosine"] = "constant"
    """constant | cosine, which falls to nothing at the last step."""
    warmup_steps: CountOrZero = 0
    weight_decay: NotNegative = 0.01
    grad_clip: Positive = 1.0
    clip_ratio: Annotated[Real, Field(ge=0.0, le=1.0)] = 0.2
    entropy: NotNegative = 0.0
    max_logprob_gap: Positive = 0.001
    """A step warns when server and trainer lie further apart (docs/operations.md)."""
    save_every: Count = 4
    keep_every: CountOrZero = 0
    """0 keeps only rolling checkpoints; k also keeps every k-th step's weights."""
    rolling: Count = 2
    """Rolling checkpoints kept."""
    shuffle: Flag = True


@dataclass(frozen=True, kw_only=True, config=CONFIG)
class SFTParams:
    """Continued supervised training, the control that spends its time on expert texts instead."""

    seeds: MaybeListed[int] = ()
    """One policy each, named sft-<seed>."""
    updates: Count = 600
    lr: Positive = 3e-4
    """Peak; falls as in the warm start."""


@dataclass(frozen=True, kw_only=True, config=CONFIG)
class EngineParams:
    device: Literal["cpu", "gpu"] = "cpu"
    """cpu | gpu."""
    rollout: Literal["hf", "vllm"] = "hf"
    """hf on CPU, vllm on GPU."""
    python: str = ""
    """Interpreter of the trainer environment; empty means this one."""
    nodes: Count = 1
    gpus_per_node: Count = 1
    """On CPU the number of ranks."""
    tensor_parallel: Count = 1
    gpu_memory: Share = 0.6
    max_tokens_per_gpu: Count = 8192
    """Tokens of one micro-batch."""
    offload: Flag = False
    gradient_checkpointing: Flag = False
    workers: Count = 1
    """Agent-loop processes."""
    concurrency: Count = 64
    """Sequences the rollout server decodes at once."""
    object_store_mb: Count = 500
    start_timeout_s: Positive = 300.0
    """Until the first sign of life."""
    step_timeout_s: Positive = 600.0
    """Longest silence between signs of life."""
    deadline_s: Positive = 3600.0
    """Whole training subprocess."""
    ray_address: str = ""
    """Empty starts a local Ray."""
