"""`python -m envace.data annotate SOURCE --out FOLDER --base-url URL --model NAME` and `... agree HAND ANNOTATED`.

Flows in: the command line's parser. Flows out: two subcommands in it.
Invariant: the other subcommands do not wait for what only these two need.
"""

from __future__ import annotations

import argparse

from envace.data.annotate import arguments

Commands = argparse._SubParsersAction


def add(commands: Commands[argparse.ArgumentParser]) -> None:
    """Add annotate and agree; each sets `run`, a function of the parsed command line."""
    words = "Filter raw tool-calling rows with a language model and write a checklist for each that passes."
    command = commands.add_parser(
        "annotate", help="label raw rows with a language model", description=words,
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )  # fmt: skip
    arguments.fill_annotate(command)
    command.set_defaults(run=_annotate)
    words = "Compare the labels of rows with those of a person."
    command = commands.add_parser("agree", help="compare labels with a person's", description=words)
    arguments.fill_agree(command)
    command.set_defaults(run=_agree)


def _annotate(args: argparse.Namespace) -> int:
    from envace.data.annotate.command import annotate

    return annotate(args)


def _agree(args: argparse.Namespace) -> int:
    from envace.data.annotate.command import agree

    return agree(args)
