"""The command lines of annotate and agree.

Nothing here is a secret; `key_env` names the variable that holds the key, never the key."""

from __future__ import annotations

import argparse
import math
from collections import Counter
from collections.abc import Callable
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from urllib.parse import urlsplit

from envace.errors import ParamsError
from envace.io.addresses import base_address
from envace.types import JSON

EFFORTS = ("none", "minimal", "low", "medium", "high")
"""Reasoning efforts; none leaves the field of a request out."""


def _option(default: JSON, words: str, kind: Callable[[str], JSON] = str, **more: JSON) -> JSON:
    """A field that is an option of the command line; `more` is what argparse is told beside it."""
    return field(default=default, metadata={"help": words, "type": kind, **more})


def _flag(words: str) -> JSON:
    return field(default=False, metadata={"help": words, "action": "store_true"})


def _number(kind: Callable[[str], float], least: float) -> Callable[[str], float]:
    """Reads a number that is at least so large."""

    def number(text: str) -> float:
        value = kind(text)
        if math.isnan(value) or value < least:
            raise argparse.ArgumentTypeError(f"{text} must be at least {least:g}")
        return value

    return number


_whole, _some, _amount = _number(int, 0), _number(int, 1), _number(float, 0)


@dataclass(frozen=True, kw_only=True)
class AnnotateOptions:
    """`AnnotateOptions(source=Path("raw"), out=Path("out"), base_url="http://127.0.0.1:8000", model="m")`"""

    source: Path | None = _option(
        None,
        "a file or folder of raw rows (.jsonl, .json, .parquet); without it the source is data.* of "
        "--params, fetched first",
        Path,
        nargs="?",
    )
    out: Path = _option(MISSING, "output folder; its journal makes a run resumable", Path)
    base_url: str = _option(MISSING, "of an OpenAI-compatible server, such as http://127.0.0.1:8000/v1")
    model: str = _option(MISSING, "as the server names it")
    key_env: str = _option("", "environment variable that holds the key", metavar="VAR")
    passes: str = _option(
        "low,low,medium,medium,high,high",
        f"reasoning effort of each filter pass, out of {', '.join(EFFORTS)}; empty for no filter",
    )
    label_effort: str = _option("high", "reasoning effort of labelling", choices=EFFORTS)
    limit: int = _option(
        0,
        "rows to send to the model, drawn by --seed and id from all that pass the rules; 0 is all",
        _whole,
        metavar="N",
    )
    params: Path = _option(
        Path("params.yaml"), "where data.* says which rules a row must keep, and where rows come from", Path
    )
    select: bool = _flag("leave out what staging would: by data.select and data.max_first_prompt_tokens")
    concurrency: int = _option(16, "calls at once", _some, metavar="N")
    attempts: int = _option(6, "requests a call may take", _some, metavar="N")
    timeout: float = _option(600.0, "seconds a request may take", _number(float, 0.001), metavar="S")
    max_tokens: int = _option(16_000, "of a reply, its reasoning included", _some, metavar="N")
    temperature: float | None = _option(None, "left to the server where not given", _amount, metavar="T")
    plain: bool = _flag("never ask the server for structured output")
    price_in: float | None = _option(None, "a million tokens read", _amount, metavar="USD")
    price_out: float | None = _option(None, "a million tokens written", _amount, metavar="USD")
    budget: float = _option(
        math.inf, "make no new call once this run has cost so much", _amount, metavar="USD"
    )
    retry_failed: bool = _flag("ask failed rows once more")
    prompts: Path | None = _option(None, "your own filter.md, label.md and repair.md", Path, metavar="FOLDER")
    seed: int = _option(7, "of what --limit takes and of the rows for reading", int)
    spot: int = _option(20, "rows on the page for reading", _whole, metavar="N")
    agree: Path | None = _option(None, "afterwards compare with rows labelled by hand", Path, metavar="HAND")
    dry_run: bool = _flag("stop after the preview")
    yes: bool = _flag("go on without asking")

    def __post_init__(self) -> None:
        if (self.price_in is None) != (self.price_out is None):
            raise ParamsError("one price is missing; give both --price-in and --price-out, or none")
        parts = urlsplit(base_address(self.base_url, "--base-url"))
        if parts.username or parts.password or parts.query:
            raise ParamsError(
                "--base-url carries a key or query; put the key into a variable named by --key-env"
            )
        unknown = [e for e in (*self.efforts, self.label_effort) if e not in EFFORTS]
        if unknown:
            raise ParamsError(f"a reasoning effort is {unknown[0]!r}; use a list out of {', '.join(EFFORTS)}")
        if not self.model.strip():
            raise ParamsError("the model has no name; give --model as the server lists it")
        if math.isfinite(self.budget) and self.price_in is None:
            raise ParamsError("--budget needs prices to count with; add --price-in and --price-out")

    @property
    def efforts(self) -> tuple[str, ...]:
        """That of each filter pass."""
        return tuple(effort.strip() for effort in self.passes.split(",") if effort.strip())

    @property
    def pass_names(self) -> tuple[str, ...]:
        """`filter:low:0, filter:low:1, filter:high:0`: a pass keeps its name when others come or go."""
        seen, names = Counter[str](), []
        for effort in self.efforts:
            names.append(f"filter:{effort}:{seen[effort]}")
            seen[effort] += 1
        return tuple(names)

    @property
    def label_name(self) -> str:
        """`label:high`"""
        return f"label:{self.label_effort}"

    def usd(self, read: int | None, written: int | None) -> float | None:
        """What so many tokens cost; None where they, or the prices of a million, are not known."""
        if None in (read, written, self.price_in, self.price_out):
            return None
        return (read * self.price_in + written * self.price_out) / 1e6


def fill_annotate(cli: argparse.ArgumentParser) -> None:
    """What the command line of annotate may hold: the fields of `AnnotateOptions`."""
    for f in fields(AnnotateOptions):
        name = f.name if "nargs" in f.metadata else "--" + f.name.replace("_", "-")
        needed = {"required": True} if f.default is MISSING else {"default": f.default}
        cli.add_argument(name, **needed, **f.metadata)
