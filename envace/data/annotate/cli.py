"""The subcommands annotate and agree of `python -m envace.data`. The others do not wait for what only these
need."""

from __future__ import annotations

import argparse

from envace.data.annotate.options import fill_agree, fill_annotate


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add annotate and agree; each sets `run`, a function of the parsed command line."""
    words = "Filter raw tool-calling rows with a language model and write a checklist for each that passes."
    shape = argparse.ArgumentDefaultsHelpFormatter
    labels = "label raw rows with a language model"
    command = commands.add_parser("annotate", help=labels, description=words, formatter_class=shape)
    fill_annotate(command)
    command.set_defaults(run=_annotate)
    words = "Compare the labels of rows with those of a person."
    command = commands.add_parser("agree", help="compare labels with a person's", description=words)
    fill_agree(command)
    command.set_defaults(run=_agree)


def _annotate(args: argparse.Namespace) -> int:
    from envace.data.annotate.command import annotate

    return annotate(args)


def _agree(args: argparse.Namespace) -> int:
    from envace.data.annotate.command import agree

    return agree(args)
