"""`python -m benchmarks [NAME ...]`: what a training step spends time on, beside named peers; the laptop run
as a whole."""

from __future__ import annotations

import argparse
import os

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

from benchmarks import advantage, laptop, prompts, scheduling
from envace.errors import boundary

ALL = {
    "advantage": advantage.main,
    "prompts": prompts.main,
    "scheduling": scheduling.main,
    "laptop": laptop.main,
}


def main() -> None:
    """Numbers are printed and appended to .state/benchmarks; nothing is timed before the results are
    equal."""
    cli = argparse.ArgumentParser(prog="python -m benchmarks", description=main.__doc__)
    cli.add_argument(
        "names", nargs="*", metavar="NAME", help=f"of {', '.join(ALL)}; by default all but laptop"
    )
    cli.add_argument("--quick", action="store_true", help="small sizes: that they run, not what they find")
    args = cli.parse_args()
    if unknown := [name for name in args.names if name not in ALL]:
        cli.error(f"no benchmark is called {unknown[0]}; there are {', '.join(ALL)}")
    with boundary("benchmarks"):
        for name in args.names or list(ALL)[:3]:
            ALL[name](quick=args.quick)


if __name__ == "__main__":
    main()
