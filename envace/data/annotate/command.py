"""The commands annotate and agree, from the preview to the exit status.

Nothing is paid before the preview was seen and agreed to. Exit status 0: every row is settled; 1: some are
undecided, and the same command asks them again; 2 and 3: the user's to mend; 130: interrupted, as far as it
came."""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import sys
from pathlib import Path

from envace.data.annotate.agreement import agreement, text
from envace.data.annotate.client import AnnotateClient
from envace.data.annotate.journal import Journal
from envace.data.annotate.next_call import Course
from envace.data.annotate.options import AnnotateOptions, read_options
from envace.data.annotate.preview import Preview
from envace.data.annotate.questions import load_prompts
from envace.data.annotate.rows import Triage, triage
from envace.data.annotate.run import AnnotateRun, CallMeter
from envace.data.annotate.write import ANNOTATED, SPOT, write
from envace.errors import ParamsError
from envace.io.files import write_text
from envace.types import JSON

INTERRUPTED = 130
AGAIN = {"undecided": "the same command asks them again", "failed": "--retry-failed asks them again"}


def annotate(args: argparse.Namespace) -> int:
    """Annotate a source; returns the exit status. Raises DataError, EnvironmentUnready and ParamsError."""
    options, run = read_options(args, _tell), None
    with Journal.open(options.out) as journal:
        course = Course(options, load_prompts(options.prompts), journal)
        rows = triage(options, _tell)
        plan = Preview.of(course, rows)
        print(plan.text(options), flush=True)
        if args.dry_run:
            return 0
        if plan.calls and not (args.yes or _agreed()):
            return 2
        if plan.calls:
            run = asyncio.run(_run(course, rows))
        report = write(course, rows)
    _close(report, options)
    if args.agree:
        _compare(args.agree, options.out / ANNOTATED, options.out / "agreement.json", options.seed)
    if run and run.error:
        raise run.error
    if run and run.over_budget:
        print("stopped at --budget; raise it and run the same command to go on")
    return INTERRUPTED if run and run.interrupted else int(report["counts"]["undecided"] > 0)


def agree(args: argparse.Namespace) -> int:
    """Compare labels with a person's; returns the exit status. Raises DataError."""
    _compare(args.hand, args.annotated, args.out, args.seed, args.rejected)
    return 0


def _tell(words: str) -> None:
    """A line of progress, beside what the command prints."""
    print(words, file=sys.stderr, flush=True)


def _compare(hand: Path, annotated: Path, out: Path | None, seed: int, rejected: Path | None = None) -> None:
    found = agreement(hand, annotated, seed, rejected=rejected)
    print(text(found))
    if out:
        write_text(out, json.dumps(found, indent=2, sort_keys=True) + "\n")


async def _run(course: Course, rows: Triage) -> AnnotateRun:
    """Make the open calls. A second Ctrl-C drops the calls under way."""
    stop, meter = asyncio.Event(), CallMeter(rows.candidates)
    async with AnnotateClient(course.options, stop) as client:
        run = AnnotateRun(course, client, stop, meter)
        for sign in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(sign, _interrupt, run)
        shown = asyncio.create_task(meter.keep_showing())
        try:
            await run.through(rows.samples())
        finally:
            shown.cancel()
            meter.show(last=True)
    return run


def _interrupt(run: AnnotateRun) -> None:
    if run.interrupted:
        return run.abandon()
    run.interrupted = True
    run.stop.set()
    _tell("\nstopping: no new calls; waiting for those under way (Ctrl-C again drops them)")


def _agreed() -> bool:
    if not sys.stdin.isatty():
        raise ParamsError(
            "there is no terminal to ask whether to go on; add --yes once the preview suits you"
        )
    return input("go on? [y/N] ").strip().lower() in ("y", "yes")


def _close(report: dict[str, JSON], options: AnnotateOptions) -> None:
    """What was done, and what to do next."""
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
