"""params.yaml -> frozen dataclasses, checked before anything heavy is imported.

Flows in: the YAML text the user edits. Flows out: `Params`, every value typed and inside its range.
Invariant: an unknown, misspelt, mistyped or out-of-range value raises `ParamsError` with one sentence naming
the key, the value and, for a key, the nearest valid one. Nothing here imports torch, verl, Prefect or MLflow.

`python -m envace.params` checks the file and prints the resolved method table.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import re
import shlex
import sys
import types
import typing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml

from envace.errors import ParamsError, boundary
from envace.method import Method, resolve_method


@dataclass(frozen=True)
class Range:
    """Both ends are allowed values."""

    low: float = -math.inf
    high: float = math.inf


SFT = "sft"  # how policies of continued supervised training are named: sft-<seed>
MAY_BE_EMPTY = "may be empty"  # of a list; others must name something
Count = Annotated[int, Range(1)]
CountOrZero = Annotated[int, Range(0)]
Share = Annotated[float, Range(0.0, 1.0)]
Positive = Annotated[float, Range(1e-12)]
Port = Annotated[int, Range(1024, 65535)]
Benchmark = Literal["desk", "desk-unseen", "files"]  # played in this process; harnesses are under `bench`
Harness = Literal["bfcl", "tau2", "vita", "finmcp"]


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
    strict_tool_schema: bool = False  # leave out rows whose tools verl's own schema refuses
    select: dict[str, Any] = field(
        default_factory=dict
    )  # shares dropped by difficulty, see envace/data/select.py
    max_first_prompt_tokens: Count = 3500  # rows whose first prompt is longer are rejected
    split: Literal["hash", "first_n"] = "hash"  # of rows that bring no split of their own
    held_share: Share = 0.0625  # held out under `hash`, chosen by seed and id
    held_rows: Count = 100  # held out under `first_n`
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
    prompt_set: Literal["compact", "full"] = "compact"
    prompt_tokens: Count = 896  # longest prompt of one generation
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
    mode: Literal["turn", "step_item"] = "turn"  # one call a turn, or the paper's one a step and item
    audit: Share = 0.0  # of turns judged in the other mode too
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
class RoleParams:
    """Who plays a part in a benchmark: an OpenAI-compatible server, or fixed lines; neither leaves the part out."""

    base_url: str = ""
    model: str = ""
    key_env: str = ""  # variable that holds the key
    context: Count = 32768
    temperature: Annotated[float, Range(0.0, 5.0)] = 0.0
    max_tokens: Count = 4096
    extra_body: dict[str, Any] = field(default_factory=dict)  # sent with every request
    script: Annotated[tuple[str, ...], MAY_BE_EMPTY] = ()  # lines said in order, in place of a server: smoke runs


@dataclass(frozen=True, kw_only=True)
class BaselineParams:
    """A policy to compare with: weights on the hub at a revision, or a server."""

    uri: str = ""  # hub id
    revision: str = ""  # 40-digit commit
    base_url: str = ""
    model: str = ""
    key_env: str = ""
    context: Count = 32768


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
    max_tokens: Count = 4096
    thinking: bool = False
    concurrency: Count = 8
    deadline_s: Positive = 14400.0  # of one process of a harness
    min_complete: Share = 1.0
    user: RoleParams = RoleParams()
    judge: RoleParams = RoleParams()
    options: dict[str, dict[str, Any]] = field(default_factory=dict)  # benchmark: what its adapter takes


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
    failed_traces: CountOrZero = 64  # and at most so many that failed; the rest is counted


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
    arms: dict[str, Any] = field(default_factory=dict)  # arm name -> method overrides on top of `method`
    sft: SFTParams = SFTParams()
    engine: EngineParams = EngineParams()
    eval: EvalParams = EvalParams()
    tts: TTSParams = TTSParams()
    fidelity: FidelityParams = FidelityParams()
    bench: BenchParams = BenchParams()
    report: ReportParams = ReportParams()
    prefect: PrefectParams = PrefectParams()
    mlflow: MlflowParams = MlflowParams()

    @property
    def arms_trained(self) -> tuple[str, ...]:
        """The arms of `train.runs`, each once."""
        return tuple(dict.fromkeys(split_run(run)[0] for run in self.train.runs))

    def resolved_method(self, arm: str = "") -> Method:
        """The method table of an arm: preset, then `method.override`, then the arm's own overrides."""
        own = self.arms.get(arm) or {}
        return resolve_method(self.method.preset, {**self.method.override, **own})


def split_run(name: str) -> tuple[str, int]:
    """The arm and the seed of a training: `no_grounding-2` -> ("no_grounding", 2)."""
    arm, _, seed = name.rpartition("-")
    return arm, int(seed)


