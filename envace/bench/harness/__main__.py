"""`python -m envace.bench.harness build [NAME ...] | list`: the environments of the upstream harnesses.

Flows in: names of benchmarks. Flows out: built environments under `.harness/`, and a table of what is ready
and what is missing and why.
Invariant: one that cannot be built keeps none of the others from being built; the exit status is 0 only when
all that were asked for are ready.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from envace.bench.harness.build import READY, build, find
from envace.bench.harness.registry import HARNESSES, harness, lacking
from envace.bench.harness.spec import HarnessEnv
from envace.errors import UserError, boundary, describe
from envace.types import JSON

ROOT = Path(".harness")
Found = tuple[bool, str]  # ready, and where or why not, with what data lack


def main(argv: list[str] | None = None) -> int:
    """Build the environments of upstream benchmark harnesses, or list them."""
    cli = argparse.ArgumentParser(prog="python -m envace.bench.harness", description=main.__doc__)
    cli.add_argument("what", choices=("build", "list"))
    named = f"of {', '.join(HARNESSES)}; all of them by default"
    cli.add_argument("names", nargs="*", metavar="NAME", help=named)
    cli.add_argument("--root", type=Path, default=ROOT, help="folder of the environments (.harness)")
    other = "another address or a local git directory"
    cli.add_argument("--uri", action="append", default=[], metavar="NAME=SOURCE", help=other)
    asked = cli.parse_args(argv)
    sources = {}
    for text in asked.uri:
        name, _, source = text.partition("=")
        if name not in HARNESSES or not source:
            raise UserError(f"--uri {text}: write NAME=SOURCE with NAME one of {', '.join(HARNESSES)}")
        sources[name] = {"uri": source}
    look = _built if asked.what == "build" else _listed
    found = {name: look(name, asked.root, sources.get(name, {})) for name in asked.names or HARNESSES}
    width = max(map(len, found))
    for name, (ready, text) in found.items():
        print(f"{name:{width}}  {'ready  ' if ready else 'MISSING'}  {text}")
    return 0 if all(ready for ready, _ in found.values()) or asked.what == "list" else 3


def _built(name: str, root: Path, options: dict[str, JSON]) -> Found:
    """Any failure becomes a row, a bug included: the other harnesses still get their turn."""
    print(f"{name}: looking for its harness", flush=True)
    try:
        env = build(harness(name, **options), root, lambda line: print(line, flush=True))
    except Exception as e:
        return False, describe(e)
    return True, _told(env, env.root)


def _listed(name: str, root: Path, options: dict[str, JSON]) -> Found:
    try:
        spec = harness(name, **options)
        env = find(spec, root)
    except UserError as e:
        return False, describe(e)
    if spec.kind == "none":
        return True, _told(env, root)
    longer = tuple(other for other in HARNESSES if other != name and other.startswith(name))
    folders = [p.parent.name for p in sorted(root.glob(f"{name}-*/{READY}")) if p.parent.name != spec.ref]
    others = [folder for folder in folders if not folder.startswith(longer)]
    beside = f"; beside it: {', '.join(others)}" if others else ""
    if env is None:
        return False, f"not built: make harnesses{beside}"
    return True, _told(env, root / spec.ref, beside)


def _told(env: HarnessEnv, folder: Path, beside: str = "") -> str:
    """Where a harness is, what is beside it, and what it lacks."""
    spec = env.spec
    where = f"{folder} ({spec.label or spec.version[:12]})" if spec.kind != "none" else "needs no environment"
    return "; BUT ".join([where + beside, *lacking(env)])


if __name__ == "__main__":
    with boundary("harness"):
        sys.exit(main())
