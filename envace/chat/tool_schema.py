"""A tool's parameters, read in one way by the check of rows and by episodes.

Flows in: the JSON schema of a tool's parameters, in any draft from 4 on, `nullable` of OpenAPI included.
Flows out: a `ToolSchema` to hold arguments against, or a ValueError that says why it cannot be used.
Invariant: once read, a schema judges any arguments without raising; it refers to nothing outside itself, and
nothing is fetched."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache

from jsonschema import (
    Draft4Validator,
    Draft6Validator,
    Draft7Validator,
    Draft201909Validator,
    Draft202012Validator,
)
from jsonschema.exceptions import SchemaError, ValidationError
from jsonschema.validators import extend
from referencing import Registry
from referencing.exceptions import Unresolvable
from referencing.jsonschema import specification_with

from envace.chat.text import clip
from envace.types import JSON

DRAFTS = (Draft202012Validator, Draft201909Validator, Draft7Validator, Draft6Validator, Draft4Validator)
"""The newest under which a schema is valid counts, unless it names its own."""
IN_PLACE = ("allOf", "anyOf", "oneOf", "if", "then", "else", "not", "dependentSchemas")
"""Keywords whose schemas judge the same value."""
LISTS = ("items", "prefixItems", "additionalItems", "contains", "unevaluatedItems")
OBJECTS = ("properties", "patternProperties", "propertyNames", "dependencies")
HELD = ("$defs", "definitions")
NAMED = frozenset({"properties", "patternProperties", "dependentSchemas", "dependencies", *HELD})
"""Keywords that hold schemas by name."""
OPENING = ("additionalProperties", "unevaluatedProperties")
"""Keywords about parameters that are not named."""
EVERYWHERE = (*IN_PLACE, *LISTS, *OBJECTS, *OPENING, *HELD)
Errors = Iterator[ValidationError]
Resolver = JSON
"""Of the package `referencing`, which has no public name for it."""


@dataclass(frozen=True, slots=True)
class ToolSchema:
    """`read_schema('{"type": "object", ...}').errors({"port": "oslo"})`"""

    validator: Draft202012Validator
    """Of the schema's own draft."""
    names: frozenset[str] = frozenset()
    patterns: tuple[str, ...] = ()
    open: bool = False
    """Says of parameters it does not name what they may be."""

    def errors(self, arguments: dict[str, JSON]) -> list[ValidationError]:
        """Where the arguments break the schema."""
        try:
            return list(self.validator.iter_errors(arguments))
        except (RecursionError, OverflowError) as e:
            return [ValidationError(f"cannot be judged ({e})", instance=arguments)]

    def knows(self, name: str) -> bool:
        """Whether a parameter of this name is mentioned, wherever in the schema."""
        return self.open or name in self.names or any(re.search(p, name) for p in self.patterns)


@lru_cache(maxsize=4096)
def read_schema(text: str) -> ToolSchema:
    """The schema of a JSON text. Raises ValueError with words that follow `the schema`."""
    schema = json.loads(text)
    try:
        draft = _draft(schema)
        return _Reading(draft, schema).read()
    except RecursionError:
        raise ValueError("is nested too deep") from None


def _draft(schema: JSON) -> JSON:
    """The class of the draft it is written in. Raises ValueError where it is valid under none."""
    named = str(schema.get("$schema")).rstrip("#") if isinstance(schema, dict) else ""
    own = [draft for draft in DRAFTS if draft.META_SCHEMA["$schema"].rstrip("#") == named]
    problem = ""
    for draft in own or DRAFTS:
        try:
            draft.check_schema(schema)
        except SchemaError as e:
            problem = problem or clip(e.message)
        else:
            return draft
    raise ValueError(f"is no JSON schema: {problem}")


def _nullable(check: Callable[..., Errors | None]) -> Callable[..., Errors]:
    """A keyword that lets null pass where the schema says `nullable: true`."""

    def keyword(validator: JSON, value: JSON, instance: JSON, schema: JSON) -> Errors:
        if instance is not None or schema.get("nullable") is not True:
            yield from check(validator, value, instance, schema) or ()

    return keyword


