"""The rows of the plain loop (benchmarks/plain.py) as pydantic models.

Flows in: plain data. Flows out: models, or pydantic's ValidationError.
Invariant: the shapes that `envace.data` asks for, no more and no less, on generated rows.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, Field, NonNegativeInt


class Function(BaseModel):
    name: str
    arguments: str


class Call(BaseModel):
    id: str
    function: Function


class Message(BaseModel):
    role: Literal["system", "user", "assistant", "tool"]
    content: str
    tool_calls: list[Call] | None = None


Focus = Literal["assistant.tool_calls", "assistant.content.thinking", "assistant.content.user_visible_reply", "tool.content"]  # fmt: skip


class Evidence(BaseModel):
    turn: NonNegativeInt
    step: NonNegativeInt
    source: Focus | Literal["user.content"] = Field(alias="from")
    snippet: str


class ItemExtra(BaseModel):
    rule: str | None = None


class Item(BaseModel):
    id: str
    evidence: list[Evidence]
    focus_on: Focus
    question: str
    pass_condition: str
    failure_examples: list[str]
    required_for_next_turn: bool
    dependence: list[str]
    weight: float = Field(ge=0, le=1)
    extra_info: ItemExtra | None = None


class Interaction(BaseModel):
    checklist_list: list[list[list[Item]]]


class Extra(BaseModel):
    messages: list[Message]
    tools: str
    interaction_kwargs: Interaction
    world: str | None = None


class StrictProperty(BaseModel):
    type: str
    description: str | None = None
    enum: list[str] | None = None


class StrictParameters(BaseModel):
    type: Literal["object"]
    properties: dict[str, StrictProperty]
    required: list[str]


class StrictFunction(BaseModel):
    name: str
    description: str
    parameters: StrictParameters


class StrictTool(BaseModel):
    type: str
    function: StrictFunction


class Row(BaseModel):
    uuid: str
    messages: list[Message]
    data_source: str
    extra_info: Extra
