"""What one annotation run was asked to do: the command line's options, checked.

Nothing here is a secret; `key_env` names the variable that holds the key, never the key. Every default of the
command line is that of `AnnotateOptions`; the rules a row is held to are those of the parameters staging
reads."""

from __future__ import annotations

import argparse
import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import urlsplit

from envace.config import Params, load
from envace.data.annotate.questions import EFFORTS
from envace.data.annotate.source import AnnotateSource, source_at, source_of
from envace.data.annotate.staged import WouldStage
from envace.data.progress import Say
from envace.data.prompt_length import Estimate
from envace.data.rules import RuleOptions
from envace.data.verdicts import RowLimits, cores
from envace.errors import ParamsError
from envace.io.addresses import base_address

PASSES = ("low", "low", "medium", "medium", "high", "high")


@dataclass(frozen=True, kw_only=True)
class Prices:
    """USD a million tokens."""

    read: float
    write: float

    def usd(self, read: int, write: int) -> float:
        """What so many tokens read and written cost."""
        return (read * self.read + write * self.write) / 1e6


@dataclass(frozen=True, kw_only=True)
class AnnotateOptions:
    """`AnnotateOptions(source=source_at(Path("raw")), out=Path("out"), base_url="http://127.0.0.1:8000/v1",
    model="m")`."""

    source: AnnotateSource
    out: Path
    base_url: str
    model: str
    key_env: str = ""
    passes: tuple[str, ...] = PASSES
    """Reasoning effort of each filter pass, in order."""
    label_effort: str = "high"
    limit: int = 0
    """Rows to send to the model, chosen by seed and id; 0 is all."""
    staged: WouldStage | None = None
    """Leave out what staging would, before anything is paid."""
    rules: RuleOptions = RuleOptions()
    workers: int = 1
    """Processes that hold rows to the rules."""
    seed: int = 7
    """Of what `limit` takes and of the spot check."""
    concurrency: int = 16
    attempts: int = 6
    """Requests a call may take where the server is busy or broken."""
    timeout_s: float = 600.0
    """Of one request."""
    max_tokens: int = 16_000
    """Of one reply, its reasoning included."""
    temperature: float | None = None
    """None leaves it to the server."""
    plain: bool = False
    """Never ask for structured output."""
    prices: Prices | None = None
    budget_usd: float = math.inf
    """No new call is made once the run has cost this."""
    retry_failed: bool = False
    spot: int = 20
    """Rows on the page for reading."""
    prompts: Path | None = None
    """A folder of other prompts; None takes those of the package."""

    def __post_init__(self) -> None:
        parts = urlsplit(base_address(self.base_url, "--base-url"))
        if parts.username or parts.password or parts.query:
            raise ParamsError(
                "--base-url carries a key or query; put the key into a variable named by --key-env"
            )
        unknown = [e for e in (*self.passes, self.label_effort) if e not in EFFORTS]
        if unknown:
            raise ParamsError(f"a reasoning effort is {unknown[0]!r}; use a list out of {', '.join(EFFORTS)}")
        if not self.model.strip():
            raise ParamsError("the model has no name; give --model as the server lists it")
        if math.isfinite(self.budget_usd) and not self.prices:
            raise ParamsError("--budget needs prices to count with; add --price-in and --price-out")

    @property
    def pass_names(self) -> tuple[str, ...]:
        """`filter:low:0, filter:low:1, filter:high:0`: a pass keeps its name when others come or go."""
        seen: Counter[str] = Counter()
        names = []
        for effort in self.passes:
            names.append(f"filter:{effort}:{seen[effort]}")
            seen[effort] += 1
        return tuple(names)

    @property
    def label_name(self) -> str:
        """`label:high`"""
        return f"label:{self.label_effort}"