# --- reading ------------------------------------------------------------------------------------------------

CLASS_PATH = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")  # module:Class
BASELINE = re.compile(r"[A-Za-z0-9][\w.-]*", re.A)
RUN = re.compile(r"[A-Za-z]\w*-(0|[1-9]\d*)", re.A)  # arm-seed
TTS_POINT = re.compile(r"plain-0|(parallel|sequential)-([1-9]|[1-5]\d|6[0-4])")
NUMBER = re.compile(
    r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?\Z"
)  # YAML reads 1e-6 as a string; users mean a number


def load(path: str | Path = "params.yaml") -> Params:
    """Read and check a parameter file. Raises ParamsError."""
    path = Path(path)
    if not path.is_file():
        raise ParamsError(
            f"{path} does not exist: run from the project's folder, or restore it with `make size NAME=laptop`"
        )
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as e:
        mark = getattr(e, "problem_mark", None)
        where = f" at line {mark.line + 1}" if mark else ""
        raise ParamsError(f"{path} is not valid YAML{where}: {getattr(e, 'problem', None) or e}") from None
    return parse(data, str(path))


def parse(data: Any, where: str = "params.yaml") -> Params:
    """Plain data -> Params. Raises ParamsError on the first value that cannot be used."""
    if not isinstance(data, dict):
        raise ParamsError(f"{where} must hold a mapping of sections, not {_kind(data)}")
    params = _record(Params, data, "", where)
    _cross_check(params, where)
    return params


def _cross_check(p: Params, where: str) -> None:
    for run in p.train.runs:
        if not RUN.fullmatch(run):
            raise ParamsError(
                f"{where}: train.runs names {run!r}, must be an arm and a seed, such as envace-1"
            )
        arm, _ = split_run(run)
        if arm not in p.arms and arm != "envace":
            known = ["envace", *p.arms]
            raise ParamsError(
                f"{where}: train.runs names {run!r}, but `arms` does not define {arm!r}; known arms: "
                f"{', '.join(known)}{_nearest(arm, known)}"
            )
    if SFT in p.arms:
        raise ParamsError(f"{where}: arms.{SFT} cannot be an arm; sft.seeds trains policies of that name")
    for arm in ("", *p.arms):
        try:
            p.resolved_method(arm)
        except ParamsError as e:
            raise ParamsError(
                f"{where}: {f'arms.{arm}' if p.arms.get(arm) else 'method.override'}: {e}"
            ) from None
    _check_sources(p, where)
    known = ["start", *p.train.runs, *(f"{SFT}-{s}" for s in p.sft.seeds)]
    for key, names in (
        ("eval.policies", p.eval.policies),
        ("tts.policy", (p.tts.policy,)),
        ("fidelity.policies", p.fidelity.policies),
        ("bench.policies", tuple(n for n in p.bench.policies if n not in p.bench.baselines)),
    ):
        for name in names:
            if name not in known:
                raise ParamsError(
                    f"{where}: {key} names {name!r}, which no stage makes; policies here: {', '.join(known)}{_nearest(name, known)}"
                )
    _check_bench(p, where, known)
    for point in p.tts.points:
        if not TTS_POINT.fullmatch(point):
            raise ParamsError(
                f"{where}: tts.points names {point!r}, must be plain-0, or parallel or sequential with a number from 1 to 64, such as parallel-2"
            )
    if "plain-0" not in p.tts.points:
        raise ParamsError(
            f"{where}: tts.points lacks plain-0, the control every other point is compared with"
        )
    if p.policy.kind in ("hub", "local") and not p.policy.uri:
        raise ParamsError(
            f"{where}: policy.uri is empty; policy.kind {p.policy.kind!r} needs a hub id or a folder"
        )
    if p.policy.tiny.hidden % p.policy.tiny.heads:
        raise ParamsError(
            f"{where}: policy.tiny.hidden ({p.policy.tiny.hidden}) must be a multiple of policy.tiny.heads ({p.policy.tiny.heads})"
        )
    if p.train.keep_every % p.train.save_every:
        raise ParamsError(
            f"{where}: train.keep_every ({p.train.keep_every}) must be a multiple of train.save_every ({p.train.save_every})"
        )
    if p.judge.kind == "llm" and not ((p.judge.base_url or p.judge.endpoints) and p.judge.model):
        raise ParamsError(
            f"{where}: judge.kind is 'llm' but judge.model is empty or no server is named (judge.base_url, judge.endpoints)"
        )
    if p.engine.rollout == "vllm" and p.engine.device == "cpu":
        raise ParamsError(f"{where}: engine.rollout 'vllm' needs engine.device 'gpu'; on CPU use 'hf'")
    if p.data.source != "desk" and not p.data.uri:
        raise ParamsError(
            f"{where}: data.uri is empty; data.source {p.data.source!r} needs a folder, an s3:// prefix or a hub id"
        )
    for name, target in p.rollout.worlds.items():
        if not name or not CLASS_PATH.fullmatch(target):
            raise ParamsError(
                f"{where}: rollout.worlds.{name} is {target!r}, must be the module and class of a world, "
                "such as my_shop:Shop"
            )
    if p.data.source == "hub" and not re.fullmatch(r"[0-9a-f]{40}", p.data.revision):
        raise ParamsError(
            f"{where}: data.revision must be a 40-digit commit for data.source 'hub', not {p.data.revision!r}"
        )


