"""What the commands annotate and agree do, from the preview to the exit status.

Flows in: the parsed command line. Flows out: a preview, progress, the output folder, an exit status.
Invariant: nothing is paid before the preview was seen and agreed to. Exit status 0: every row is settled; 1: some
are undecided, and the same command asks them again; 2 and 3: the user's to mend; 130: interrupted, as far as it came.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import sys
from pathlib import Path

from envace.data.annotate import arguments, instructions
from envace.data.annotate.agreement import agreement, text
from envace.data.annotate.client import Client
from envace.data.annotate.cost import Preview, preview
from envace.data.annotate.course import Course
from envace.data.annotate.journal import Journal
from envace.data.annotate.options import Options
from envace.data.annotate.progress import Progress
from envace.data.annotate.rows import Triage, triage
from envace.data.annotate.work import Run
from envace.data.annotate.write import ANNOTATED, SPOT, write
from envace.errors import ParamsError
from envace.io.files import write_text
from envace.types import JSON

INTERRUPTED = 130
AGAIN = {
    "undecided": "the same command asks them again",
    "failed": "--retry-failed asks them again",
}


def annotate(args: argparse.Namespace) -> int:
    """Annotate a source; returns the exit status. Raises DataError, EnvironmentUnready and ParamsError."""
    options = arguments.options(args, _tell)
    with Journal.open(options.out) as journal:
        course = Course(options, instructions.load(options.prompts), journal)
        rows = triage(options, _tell)
        plan = preview(course, rows)
        print(plan.text(options), flush=True)
        if args.dry_run:
            return 0
        if plan.calls and not (args.yes or _agreed()):
            return 2
        run = _work(course, rows, plan)
        report = write(course, rows)
    _close(report, options)
    if args.agree:
        _compare(args.agree, options.out / ANNOTATED, options.out / "agreement.json", options.seed)
    return _status(run, report)


def agree(args: argparse.Namespace) -> int:
    """Compare labels with a person's; returns the exit status. Raises DataError."""
    _compare(args.hand, args.annotated, args.out, args.seed, args.rejected)
    return 0


def _tell(text: str) -> None:
    """A line of progress, beside what the command prints."""
    print(text, file=sys.stderr, flush=True)


def _compare(hand: Path, annotated: Path, out: Path | None, seed: int, rejected: Path | None = None) -> None:
    found = agreement(hand, annotated, seed, rejected=rejected)
    print(text(found))
    if out:
        write_text(out, json.dumps(found, indent=2, sort_keys=True) + "\n")


def _work(course: Course, rows: Triage, plan: Preview) -> Run | None:
    """Make the open calls; None where there are none. A second Ctrl-C drops the calls under way."""
    if not plan.calls:
        return None
    course.options.key()  # asked for now, before anything is shown as running
    return asyncio.run(_run(course, rows))


async def _run(course: Course, rows: Triage) -> Run:
    stop = asyncio.Event()
    progress = Progress(rows.candidates)
    async with Client(course.options, stop) as client:
        run = Run(course, client, stop, progress)
        loop = asyncio.get_running_loop()
        for sign in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(sign, _interrupt, run)
        shown = asyncio.create_task(progress.keep_showing())
        try:
            await run.through(rows.samples())
        finally:
            shown.cancel()
            progress.show(last=True)
    return run


def _interrupt(run: Run) -> None:
    if run.interrupted:
        run.abandon()
        return
    run.interrupted = True
    run.stop.set()
    print(
        "\nstopping: no new calls; waiting for those under way (Ctrl-C again drops them)",
        file=sys.stderr,
        flush=True,
    )


def _agreed() -> bool:
    if not sys.stdin.isatty():
        raise ParamsError(
            "there is no terminal to ask whether to go on; add --yes once the preview suits you"
        )
    return input("go on? [y/N] ").strip().lower() in ("y", "yes")


def _close(report: dict[str, JSON], options: Options) -> None:
    counts, total = report["counts"], report["total"]
    said = ", ".join(f"{n:,} {name}" for name, n in counts.items())
    usd = "" if total["usd"] is None else f", {total['usd']:,.2f} USD"
    print(
        f"{said}; all calls so far: {total['requests']:,} requests, {total['tokens_read'] + total['tokens_written']:,} tokens{usd}"
    )
    if total["unstructured_replies"] and not options.plain:
        print("the server refused response_format, so replies were asked for in words only")
    for outcome, more in AGAIN.items():
        if counts[outcome]:
            why = ", ".join(f"{n:,} {reason}" for reason, n in report["reasons"][outcome].items())
            print(f"{outcome}: {why}; {more}")
    if counts["annotated"]:
        print(
            f"read {options.out / SPOT}, then stage the rows: data.source local, data.uri {options.out}, data.patterns [{ANNOTATED}]"
        )


def _status(run: Run | None, report: dict[str, JSON]) -> int:
    if run and run.error:
        raise run.error
    if run and run.over_budget:
        print("stopped at --budget; raise it and run the same command to go on")
    if run and run.interrupted:
        return INTERRUPTED
    return int(report["counts"]["undecided"] > 0)
