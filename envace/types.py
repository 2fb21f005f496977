"""The records every part of the project exchanges.

Flows in: nothing. Flows out: frozen, keyword-only records, written to disk as JSON by `to_json` and read
back by `from_json` (pydantic validates every field).
Invariant: a record is never changed after it is made; a failure is a named value inside a record, never a
missing record.

Suffixes used on names across the project: `_P` prompts, `_G` group members, `_R` rows, `_T` tokens.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from dataclasses import replace as replace  # a copy of a record with some fields changed
from enum import StrEnum
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from _typeshed import DataclassInstance
    from pydantic import TypeAdapter

JSON = Any  # a value json.loads can return


class Role(StrEnum):
    """Which part the one policy plays in a generation."""

    ACT = "act"  # writes the next tool call or the reply to the user
    REHEARSE = "rehearse"  # plays the environment: writes the response of one call


class Source(StrEnum):
    """Who answered a tool call."""

    REHEARSAL = "rehearsal"  # the policy itself, in its REHEARSE role
    SIMULATOR = "simulator"  # another model given the identical REHEARSE prompt
    RECORDED = "recorded"  # a recorded result of the same call
    ENVIRONMENT = "environment"  # an executable world
    VALIDATOR = "validator"  # nobody was asked: the call was refused before


class StopReason(StrEnum):
    """Why an episode ended. Exactly one per episode."""

    DONE = "done"  # the last user turn was answered
    REQUIRED_ITEM = "required_item"  # a checklist item that the next turn builds on was not met
    JUDGE_FAILED = "judge_failed"  # a verdict could not be had; the episode is unscored
    STEP_BUDGET = "step_budget"  # the cap on ACT generations was reached
    CALL_BUDGET = "call_budget"  # the cap on tool calls was reached
    CONTEXT_BUDGET = "context_budget"  # no room left for another useful generation
    ERROR_BUDGET = "error_budget"  # too many failed calls
    TOOL_ERROR = "tool_error"  # an invalid call or a broken response (on_tool_error: terminate)
    DEADLINE = "deadline"  # the episode took longer than its wall-clock limit; unscored
    CANCELLED = "cancelled"  # the run stopped while the episode was in flight
    POLICY_FAILED = "policy_failed"  # the policy raised or returned nothing usable; unscored
    SOURCE_FAILED = "source_failed"  # the observation source raised; unscored


class FailureReason(StrEnum):
    """What was wrong with one generation or call. Counted per role; none ends a run."""

    EMPTY_OUTPUT = "empty_output"  # no visible text
    TRUNCATED = "truncated"  # the generation hit its token budget
    NO_CALL_FOUND = "no_call_found"  # a call tag without a well-formed block
    BAD_JSON = "bad_json"  # the body is not JSON (NaN and duplicate keys are not JSON)
    NO_ARGUMENTS = "no_arguments"  # arguments missing or not an object
    NO_NAME = "no_name"  # tool name missing, blank or not a string
    UNKNOWN_TOOL = "unknown_tool"  # the tool is not on the task's list
    SCHEMA_VIOLATION = "schema_violation"  # arguments break the tool's JSON schema
    INVALID_CALL = "invalid_call"  # REHEARSE, who checks calls, found it invalid (validation: rehearsal)
    TOO_MANY_CALLS = "too_many_calls"  # more parallel calls than allowed
    NO_RESULT_TAG = "no_result_tag"  # REHEARSE wrote no <execution_result> block
    RESULT_TAG_MALFORMED = "result_tag_malformed"  # opened but not closed, or more than one
    RESULT_BAD_JSON = "result_bad_json"
    RESULT_BAD_TYPE = "result_bad_type"  # neither a non-empty object nor a list
    PROMPT_TOO_LONG = "prompt_too_long"  # the prompt does not fit even after cutting by section
    NO_RECORD = "no_record"  # the recorded source has no result for this call


class FinishReason(StrEnum):
    STOP = "stop"  # the model closed its turn
    LENGTH = "length"  # the token budget ran out
    ABORT = "abort"  # the server gave up


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """One call ACT asks for: `ToolCall(name="get_order", arguments={"order_id": "#kite"})`."""

    name: str
    arguments: JSON
    """An object; under `grammar: published` whatever was written but null."""

    @property
    def named(self) -> dict[str, JSON]:
        """The arguments by name; none where they are no object."""
        return self.arguments if isinstance(self.arguments, dict) else {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """What ACT sees as the call's response.

    `Observation(content={"order_id": "#kite", "status": "pending"}, source=Source.REHEARSAL)`;
    an error: `Observation(content={"error": "order not found"}, source=..., error=True)`.
    """

    content: JSON
    """Object or list; rendered with json.dumps into the tool message."""
    source: Source
    error: bool = False
    """The world (or the validator) refused the call."""
    failure: FailureReason | None = None
    """Something broke while getting the response."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One chat message. Tool messages answer the calls of the message before them, in order."""

    role: str
    """`system`, `user`, `assistant` or `tool`."""
    content: str
    """Visible text; for tool messages the JSON text of the response."""
    thinking: str = ""
    """Assistant only: text inside <think>...</think>."""
    calls: tuple[ToolCall, ...] = ()
    """Assistant only."""
    name: str = ""
    """Tool only: the tool that answered."""
    turn: int = 0
    """Index of the user turn it belongs to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One checklist question of a turn (CM2 schema; `rule` is what a judge without an LLM evaluates)."""

    id: str
    """`C0`."""
    question: str
    pass_condition: str
    focus_on: str
    """`assistant.tool_calls`, `assistant.content.thinking`, `assistant.content.user_visible_reply` or
    `tool.content`."""
    weight: float
    """Weights of a turn sum to 1."""
    required_for_next_turn: bool = False
    failure_examples: tuple[str, ...] = ()
    dependence: tuple[str, ...] = ()
    evidence: tuple[JSON, ...] = ()
    rule: dict[str, JSON] | None = None
    """See envace/judge/rules.py."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """A recorded call with its true result, from the task's reference dialogue."""

    turn: int
    call: ToolCall
    result: JSON


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One prompt: everything an episode needs except who plays it."""

    id: str
    prefix: tuple[Message, ...]
    """Optional system message, then the first user message."""
    user_turns: tuple[str, ...] = ()
    """Scripted later user messages, in order."""
    tools: tuple[dict[str, JSON], ...]
    """OpenAI function schemas."""
    checklist: tuple[tuple[Item, ...], ...]
    """One tuple of items per user turn."""
    records: tuple[Record, ...] = ()
    source: str
    """`desk`, `cm2`, ..."""
    tags: tuple[str, ...] = ()
    world: dict[str, JSON] | None = None
    """What an executable environment needs to rebuild itself; never shown to a model."""
    reference: tuple[Message, ...] = ()
    """The whole reference dialogue, prefix included; never shown to a model."""
    lent: tuple[Record, ...] = ()
    """Of another task, shown to REHEARSE under `few_shot: other_sample`; never staged."""

    @property
    def n_turns(self) -> int:
        return 1 + len(self.user_turns)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    temperature: float = 1.0
    """0 is greedy."""
    top_p: float = 1.0
    top_k: int = -1
    max_tokens: int = 512
    seed: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """One model call: the exact ids that went in and came out."""

    role: Role
    turn: int
    step: int
    """Index of the ACT generation it is or belongs to."""
    call_index: int = 0
    """REHEARSE: which of the parallel calls."""
    prompt_ids: tuple[int, ...]
    output_ids: tuple[int, ...]
    """Includes the end-of-turn token when the model wrote it."""
    logprobs: tuple[float, ...]
    """[len(output_ids)] of the distribution sampled from; empty when unknown."""
    text: str
    """Decoded output without the end-of-turn token."""
    sampling: Sampling
    finish: FinishReason
    weight_version: int | None = None
    """Optimizer steps behind the weights that wrote it."""
    failure: FailureReason | None = None
    agreement: float | None = None
    """With the true response, 0 to 1; REHEARSE, where a true source was asked as well."""
    seconds: float | None = field(default=None, compare=False)
    """Wall clock, waiting for a server included; no part of what was said."""


class Answer(StrEnum):
    YES = "yes"
    NO = "no"
    UNSCORED = "unscored"


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit:
    """What the other way of asking answered. It stands beside a verdict and never changes it."""

    answer: Answer
    cost_tokens: int = 0
    cost: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """A judge's answer to one item; an unscored one says why and is never counted as a no.

    What a turn has cost is split over its verdicts: one share says little, the sum is exact.
    """

    item_id: str
    turn: int
    answer: Answer
    reason: str = ""
    """When unscored: rule_missing, judge_timeout, judge_unreachable, judge_malformed, ..."""
    cost_tokens: int = 0
    seconds: float = 0.0
    cost: float = 0.0
    """Of those tokens, at judge.price_in and judge.price_out."""
    cached: bool = False
    """Kept from an earlier question; nobody was asked."""
    step: int | None = None
    """Under `judge_mode: step_item`, the first step of the turn, from 0, for which it held."""
    failed: str = ""
    """Under `judge_mode: step_item`, why the question about another step failed, of an item that held."""
    endpoint: str = ""
    """Host and port of who answered."""
    requests: int = 0
    retries: int = 0
    """Of the requests, those after a question's first."""
    faults: dict[str, int] = field(default_factory=dict)
    """Attempts without a usable answer, by reason."""
    audit: Audit | None = None
    """Of a turn in the sample of `judge.audit`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Episode:
    """One rollout from task to stop."""

    id: str
    """Given when dispatched."""
    task_id: str
    group_id: str
    """All episodes of one prompt in one batch."""
    attempt: int = 0
    seed: int
    prompt_set: str
    """Its hash."""
    generations: tuple[Generation, ...]
    messages: tuple[Message, ...]
    observations: tuple[Observation, ...] = ()
    """One per tool message, in order."""
    verdicts: tuple[Verdict, ...] = ()
    turn_rewards: tuple[float, ...] = ()
    """Of the turns that were judged."""
    reward: float | None
    """None = unscored, unless the method gives such an episode a number."""
    unscored_reason: str | None = None
    """What could not be had of a judge, the policy or a source."""
    stop: StopReason
    stop_detail: str = ""
    counters: dict[str, int] = field(default_factory=dict)
    """`act`, `rehearse`, `calls`, `errors`, `failure/<reason>`, ..."""
    real_calls: tuple[ToolCall, ...] = ()
    """The ledger: calls a true source answered, anchored ones too."""
    seconds: float = 0.0

    @property
    def unscored(self) -> bool:
        """Somebody other than the policy failed it, whatever number the method gives it."""
        return self.reward is None or self.unscored_reason is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyRef:
    """Where a policy's weights are, and which they are. Stands as card.json beside exported weights."""

    kind: str
    """`tiny`, `hub`, `local`, `trained` or `endpoint`."""
    uri: str
    """Folder relative to the project, or hub id."""
    revision: str = ""
    hash: str = ""
    """Sha256 over the weight files."""
    step: int = 0
    name: str = ""
    """`start`, `envace-1`, ..."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """An OpenAI-compatible server. `key_env` names the variable that holds the key, never the key."""

    base_url: str
    model: str
    key_env: str = ""
    context: int = 32768
    sampling: Sampling = Sampling()
    extra_body: dict[str, JSON] = field(default_factory=dict)
    """Sent with every request: `{"chat_template_kwargs": {...}}`."""


class SampleStatus(StrEnum):
    SCORED = "scored"
    AGENT_FAILURE = "agent_failure"  # the agent broke the rules of the harness: strict score 0
    INFRA_FAILURE = "infra_failure"  # not the agent's fault: no score
    MISSING = "missing"  # planned, never seen


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleRecord:
    """One task, one trial of an evaluation."""

    task: str
    trial: int
    seed: int
    status: SampleStatus
    reward: float | None = None
    metrics: dict[str, float] = field(default_factory=dict)
    """`{"success": 1.0, "steps": 4}`"""
    stop: str = ""
    error: str = ""
    episode_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreRecord:
    """One number of one benchmark with all that is needed to read it."""

    benchmark: str
    subset: str
    metric: str
    score: float | None
    """None when the completeness gate refused a headline."""
    low: float | None = None
    """95 % interval, bootstrap clustered by task."""
    high: float | None = None
    n_tasks: int
    n_trials: int
    n_scored: int
    n_agent_failure: int = 0
    n_infra_failure: int = 0
    n_missing: int = 0
    scale: str = "0-1"
    source: str = "strict"
    """`upstream`, `strict` or `derived`."""
    floors: dict[str, float] = field(default_factory=dict)
    """`{"do_nothing": 0.0, "random": 0.02}`"""
    harness: str = ""
    data_hash: str = ""
    policy: str = ""
    policy_hash: str = ""
    variant: str = "plain"
    """`plain`, `rehearse-parallel-2`, ..."""
    seed: int = 0
    skipped: tuple[str, ...] = ()
    versions: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One private rehearsal of a task and what the policy made of it."""

    index: int
    episode: Episode
    feedback: dict[str, JSON]
    feedback_ok: bool
    """False: malformed twice, `feedback` is the deterministic digest."""
    tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """What the committed run is told about the private ones; values in it are imagined."""

    text: str
    n_attempts: int
    tokens: int
    fallback: bool = False
    """The deterministic digest stood in for a malformed condensation."""
    cost_tokens: int = 0
    """Read and written to condense it."""


T = TypeVar("T")
_adapters: dict[type, TypeAdapter[Any]] = {}


def _adapter(cls: type[T]) -> TypeAdapter[T]:
    if cls not in _adapters:
        from pydantic import TypeAdapter  # late: who only reads parameters must not pay for it

        _adapters[cls] = TypeAdapter(cls)
    return _adapters[cls]


def to_json(record: DataclassInstance) -> dict[str, JSON]:
    """A record as plain JSON data (enums become their values, tuples lists)."""
    data: dict[str, JSON] = _adapter(type(record)).dump_python(record, mode="json")
    return data


def from_json(cls: type[T], data: JSON) -> T:
    """The inverse of `to_json`; raises pydantic.ValidationError naming the field that does not fit."""
    return _adapter(cls).validate_python(data)