def _check_bench(p: Params, where: str, made: list[str]) -> None:
    for name, base in p.bench.baselines.items():
        if name in made or not BASELINE.fullmatch(name):
            cause = "is made by another stage" if name in made else "must be letters, digits, dots, - and _"
            raise ParamsError(f"{where}: bench.baselines.{name}: the name {cause}")
        if bool(base.uri) == bool(base.base_url):
            raise ParamsError(
                f"{where}: bench.baselines.{name} needs either uri (hub id) or base_url (a server)"
            )
        if base.uri and not re.fullmatch(r"[0-9a-f]{40}", base.revision):
            raise ParamsError(
                f"{where}: bench.baselines.{name}.revision must be a 40-digit commit, not {base.revision!r}"
            )
        if base.base_url and not base.model:
            raise ParamsError(
                f"{where}: bench.baselines.{name}.model is empty; name the model the server offers"
            )
    if bool(p.bench.policies) != bool(p.bench.benchmarks):
        lacking = "benchmarks" if p.bench.policies else "policies"
        raise ParamsError(f"{where}: bench.{lacking} is empty; name at least one, or empty both lists")
    for key, users in (("user", ("tau2", "vita")), ("judge", ("vita",))):
        needs = [b for b in users if b in p.bench.benchmarks]
        role = getattr(p.bench, key)
        if role.script and role.base_url:
            raise ParamsError(f"{where}: bench.{key} has both script and base_url; empty one of them")
        if needs and not (role.script or (role.base_url and role.model)):
            raise ParamsError(
                f"{where}: bench.{key}.base_url and .model must name a server (or script its lines): {needs[0]} needs "
                f"one as its {key}"
            )


def _check_sources(p: Params, where: str) -> None:
    """The servers that an arm's source needs are named."""
    used = {p.resolved_method(arm).source for arm in p.arms_trained}
    simulator, mcp = p.rollout.simulator, p.rollout.mcp
    if "simulator" in used and not (simulator.base_url and simulator.model):
        raise ParamsError(
            f"{where}: method.source is 'simulator' but rollout.simulator.base_url or .model is empty; name the "
            "server that plays the world"
        )
    if "mcp" not in used:
        return
    if not mcp.url:
        raise ParamsError(f"{where}: method.source is 'mcp' but rollout.mcp.url is empty; name the server")
    if mcp.transport == "stdio":
        try:
            empty = not shlex.split(mcp.url)
        except ValueError as e:
            raise ParamsError(f"{where}: rollout.mcp.url is no command line: {e}") from None
        if empty:
            raise ParamsError(f"{where}: rollout.mcp.url is blank; name the command that starts the server")
    elif not re.match(r"https?://[^/\s]", mcp.url):
        raise ParamsError(f"{where}: rollout.mcp.url is {mcp.url!r}, must begin with http:// or https://")


def _record(cls: type, data: Any, prefix: str, where: str) -> Any:
    if not isinstance(data, dict):
        raise ParamsError(f"{where}: {prefix[:-1]} must be a mapping, not {_kind(data)}")
    hints = typing.get_type_hints(cls, include_extras=True)
    names = [f.name for f in dataclasses.fields(cls)]
    for key in data:
        if key not in names:
            raise ParamsError(
                f"{where}: unknown key {prefix}{key} (value {data[key]!r}){_nearest(str(key), names, prefix)}"
            )
    return cls(**{k: _value(hints[k], v, f"{prefix}{k}", where) for k, v in data.items()})


