"""`python -m envace.data check FILE`: explain every fault of a file of rows. `... annotate`: label raw rows.
`... agree`: compare labels with a person's."""

from __future__ import annotations

import argparse
import sys
from dataclasses import fields
from pathlib import Path

from envace.data.annotate.arguments import AnnotateOptions, fill_annotate
from envace.data.check_command import check_file
from envace.errors import boundary


def main(argv: list[str] | None = None) -> int:
    """Run a subcommand; return the exit status."""
    cli = argparse.ArgumentParser(
        prog="python -m envace.data", description="Check and annotate files of rows."
    )
    commands = cli.add_subparsers(required=True, metavar="COMMAND")

    words = "explain every fault of a file of rows"
    command = commands.add_parser("check", help=words, description=f"{words.capitalize()}.")
    command.add_argument("file", type=Path)
    command.add_argument(
        "--params",
        type=Path,
        default=Path("params.yaml"),
        help="where data.* says which rules hold, and rollout.worlds names your own worlds (%(default)s)",
    )
    command.set_defaults(run=check_file)

    words = "Filter raw tool-calling rows with a language model and write a checklist for each that passes."
    labels, shape = "label raw rows with a language model", argparse.ArgumentDefaultsHelpFormatter
    command = commands.add_parser("annotate", help=labels, description=words, formatter_class=shape)
    fill_annotate(command)
    command.set_defaults(run=_annotate)

    words = "Compare the labels of rows with those of a person."
    command = commands.add_parser("agree", help="compare labels with a person's", description=words)
    add, rejected = command.add_argument, "rows the filter rejected (rejected.jsonl beside ANNOTATED)"
    add("hand", type=Path, help="rows labelled by hand")
    add("annotated", type=Path, help="an annotated.jsonl")
    add("--rejected", type=Path, metavar="FILE", help=rejected)
    add("--out", type=Path, help="also write the numbers here, as JSON")
    add("--seed", type=int, default=7, help="of the resampling (%(default)s)")
    command.set_defaults(run=_agree)

    args = cli.parse_args(argv)
    return args.run(args)  # parsed arguments -> exit status


def _annotate(args: argparse.Namespace) -> int:
    from envace.data.annotate.command import annotate  # no other subcommand waits for what it imports

    return annotate(AnnotateOptions(**{f.name: getattr(args, f.name) for f in fields(AnnotateOptions)}))


def _agree(args: argparse.Namespace) -> int:
    from envace.data.annotate.command import compare_files

    compare_files(args.hand, args.annotated, args.out, args.seed, args.rejected)
    return 0


if __name__ == "__main__":
    with boundary("data"):
        sys.exit(main())
