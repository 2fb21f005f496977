"""The same rules as a plain loop: json, pydantic models, and a function for the rest.

Flows in: lines of a .jsonl file of finished rows. Flows out: the reason each is left out for, or its row to store.
Invariant: on generated rows (benchmarks/rows.py, `spoil.SETTINGS`) the verdicts are those of `envace.data`; written to
be read, with the libraries' own speed and nothing clever, but for an optional memory of tools already judged.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import jsonschema
import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import ValidationError

from benchmarks.plain_models import Extra, Item, Message, Row, StrictTool
from envace.data.store import SCHEMA
from envace.judge.rule_check import RuleError, check_rule

BYTES_PER_TOKEN = 2.5
TYPES = {
    "string": str,
    "integer": int,
    "number": (int, float),
    "boolean": bool,
    "array": list,
    "object": dict,
}


def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        raise ValueError("repeated key")
    return value


def loads(text: str) -> Any:
    return json.loads(text, object_pairs_hook=unique, parse_constant=int)  # int refuses NaN and Infinity


def tool_fault(text: str) -> str:
    """The reason against a tool, or an empty one."""
    tool = json.loads(text)
    parameters = tool["function"]["parameters"]
    try:
        jsonschema.Draft202012Validator.check_schema(parameters)
    except jsonschema.SchemaError:
        return "bad_tools"
    if parameters.get("type", "object") != "object":
        return "bad_tools"
    try:
        StrictTool.model_validate(tool)
    except ValidationError:
        return "loose_tool"
    return ""


class Plain:
    """Judges line after line. `remember` keeps which tool schemas were found good."""

    def __init__(self, limit: int, remember: bool):
        self.limit = limit
        self.tool_fault: Callable[[str], str] = lru_cache(4096)(tool_fault) if remember else tool_fault

    def judge(self, line: str) -> tuple[str, Row | None]:
        """The reason against a line, or an empty one and the row."""
        try:
            data = loads(line)
        except ValueError:
            return "bad_json", None
        try:
            json.dumps(data, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            return "bad_text", None
        if isinstance(data, dict) and "metadata" in data:
            return "no_checklist", None
        try:
            row = Row.model_validate(data)
        except ValidationError as e:
            return self.misfit(e), None
        return self.faulty(row), row

    def misfit(self, error: ValidationError) -> str:
        first = error.errors()[0]
        if "checklist_list" in first["loc"]:
            return "bad_checklist"
        return "missing_field" if first["type"] == "missing" or first["input"] is None else "wrong_type"

    def faulty(self, row: Row) -> str:
        extra = row.extra_info
        try:
            tools = loads(extra.tools)
        except ValueError:
            return "bad_tools"
        return (
            self.tools(tools)
            or self.dialogue(extra.messages, {t["function"]["name"]: t["function"]["parameters"] for t in tools})
            or self.prefix(row)
            or self.world(extra.world)
            or self.checklist(extra)
            or ("prompt_too_long" if self.tokens(row) > self.limit else "")
        )  # fmt: skip

    def tools(self, tools: list[Any]) -> str:
        if reason := next(filter(None, (self.tool_fault(json.dumps(t)) for t in tools)), ""):
            return reason
        names = [t["function"]["name"] for t in tools]
        return "duplicate_tool" if len(set(names)) < len(names) else ""

    def dialogue(self, messages: list[Message], tools: dict[str, Any]) -> str:
        before, waiting, called = "", 0, False
        follows = {"": ("system", "user"), "system": ("user",), "user": ("assistant",), "tool": ("assistant",), "assistant": ("user",)}  # fmt: skip
        for m in messages:
            if m.role == "tool":
                if not waiting:
                    return "result_count"
                waiting -= 1
            elif waiting:
                return "result_count"
            elif m.role not in follows[before]:
                return "role_order"
            calls = m.tool_calls or []
            if calls and m.role != "assistant":
                return "role_order"
            waiting, called = (len(calls), bool(calls)) if m.role == "assistant" else (waiting, called)
            before = m.role
        if before != "assistant" or called:
            return "role_order"
        for m in messages:
            if reason := self.calls(m, tools) or self.content(m):
                return reason
        return ""

    def calls(self, message: Message, tools: dict[str, Any]) -> str:
        for call in message.tool_calls or []:
            schema = tools.get(call.function.name)
            if schema is None:
                return "unknown_tool"
            try:
                arguments = loads(call.function.arguments)
            except ValueError:
                return "wrong_type"
            properties = schema["properties"]
            if any(name not in arguments for name in schema["required"]):
                return "bad_arguments"
            for name, value in arguments.items():
                if name not in properties or not isinstance(value, TYPES[properties[name]["type"]]):
                    return "bad_arguments"
        return ""

    def content(self, m: Message) -> str:
        if m.role == "tool":
            try:
                loads(m.content)
            except ValueError:
                return "result_not_json"
        if m.role == "assistant" and re.search("</?tool_response>", m.content):
            return "response_tag"
        tags = re.findall("</?think>", m.content)
        if tags and (m.role != "assistant" or tags != ["<think>", "</think>"] or not m.content.lstrip().startswith("<think>")):  # fmt: skip
            return "bad_thinking"
        if m.role == "assistant" and not tags:
            return "no_thinking"
        visible = m.content.rpartition("</think>")[2] if m.role == "assistant" else m.content
        return "" if visible.strip() or m.tool_calls else "empty_content"

    def prefix(self, row: Row) -> str:
        start = row.extra_info.messages[: len(row.messages)]
        roles = [m.role for m in row.messages]
        if roles not in (["user"], ["system", "user"]):
            return "role_order"
        same = [(m.role, m.content) for m in row.messages] == [(m.role, m.content) for m in start]
        return "" if same else "prefix_mismatch"

    def world(self, text: str | None) -> str:
        return "" if text is None or isinstance(loads(text), dict) else "bad_extension"

    def checklist(self, extra: Extra) -> str:
        turns = extra.interaction_kwargs.checklist_list[0]
        if len(turns) > sum(m.role == "user" for m in extra.messages):
            return "turn_count"
        return next((reason for items in turns if (reason := self.turn(items))), "")

    def turn(self, items: list[Item]) -> str:
        if abs(sum(i.weight for i in items) - 1) > 1e-6:
            return "bad_weights"
        focus = {i.id: i.focus_on for i in items}
        if len(focus) < len(items) or any(
            focus.get(d) != "tool.content" for i in items for d in i.dependence
        ):
            return "bad_checklist"
        left = {i.id: set(i.dependence) for i in items}
        while free := [i for i, needs in left.items() if not needs & set(left)]:
            for i in free:
                del left[i]
        if left:
            return "bad_checklist"
        for item in items:
            if item.extra_info and item.extra_info.rule is not None:
                try:
                    check_rule(loads(item.extra_info.rule))
                except (RuleError, ValueError):
                    return "bad_rule"
        return ""

    def tokens(self, row: Row) -> int:
        text = row.extra_info.tools + "".join(m.content for m in row.messages)
        return round(len(text.encode()) / BYTES_PER_TOKEN)


def verdicts(lines: Iterable[str], plain: Plain) -> Iterator[tuple[str, Row | None]]:
    """Line by line, the second of two equal rows left out."""
    ids: set[str] = set()
    contents: set[int] = set()
    for line in lines:
        reason, row = plain.judge(line)
        if not reason and row is not None:
            content = hash((row.extra_info.tools, row.extra_info.model_dump_json(include={"messages"})))
            one_turn = sum(m.role == "user" for m in row.extra_info.messages) == 1
            reason = (
                "duplicate_id" if row.uuid in ids
                else "duplicate_content" if content in contents
                else "not_selected" if one_turn else ""
            )  # fmt: skip
            ids.add(row.uuid)
            contents.add(content)
        yield reason, row


def stage(path: Path, out: Path, plain: Plain) -> Counter[str]:
    """A file of rows into one parquet file, 512 rows at a time; how many were left out for each reason."""
    reasons: Counter[str] = Counter()
    kept: list[dict[str, Any]] = []
    with path.open(encoding="utf-8") as f, pq.ParquetWriter(out, SCHEMA, compression="zstd") as file:
        for reason, row in verdicts(f, plain):
            reasons[reason] += 1
            if not reason and row is not None:
                kept.append(row.model_dump(by_alias=True))
            if len(kept) == 512:
                file.write_table(pa.Table.from_pylist(kept, schema=SCHEMA))
                kept = []
        file.write_table(pa.Table.from_pylist(kept, schema=SCHEMA))
    del reasons[""]
    return reasons