def _value(hint: Any, value: Any, key: str, where: str) -> Any:
    if dataclasses.is_dataclass(hint):
        return _record(hint, value, key + ".", where)
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        if args[1] is MAY_BE_EMPTY and value == []:
            return ()
        value = _value(args[0], value, key, where)
        if args[1] is MAY_BE_EMPTY:
            return value
        low, high = args[1].low, args[1].high
        if not low <= value <= high:
            bound = f"at least {low:g}" if value < low else f"at most {high:g}"
            raise ParamsError(f"{where}: {key} is {value!r}, must be {bound}")
        return value
    if origin is Literal:
        if value not in args or isinstance(value, bool):
            raise ParamsError(
                f"{where}: {key} is {value!r}, must be one of {', '.join(map(str, args))}{_nearest(str(value), [str(a) for a in args])}"
            )
        return value
    if origin is tuple:
        if not isinstance(value, (list, tuple)) or not value:
            raise ParamsError(f"{where}: {key} is {value!r}, must be a non-empty list")
        items = tuple(_value(args[0], v, f"{key}[{i}]", where) for i, v in enumerate(value))
        if len(set(items)) < len(items):
            raise ParamsError(f"{where}: {key} is {list(items)!r}, must not repeat a value")
        return items
    if origin is dict:
        if value is None:
            return {}
        if not isinstance(value, dict):
            raise ParamsError(f"{where}: {key} must be a mapping, not {_kind(value)}")
        if args[1] is Any:
            return dict(value)
        for k in value:
            _scalar(args[0], k, f"a name in {key}", where)
        return {k: _value(args[1], v, f"{key}.{k}", where) for k, v in value.items()}
    return _scalar(hint, value, key, where)


def _scalar(hint: type, value: Any, key: str, where: str) -> Any:
    if hint is float and isinstance(value, str) and NUMBER.match(value):
        value = float(value)
    if (
        hint is int
        and isinstance(value, str)
        and NUMBER.match(value)
        and float(value).is_integer()
        and "e" in value.lower()
    ):
        value = int(float(value))
    good = {
        bool: isinstance(value, bool),
        int: isinstance(value, int) and not isinstance(value, bool),
        float: isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value),
        str: isinstance(value, str),
    }[hint]
    if not good:
        name = {bool: "true or false", int: "a whole number", float: "a finite number", str: "text"}[hint]
        raise ParamsError(f"{where}: {key} is {value!r} ({_kind(value)}), must be {name}")
    return float(value) if hint is float else value


def _kind(value: Any) -> str:
    if value is None:
        return "nothing"
    return {
        bool: "true/false",
        int: "a whole number",
        float: "a number",
        str: "text",
        list: "a list",
        dict: "a mapping",
    }.get(type(value), type(value).__name__)


def _nearest(name: str, known: list[str], prefix: str = "") -> str:
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.4)
    return (
        f"; did you mean {prefix}{near[0]}?"
        if near
        else f"; valid here: {', '.join(prefix + k for k in known)}"
    )


# --- writing ------------------------------------------------------------------------------------------------


def to_dict(record: Any) -> Any:
    """Params (or a section) as plain data, tuples as lists."""
    if dataclasses.is_dataclass(record):
        return {f.name: to_dict(getattr(record, f.name)) for f in dataclasses.fields(record)}
    if isinstance(record, (tuple, list)):
        return [to_dict(v) for v in record]
    if isinstance(record, (dict, types.MappingProxyType)):
        return {k: to_dict(v) for k, v in record.items()}
    return record


def flatten(data: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested mapping -> dotted keys, as MLflow parameters: {"train.lr": 1e-4, ...}."""
    flat: dict[str, Any] = {}
    for key, value in data.items():
        name = f"{prefix}{key}"
        if isinstance(value, dict) and value:
            flat.update(flatten(value, name + "."))
        else:
            flat[name] = ",".join(map(str, value)) if isinstance(value, (list, tuple)) else value
    return flat


def main() -> None:
    """Check params.yaml and print the resolved method table."""
    import argparse

    cli = argparse.ArgumentParser(prog="python -m envace.params", description=main.__doc__)
    cli.add_argument("path", nargs="?", default="params.yaml")
    cli.add_argument("--quiet", action="store_true", help="print nothing when the file is good")
    cli.add_argument("--get", metavar="KEY", help="print one value, e.g. mlflow.port")
    args = cli.parse_args()
    with boundary("parameters"):
        params = load(args.path)
        flat = flatten(to_dict(params))
        if args.get:
            if args.get not in flat:
                raise ParamsError(f"no parameter {args.get}{_nearest(args.get, list(flat))}")
            print(flat[args.get])
        elif not args.quiet:
            print(
                f"{args.path}: size {params.size}, preset {params.method.preset}, runs {', '.join(params.train.runs)}"
            )
            for arm in params.arms_trained:
                for key, value in dataclasses.asdict(params.resolved_method(arm)).items():
                    print(f"  {arm:12} {key:20} {value}")


if __name__ == "__main__":
    sys.exit(main())
