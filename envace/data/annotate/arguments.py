"""The options of the commands annotate and agree.

Flows in: the command line. Flows out: `Options`, and what the command does beside them.
Invariant: every default is that of `Options`; the rules a row is held to are those of the parameters staging reads.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from envace.config import Params, load
from envace.data.annotate.options import EFFORTS, Options, Prices
from envace.data.annotate.source import Source, source_at, source_of
from envace.data.annotate.worth import Staged
from envace.data.knobs import knobs
from envace.data.progress import Say
from envace.errors import ParamsError


def fill_annotate(cli: argparse.ArgumentParser) -> None:
    """What the command line of annotate may hold."""
    d = Options(source=Source(), out=Path("."), base_url="http://localhost", model="m")
    whole, some, amount = _number(int, 0), _number(int, 1), _number(float, 0)
    add = cli.add_argument
    add(
        "source",
        type=Path,
        nargs="?",
        help="a file or folder of raw rows (.jsonl, .json, .parquet); without it the source is data.* of --params, fetched first",
    )
    add("--out", type=Path, required=True, help="output folder; its journal makes a run resumable")
    add("--base-url", required=True, help="of an OpenAI-compatible server, such as http://127.0.0.1:8000/v1")
    add("--model", required=True, help="as the server names it")
    add("--key-env", default="", metavar="VAR", help="environment variable that holds the key")
    # fmt: off
    add("--passes", default=",".join(d.passes), help=f"reasoning effort of each filter pass, out of {', '.join(EFFORTS)}; empty for no filter")
    add("--label-effort", default=d.label_effort, choices=EFFORTS, help="reasoning effort of labelling")
    add("--limit", type=whole, default=d.limit, metavar="N", help="rows to send to the model, drawn by --seed and id from all that pass the rules; 0 is all")
    add("--params", type=Path, default=Path("params.yaml"), help="where data.* says which rules a row must keep, and where rows come from")
    add("--select", action="store_true", help="leave out what staging would: by data.select and data.max_first_prompt_tokens")
    add("--concurrency", type=some, default=d.concurrency, metavar="N", help="calls at once")
    add("--attempts", type=some, default=d.attempts, metavar="N", help="requests a call may take")
    add("--timeout", type=_number(float, 0.001), default=d.timeout_s, metavar="S", help="seconds a request may take")
    add("--max-tokens", type=some, default=d.max_tokens, metavar="N", help="of a reply, its reasoning included")
    add("--temperature", type=amount, metavar="T", help="left to the server where not given")
    add("--plain", action="store_true", help="never ask the server for structured output")
    add("--price-in", type=amount, metavar="USD", help="a million tokens read")
    add("--price-out", type=amount, metavar="USD", help="a million tokens written")
    add("--budget", type=amount, default=d.budget_usd, metavar="USD", help="make no new call once this run has cost so much")
    add("--retry-failed", action="store_true", help="ask failed rows once more")
    add("--prompts", type=Path, metavar="FOLDER", help="your own filter.md, label.md and repair.md")
    add("--seed", type=int, default=d.seed, help="of what --limit takes and of the rows for reading")
    add("--spot", type=whole, default=d.spot, metavar="N", help="rows on the page for reading")
    add("--agree", type=Path, metavar="HAND", help="afterwards compare with rows labelled by hand")
    add("--dry-run", action="store_true", help="stop after the preview")
    add("--yes", action="store_true", help="go on without asking")
    # fmt: on


def fill_agree(cli: argparse.ArgumentParser) -> None:
    """What the command line of agree may hold."""
    cli.add_argument("hand", type=Path, help="rows labelled by hand")
    cli.add_argument("annotated", type=Path, help="an annotated.jsonl")
    cli.add_argument(
        "--rejected",
        type=Path,
        metavar="FILE",
        help="rows the filter rejected (rejected.jsonl beside ANNOTATED)",
    )
    cli.add_argument("--out", type=Path, help="also write the numbers here, as JSON")
    cli.add_argument("--seed", type=int, default=7, help="of the resampling (%(default)s)")


def options(args: argparse.Namespace, say: Say) -> Options:
    """The checked options, the source fetched. Raises ParamsError, EnvironmentUnready, and DataError where the source
    or staging's tokenizer cannot be had.
    """
    if (args.price_in is None) != (args.price_out is None):
        raise ParamsError("one price is missing; give both --price-in and --price-out, or none")
    prices = None if args.price_in is None else Prices(read=args.price_in, write=args.price_out)
    params = load(args.params) if args.params.is_file() else Params()
    turned = knobs(params)
    given = Options(
        source=Source(), out=args.out, base_url=args.base_url, model=args.model, key_env=args.key_env,
        passes=tuple(p.strip() for p in args.passes.split(",") if p.strip()), label_effort=args.label_effort,
        limit=args.limit, rules=turned.options, staged=Staged.of(params) if args.select else None, seed=args.seed,
        workers=turned.workers,
        concurrency=args.concurrency, attempts=args.attempts, timeout_s=args.timeout, max_tokens=args.max_tokens,
        temperature=args.temperature, plain=args.plain, prices=prices, budget_usd=args.budget,
        retry_failed=args.retry_failed, spot=args.spot, prompts=args.prompts,
    )  # fmt: skip
    return replace(given, source=source_at(args.source) if args.source else source_of(params, say))


def _number(kind: Callable[[str], Any], least: float) -> Callable[[str], Any]:
    """Reads a number that is at least so large."""

    def number(text: str) -> Any:
        value = kind(text)
        if math.isnan(value) or value < least:
            raise argparse.ArgumentTypeError(f"{text} must be at least {least:g}")
        return value

    return number
