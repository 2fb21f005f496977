"""`python -m envace.params` checks params.yaml and prints the resolved method table."""

from __future__ import annotations

import argparse
import dataclasses

from envace.config import flatten, load, to_dict
from envace.config.read import nearest
from envace.errors import ParamsError, boundary


def main() -> None:
    """Check params.yaml and print the resolved method table."""
    cli = argparse.ArgumentParser(prog="python -m envace.params", description=main.__doc__)
    cli.add_argument("path", nargs="?", default="params.yaml")
    cli.add_argument("--quiet", action="store_true", help="print nothing when the file is good")
    cli.add_argument("--get", metavar="KEY", help="print one value, e.g. mlflow.port")
    args = cli.parse_args()
    with boundary("parameters"):
        params = load(args.path)
        flat = flatten(to_dict(params))
        if args.get:
            if args.get not in flat:
                raise ParamsError(f"no parameter {args.get}{nearest(args.get, list(flat))}")
            print(flat[args.get])
        elif not args.quiet:
            print(
                f"{args.path}: size {params.size}, preset {params.method.preset}, runs {', '.join(params.train.runs)}"
            )
            for arm in params.arms_trained:
                for key, value in dataclasses.asdict(params.resolved_method(arm)).items():
                    print(f"  {arm:12} {key:20} {value}")


if __name__ == "__main__":
    main()
