"""The body of an OpenAI request -> what is to be generated.

Invariant: nothing that was asked for is left out in silence. A field of the wrong type, and one that would
change the answer and is not served, is refused by name (`RequestRefused`, status 400); HARMLESS fields and
values under which a field changes nothing (NEUTRAL, null) are passed over.
"""

from __future__ import annotations

import json
from typing import Annotated, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from envace.types import JSON, Message, Sampling, ToolCall, replace

HARMLESS = {
    *("user", "metadata", "store", "service_tier", "safety_identifier", "prediction", "request_id"),
    *("prompt_cache_key", "prompt_cache_retention", "cache_salt", "priority"),
}
"""Fields without effect on the text of an answer."""
NEUTRAL: dict[str, tuple[JSON, ...]] = {
    **dict.fromkeys(("n", "best_of", "repetition_penalty", "length_penalty", "typical_p"), (1,)),
    **dict.fromkeys(("top_logprobs", "presence_penalty", "frequency_penalty", "min_p", "min_tokens"), (0,)),
    **dict.fromkeys(("echo", "ignore_eos", "continue_final_message", "use_beam_search"), (False,)),
    **dict.fromkeys(("include_stop_str_in_output", "logprobs", "add_special_tokens"), (False,)),
    **dict.fromkeys(("add_generation_prompt", "skip_special_tokens"), (True,)),
    **dict.fromkeys(("stop_token_ids", "bad_words", "functions"), ([],)),
    "suffix": ("",),
    "logit_bias": ({},),
    "function_call": ("auto", "none"),
    "modalities": (["text"],),
    "response_format": ({"type": "text"},),
}


class RequestRefused(Exception):
    """A request that cannot be served, with the HTTP status that says so."""

    def __init__(self, message: str, status: int = 400, kind: str = "BadRequestError"):
        super().__init__(message)
        self.status, self.kind = status, kind


class RequestPart(BaseModel):
    """A part of a body; null stands for a field that is not there."""

    model_config = ConfigDict(strict=True, frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, data: JSON) -> JSON:
        return {k: v for k, v in data.items() if v is not None} if isinstance(data, dict) else data


class StreamOptions(RequestPart):
    include_usage: bool = False


class TemplateOptions(RequestPart):
    model_config = ConfigDict(extra="forbid")

    enable_thinking: bool | None = None
    """None: as the server was started."""


class CalledFunction(RequestPart):
    name: str
    arguments: dict[str, JSON] = {}

    @field_validator("arguments", mode="before")
    @classmethod
    def _decoded(cls, value: JSON) -> JSON:
        """Written as JSON text, empty or null for none; only a JSON object has a place in the template."""
        if value is None or isinstance(value, str):
            return json.loads((value or "").strip() or "{}")
        return value


class HistoryCall(RequestPart):
    id: str = ""
    function: CalledFunction


class ContentPart(RequestPart):
    text: str


class HistoryMessage(RequestPart):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[ContentPart] = ""
    reasoning_content: str = ""
    reasoning: str = ""
    tool_calls: list[HistoryCall] = []
    function_call: None = None  # of 2023, not served
    tool_call_id: str = ""
    name: str = ""


class OfferedFunction(RequestPart):
    model_config = ConfigDict(extra="allow")

    name: str


class OfferedTool(RequestPart):
    type: Literal["function"] = "function"
    function: OfferedFunction


