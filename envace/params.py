"""The parameter file as a pipeline starts with it, and the commands over it. Here stand the checks that need
more than the file: prompt sets, your own worlds, and the options that a harness knows."""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path

from envace.bench.harness.registry import check
from envace.config import Params, flatten, load, to_dict
from envace.config.check import harnesses_used, placeholders
from envace.config.evaluation import OWN
from envace.config.size import write_size
from envace.config.values import nearest
from envace.errors import DataError, ParamsError, UserError, boundary
from envace.rollout import prompts
from envace.worlds import registry as worlds


def load_checked(path: str | Path = "params.yaml") -> Params:
    """Read the file and check all of it, before anything starts. Raises ParamsError."""
    params = check_others(load(path), f"{path}: ")
    for sentence in placeholders(params):
        raise ParamsError(f"{path}: {sentence}")
    return params


def check_others(params: Params, where: str = "") -> Params:
    """The prompt set, your own worlds and the options of harnesses that are used. Raises ParamsError."""
    check_prompt_set(params.rollout.prompt_set, where)
    try:
        worlds.load(params.rollout.worlds)
    except ParamsError as e:
        raise ParamsError(f"{where}{e}") from None
    for name in sorted(harnesses_used(params)):
        asked = params.bench.options.get(name, {})
        try:
            check(name, {k: v for k, v in asked.items() if k not in OWN})
        except UserError as e:
            raise ParamsError(f"{where}bench.options.{name}: {e}") from None
    return params


def check_prompt_set(name: str, where: str = "") -> None:
    """A folder of envace/prompts, which stages depend on, that can be used as it is. Raises ParamsError."""
    known = sorted(folder.name for folder in prompts.ROOT.iterdir() if folder.is_dir())
    if name not in known:
        raise ParamsError(
            f"{where}rollout.prompt_set is {name!r}, must be a folder of envace/prompts: {', '.join(known)}"
            f"{nearest(name, known)} (for a set of your own, copy one of them there)"
        )
    try:
        prompts.load_prompt_set(name)
    except DataError as e:
        raise ParamsError(f"{where}rollout.prompt_set: {e}") from None


def main() -> None:
    """Check params.yaml and print the resolved method table."""
    cli = argparse.ArgumentParser(prog="python -m envace.params", description=main.__doc__)
    cli.add_argument("path", nargs="?", default="params.yaml")
    cli.add_argument("--quiet", action="store_true", help="print nothing when the file is good")
    cli.add_argument("--get", metavar="KEY", help="print one value, e.g. mlflow.port")
    cli.add_argument(
        "--size", metavar="NAME", help="write a size of sizes/ into the file: laptop, paper, ..."
    )
    args = cli.parse_args()
    with boundary("parameters"):
        if args.size:
            write_size(args.size, Path(args.path))
            params = check_others(load(args.path), f"{args.path}: ")
            print(f"{args.path} is now the {args.size} size")
            for sentence in placeholders(params):
                print(f"  before it can run: {sentence}")
            return
        params = load_checked(args.path)
        flat = flatten(to_dict(params))
        if args.get:
            if args.get not in flat:
                raise ParamsError(f"no parameter {args.get}{nearest(args.get, flat)}")
            print(flat[args.get])
        elif not args.quiet:
            print(
                f"{args.path}: size {params.size}, preset {params.method.preset}, runs "
                f"{', '.join(params.train.runs)}"
            )
            for arm in params.arms_trained:
                for key, value in dataclasses.asdict(params.resolved_method(arm)).items():
                    print(f"  {arm:12} {key:20} {value}")


if __name__ == "__main__":
    main()
