"""The commands annotate and agree, from the preview to the exit status.

Nothing is paid before the preview was seen and agreed to. Exit status 0: every row is settled; 1: some are
undecided, and the same command asks them again; 2 and 3: the user's to mend; 130: interrupted, as far as it
came."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

from envace.config import Params, load
from envace.data.annotate.agreement import agreement, agreement_text
from envace.data.annotate.arguments import AnnotateOptions
from envace.data.annotate.call_plan import CallPlan
from envace.data.annotate.journal import open_journal
from envace.data.annotate.outputs import ANNOTATED, SPOT, write_outputs
from envace.data.annotate.preview import preview, preview_text
from envace.data.annotate.questions import load_prompts
from envace.data.annotate.raw_rows import raw_source, triage
from envace.data.annotate.run import annotate_rows
from envace.errors import ParamsError
from envace.io.files import write_text
from envace.types import JSON

INTERRUPTED = 130
AGAIN = {"undecided": "the same command asks them again", "failed": "--retry-failed asks them again"}


def annotate(options: AnnotateOptions) -> int:
    """Annotate a source; returns the exit status. Raises DataError, EnvironmentUnready and ParamsError."""

    def say(words: str) -> None:
        print(words, file=sys.stderr, flush=True)

    params, run = load(options.params) if options.params.is_file() else Params(), None
    source = raw_source(options.source, params, say)
    with open_journal(options.out) as journal:
        plan = CallPlan(options, load_prompts(options.prompts), journal)
        rows = triage(options, params, source, say)
        ahead = preview(plan, rows)
        print(preview_text(ahead, rows, plan), flush=True)
        if options.dry_run:
            return 0
        if ahead.calls and not options.yes:
            if not sys.stdin.isatty():
                raise ParamsError(
                    "there is no terminal to ask whether to go on; add --yes once the preview suits you"
                )
            if input("go on? [y/N] ").strip().lower() not in ("y", "yes"):
                return 2
        if ahead.calls:
            run = asyncio.run(annotate_rows(plan, rows.samples))
        report = write_outputs(plan, rows)
    _tell_result(report, options)
    if options.agree:
        compare_files(options.agree, options.out / ANNOTATED, options.out / "agreement.json", options.seed)
    if run and run.error:
        raise run.error
    if run and run.over_budget:
        print("stopped at --budget; raise it and run the same command to go on")
    return INTERRUPTED if run and run.interrupted else int(report["counts"]["undecided"] > 0)


def compare_files(
    hand: Path, annotated: Path, out: Path | None, seed: int, rejected: Path | None = None
) -> None:
    """Compare labels with a person's. Raises DataError."""
    found = agreement(hand, annotated, seed, rejected=rejected)
    print(agreement_text(found))
    if out:
        write_text(out, json.dumps(found, indent=2, sort_keys=True) + "\n")


def _tell_result(report: dict[str, JSON], options: AnnotateOptions) -> None:
    """Say what was done, and what to do next."""
    counts, total = report["counts"], report["total"]
    said = ", ".join(f"{n:,} {name}" for name, n in counts.items())
    usd = "" if total["usd"] is None else f", {total['usd']:,.2f} USD"
    tokens = total["tokens_read"] + total["tokens_written"]
    print(f"{said}; all calls so far: {total['requests']:,} requests, {tokens:,} tokens{usd}")
    if total["unstructured_replies"] and not options.plain:
        print("the server refused response_format, so replies were asked for in words only")
    for outcome, more in AGAIN.items():
        if counts[outcome]:
            why = ", ".join(f"{n:,} {reason}" for reason, n in report["reasons"][outcome].items())
            print(f"{outcome}: {why}; {more}")
    if counts["annotated"]:
        keys = f"data.source local, data.uri {options.out}, data.patterns [{ANNOTATED}]"
        print(f"read {options.out / SPOT}, then stage the rows: {keys}")
