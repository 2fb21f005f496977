"""`python -m envace.bench.harness build [NAME ...] | list`: the environments of the upstream harnesses.

Invariant: one that cannot be built keeps none of the others from being built; the exit status is 0 only when
all that were asked for are ready.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from envace.bench.harness.build import READY, build, find
from envace.bench.harness.registry import HARNESSES, harness, lacking
from envace.errors import UserError, boundary, describe
from envace.types import JSON


def main(argv: list[str] | None = None) -> int:
    """Build the environments of upstream benchmark harnesses, or list them."""
    cli = argparse.ArgumentParser(prog="python -m envace.bench.harness", description=main.__doc__)
    cli.add_argument("what", choices=("build", "list"))
    named = f"of {', '.join(HARNESSES)}; all of them by default"
    cli.add_argument("names", nargs="*", metavar="NAME", help=named)
    root = "folder of the environments (.harness)"
    cli.add_argument("--root", type=Path, default=Path(".harness"), help=root)
    other = "another address or a local git directory"
    cli.add_argument("--uri", action="append", default=[], metavar="NAME=SOURCE", help=other)
    asked, sources = cli.parse_args(argv), {}
    for text in asked.uri:
        name, _, source = text.partition("=")
        if name not in HARNESSES or not source:
            raise UserError(f"--uri {text}: write NAME=SOURCE with NAME one of {', '.join(HARNESSES)}")
        sources[name] = {"uri": source}
    found, making = {}, asked.what == "build"
    for name in asked.names or HARNESSES:
        try:
            found[name] = _look(name, asked.root, sources.get(name, {}), making)
        except Exception as e:
            if not (making or isinstance(e, UserError)):
                raise
            found[name] = False, describe(e)  # a row, a bug too: the other harnesses still get their turn
    width = max(map(len, found))
    for name, (ready, text) in found.items():
        print(f"{name:{width}}  {'ready  ' if ready else 'MISSING'}  {text}")
    return 0 if all(ready for ready, _ in found.values()) or not making else 3


def _look(name: str, root: Path, options: dict[str, JSON], making: bool) -> tuple[bool, str]:
    """Whether a harness is ready, and where, with what is beside it and what it lacks, or why not."""
    if making:
        print(f"{name}: looking for its harness", flush=True)
    spec, beside = harness(name, **options), ""
    env = build(spec, root, lambda line: print(line, flush=True)) if making else find(spec, root)
    if not making and spec.kind != "none":
        longer = tuple(other for other in HARNESSES if other != name and other.startswith(name))
        folders = [p.parent.name for p in sorted(root.glob(f"{name}-*/{READY}"))]
        others = [f for f in folders if f != spec.ref and not f.startswith(longer)]
        beside = f"; beside it: {', '.join(others)}" if others else ""
    if env is None:
        return False, f"not built: make harnesses{beside}"
    where = f"{root / spec.ref} ({spec.label or spec.version[:12]})"
    where = "needs no environment" if spec.kind == "none" else where
    return True, "; BUT ".join([where + beside, *lacking(env)])


if __name__ == "__main__":
    with boundary("harness"):
        sys.exit(main())