def fill_annotate(cli: argparse.ArgumentParser) -> None:
    """What the command line of annotate may hold."""
    d, add = (
        AnnotateOptions(source=AnnotateSource(), out=Path("."), base_url="http://localhost", model="m"),
        cli.add_argument,
    )
    whole, some, amount = _number(int, 0), _number(int, 1), _number(float, 0)
    add(
        "source",
        type=Path,
        nargs="?",
        help="a file or folder of raw rows (.jsonl, .json, .parquet); without it the source is data.* of "
        "--params, fetched first",
    )
    add("--out", type=Path, required=True, help="output folder; its journal makes a run resumable")
    add("--base-url", required=True, help="of an OpenAI-compatible server, such as http://127.0.0.1:8000/v1")
    add("--model", required=True, help="as the server names it")
    add("--key-env", default="", metavar="VAR", help="environment variable that holds the key")
    passes = f"reasoning effort of each filter pass, out of {', '.join(EFFORTS)}; empty for no filter"
    add("--passes", default=",".join(d.passes), help=passes)
    add("--label-effort", default=d.label_effort, choices=EFFORTS, help="reasoning effort of labelling")
    limit = "rows to send to the model, drawn by --seed and id from all that pass the rules; 0 is all"
    add("--limit", type=whole, default=d.limit, metavar="N", help=limit)
    params = "where data.* says which rules a row must keep, and where rows come from"
    add("--params", type=Path, default=Path("params.yaml"), help=params)
    select = "leave out what staging would: by data.select and data.max_first_prompt_tokens"
    add("--select", action="store_true", help=select)
    add("--concurrency", type=some, default=d.concurrency, metavar="N", help="calls at once")
    add("--attempts", type=some, default=d.attempts, metavar="N", help="requests a call may take")
    seconds = _number(float, 0.001)
    add("--timeout", type=seconds, default=d.timeout_s, metavar="S", help="seconds a request may take")
    tokens = "of a reply, its reasoning included"
    add("--max-tokens", type=some, default=d.max_tokens, metavar="N", help=tokens)
    add("--temperature", type=amount, metavar="T", help="left to the server where not given")
    add("--plain", action="store_true", help="never ask the server for structured output")
    add("--price-in", type=amount, metavar="USD", help="a million tokens read")
    add("--price-out", type=amount, metavar="USD", help="a million tokens written")
    budget = "make no new call once this run has cost so much"
    add("--budget", type=amount, default=d.budget_usd, metavar="USD", help=budget)
    add("--retry-failed", action="store_true", help="ask failed rows once more")
    add("--prompts", type=Path, metavar="FOLDER", help="your own filter.md, label.md and repair.md")
    add("--seed", type=int, default=d.seed, help="of what --limit takes and of the rows for reading")
    add("--spot", type=whole, default=d.spot, metavar="N", help="rows on the page for reading")
    add("--agree", type=Path, metavar="HAND", help="afterwards compare with rows labelled by hand")
    add("--dry-run", action="store_true", help="stop after the preview")
    add("--yes", action="store_true", help="go on without asking")


def fill_agree(cli: argparse.ArgumentParser) -> None:
    """What the command line of agree may hold."""
    add = cli.add_argument
    add("hand", type=Path, help="rows labelled by hand")
    add("annotated", type=Path, help="an annotated.jsonl")
    rejected = "rows the filter rejected (rejected.jsonl beside ANNOTATED)"
    add("--rejected", type=Path, metavar="FILE", help=rejected)
    add("--out", type=Path, help="also write the numbers here, as JSON")
    add("--seed", type=int, default=7, help="of the resampling (%(default)s)")


def read_options(args: argparse.Namespace, say: Say) -> AnnotateOptions:
    """The checked options, the source fetched. Raises ParamsError, EnvironmentUnready, and DataError where
    the source or staging's tokenizer cannot be had."""
    if (args.price_in is None) != (args.price_out is None):
        raise ParamsError("one price is missing; give both --price-in and --price-out, or none")
    params = load(args.params) if args.params.is_file() else Params()
    limits = RowLimits.of(params, Estimate())
    same = ("out", "base_url", "model", "key_env", "label_effort", "limit", "seed", "concurrency", "attempts")
    same += ("max_tokens", "temperature", "plain", "retry_failed", "spot", "prompts")
    given = AnnotateOptions(
        source=AnnotateSource(),
        passes=tuple(p.strip() for p in args.passes.split(",") if p.strip()),
        rules=limits.options,
        staged=WouldStage.of(params) if args.select else None,
        workers=params.data.workers or cores(),
        timeout_s=args.timeout,
        prices=None if args.price_in is None else Prices(read=args.price_in, write=args.price_out),
        budget_usd=args.budget,
        **{name: getattr(args, name) for name in same},
    )
    return replace(given, source=source_at(args.source) if args.source else source_of(params, say))


def _number(kind: Callable[[str], float], least: float) -> Callable[[str], float]:
    """Reads a number that is at least so large."""

    def number(text: str) -> float:
        value = kind(text)
        if math.isnan(value) or value < least:
            raise argparse.ArgumentTypeError(f"{text} must be at least {least:g}")
        return value

    return number