class _Reading:
    """Goes once through every part of a schema, and follows its references."""

    def __init__(self, draft: JSON, schema: JSON):
        self.draft, self.schema = draft, schema
        self.dialect = specification_with(draft.META_SCHEMA["$schema"])
        self.visited = set[int]()
        self.ended: dict[int, bool] = {}
        """Parts that were begun, and whether all that judges the same value has been followed."""
        self.judging = list[dict[str, JSON]]()

    def read(self) -> ToolSchema:
        """Raises ValueError on a reference or pattern that cannot be used."""
        root = Registry().resolver_with_root(self.dialect.create_resource(self.schema))
        self.follow(self.schema, root)
        same = list(self.judging)  # what judges the arguments as a whole
        self.visit(self.schema, root)
        checks = {k: _nullable(self.draft.VALIDATORS[k]) for k in ("type", "enum")}
        return ToolSchema(
            extend(self.draft, checks)(self.schema, registry=Registry()),
            frozenset(name for part in same for name in part.get("properties", {})),
            tuple(p for part in same for p in part.get("patternProperties", {})),
            any(part.get(k, False) is not False for part in same for k in OPENING),
        )

    def visit(self, part: JSON, resolver: Resolver) -> None:
        """Every part below this one, and below what it refers to."""
        if not isinstance(part, dict) or id(part) in self.visited:
            return
        self.visited.add(id(part))
        self.follow(part, resolver)
        for pattern in (*part.get("patternProperties", {}), part.get("pattern", "")):
            try:
                re.compile(pattern)
            except re.error as e:
                raise ValueError(f"has a pattern that is none: {clip(pattern, 40)} ({e})") from None
        for each, resolver_there in self.parts(part, resolver, EVERYWHERE):
            self.visit(each, resolver_there)

    def follow(self, part: JSON, resolver: Resolver) -> None:
        """All that judges the same value as this part; it must come to an end."""
        if not isinstance(part, dict) or self.ended.get(id(part)):
            return
        if id(part) in self.ended:
            raise ValueError("refers to itself without end")
        self.ended[id(part)] = False
        self.judging.append(part)
        for each, resolver_there in self.parts(part, resolver, IN_PLACE):
            self.follow(each, resolver_there)
        self.ended[id(part)] = True

    def parts(self, part: JSON, resolver: Resolver, keys: tuple[str, ...]) -> Iterator[tuple[JSON, Resolver]]:
        """What a part refers to, and what it holds under some keywords."""
        resolver = resolver.in_subresource(self.dialect.create_resource(part))
        if isinstance(ref := part.get("$ref"), str):
            try:
                found = resolver.lookup(ref)
                self.draft.check_schema(found.contents)
            except (Unresolvable, LookupError, TypeError, ValueError):
                raise ValueError(f"refers to {clip(ref, 80)!r}, which it does not hold") from None
            except SchemaError:
                raise ValueError(f"refers to {clip(ref, 80)!r}, which is no schema") from None
            yield found.contents, found.resolver
        for key in keys:
            value = part.get(key)
            if key in NAMED and isinstance(value, dict):
                value = list(value.values())
            for each in value if isinstance(value, list) else [value]:
                yield each, resolver


def sentence(error: ValidationError) -> str:
    """Short on purpose: the sentence stands in a small policy's context."""
    at = ".".join(str(p) for p in error.absolute_path) or "arguments"
    if error.validator == "required":
        missing = [k for k in error.validator_value if k not in error.instance]
        return clip(f"missing {', '.join(missing)}" + ("" if at == "arguments" else f" in {at}"))
    if error.validator == "additionalProperties" and error.validator_value is False:
        extra = [k for k in error.instance if k not in error.schema.get("properties", {})]
        return clip(f"unknown argument {', '.join(extra)}")
    if error.validator == "type":
        wanted = error.validator_value
        return clip(f"{at} must be {wanted if isinstance(wanted, str) else ' or '.join(wanted)}")
    if error.validator == "enum":
        return clip(f"{at} must be one of {', '.join(map(str, error.validator_value))}")
    if error.validator == "pattern":
        return clip(f"{at} has the wrong format")
    return clip(f"{at}: {error.message}")