class CompletionRequest(RequestPart):
    """What both kinds of request say."""

    model_config = ConfigDict(extra="forbid")

    model: str = ""
    temperature: Annotated[float | None, Field(ge=0, le=100)] = None
    top_p: Annotated[float | None, Field(ge=1e-6, le=1)] = None
    top_k: Annotated[int | None, Field(ge=-1, le=10**9)] = None
    seed: Annotated[int | None, Field(ge=-(2**63), le=2**64)] = None
    stop: str | list[str] = []
    max_tokens: Annotated[int | None, Field(ge=1, le=10**9)] = None
    """None: as many as the context holds."""
    max_completion_tokens: Annotated[int | None, Field(ge=1, le=10**9)] = None
    stream: bool = False
    stream_options: StreamOptions = StreamOptions()

    @model_validator(mode="before")
    @classmethod
    def _what_matters(cls, data: JSON) -> JSON:
        if not isinstance(data, dict):
            return data
        return {k: v for k, v in data.items() if k not in HARMLESS and v not in NEUTRAL.get(k, ())}

    @property
    def limit(self) -> int | None:
        """Tokens that may be written, None where nothing is said."""
        return self.max_completion_tokens or self.max_tokens

    @property
    def stops(self) -> list[str]:
        return [text for text in ([self.stop] if isinstance(self.stop, str) else self.stop) if text]

    def sampling(self, defaults: Sampling) -> Sampling:
        """The settings asked for, the server's where nothing is said; `max_tokens` is left as it is there."""
        said = {name: getattr(self, name) for name in ("temperature", "top_p", "seed")}
        said["top_k"] = -1 if self.top_k == 0 else self.top_k
        return replace(defaults, **{name: value for name, value in said.items() if value is not None})


class ChatRequest(CompletionRequest):
    messages: Annotated[list[HistoryMessage], Field(min_length=1)]
    tools: list[dict[str, JSON]] = []
    tool_choice: Literal["auto", "none"] = "auto"
    parallel_tool_calls: bool = True
    chat_template_kwargs: TemplateOptions = TemplateOptions()

    @field_validator("tools")
    @classmethod
    def _tools(cls, tools: list[dict[str, JSON]]) -> list[dict[str, JSON]]:
        for tool in tools:
            OfferedTool.model_validate(tool)
        return tools  # as they were written, which is what the template shows

    def offered(self) -> list[dict[str, JSON]]:
        return [] if self.tool_choice == "none" else self.tools

    def history(self) -> list[Message]:
        """The messages as the template takes them; a result is named after the call that its id names."""
        names = {c.id: c.function.name for message in self.messages for c in message.tool_calls}
        return [
            Message(
                role="system" if m.role == "developer" else m.role,
                content=m.content if isinstance(m.content, str) else "".join(p.text for p in m.content),
                thinking=(m.reasoning_content or m.reasoning) if m.role == "assistant" else "",
                calls=tuple(
                    ToolCall(name=c.function.name, arguments=c.function.arguments) for c in m.tool_calls
                ),
                name=m.name or names.get(m.tool_call_id, ""),
            )
            for m in self.messages
        ]


TokenId = Annotated[int, Field(ge=0)]


class TextRequest(CompletionRequest):
    prompt: str | list[TokenId] | list[str] | list[list[TokenId]]

    def prompts(self) -> list[str | list[int]]:
        """One or more, none of them empty. Raises RequestRefused."""
        one = isinstance(self.prompt, str) or (self.prompt and isinstance(self.prompt[0], int))
        found = [self.prompt] if one else list(self.prompt)
        if not all(found) or not found:
            raise RequestRefused("prompt must not be empty")
        return found


Kind = TypeVar("Kind", bound=CompletionRequest)


def read(kind: type[Kind], body: JSON) -> Kind:
    """A body as a request of its kind. Raises RequestRefused, which names the field."""
    try:
        return kind.model_validate(body)
    except ValidationError as e:
        found = max(e.errors(include_url=False), key=lambda error: len(error["loc"]))
    field, value = ".".join(str(part) for part in found["loc"]), found["input"]
    given = json.dumps(value) if isinstance(value, (int, float)) else f"a {type(value).__name__}"  # no text
    if found["type"] == "extra_forbidden":
        raise RequestRefused(f"{field}={given} is not served here")
    raise RequestRefused(f"{field or 'body'}: {found['msg']}, not {given}")
