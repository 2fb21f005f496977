"""`python -m envace.bench.harness build [NAME ...] | list`: the environments of the upstream harnesses.

Flows in: names of benchmarks. Flows out: built environments under `.harness/`, and a table of what is ready
and what is missing and why. Invariant: one that cannot be built keeps none of the others from being built;
the exit status is 0 only when all that were asked for are ready."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from envace.bench.harness.build import READY, build, find
from envace.bench.harness.registry import HARNESSES, harness, lacking
from envace.bench.harness.spec import HarnessEnv, HarnessSpec
from envace.errors import UserError, boundary, describe

ROOT = Path(".harness")
Row = tuple[str, bool, str]  # name, ready, where or why not, and what data lack


def main(argv: list[str] | None = None) -> int:
    """Build the environments of upstream benchmark harnesses, or list them."""
    cli = argparse.ArgumentParser(prog="python -m envace.bench.harness", description=main.__doc__)
    cli.add_argument("what", choices=("build", "list"))
    cli.add_argument(
        "names", nargs="*", metavar="NAME", help=f"of {', '.join(HARNESSES)}; all of them by default"
    )
    cli.add_argument("--root", type=Path, default=ROOT, help="folder of the environments (.harness)")
    cli.add_argument(
        "--uri",
        action="append",
        default=[],
        metavar="NAME=SOURCE",
        help="another address or a local git directory",
    )
    asked = cli.parse_args(argv)
    sources = dict(_pair(text) for text in asked.uri)
    do = _built if asked.what == "build" else _listed
    rows = [do(name, asked.root, sources.get(name)) for name in asked.names or HARNESSES]
    width = max(len(row[0]) for row in rows)
    print("\n".join(f"{name:{width}}  {'ready  ' if ok else 'MISSING'}  {text}" for name, ok, text in rows))
    return 0 if all(ok for _, ok, _ in rows) or asked.what == "list" else 3


def _pair(text: str) -> tuple[str, str]:
    name, equals, source = text.partition("=")
    if not (name in HARNESSES and equals and source):
        raise UserError(f"--uri {text}: write NAME=SOURCE with NAME one of {', '.join(HARNESSES)}")
    return name, source


def _spec(name: str, uri: str | None) -> HarnessSpec:
    try:
        return harness(name, **({"uri": uri} if uri else {}))
    except ImportError as e:
        raise UserError(f"its adapter cannot be imported: {e}") from e


def _built(name: str, root: Path, uri: str | None) -> Row:
    """Any failure becomes a row, a bug included: the other harnesses still get their turn."""
    print(f"{name}: looking for its harness", flush=True)
    try:
        spec = _spec(name, uri)
        env = build(spec, root, lambda line: print(line, flush=True))
    except Exception as e:
        return name, False, describe(e)
    return (
        name,
        True,
        _with_data(env, "needs no environment" if spec.kind == "none" else f"{env.root} ({_label(spec)})"),
    )


def _listed(name: str, root: Path, uri: str | None) -> Row:
    try:
        spec = _spec(name, uri)
        env = find(spec, root)
    except UserError as e:
        return name, False, describe(e)
    if spec.kind == "none":
        return name, True, "needs no environment"
    others = [p.parent.name for p in sorted(root.glob(f"{name}-*/{READY}")) if p.parent.name != spec.ref]
    others = [
        other
        for other in others
        if not any(o != name and len(o) > len(name) and other.startswith(o) for o in HARNESSES)
    ]
    beside = f"; beside it: {', '.join(others)}" if others else ""
    if env is None:
        return name, False, f"not built: make harnesses{beside}"
    return name, True, _with_data(env, f"{root / spec.ref} ({_label(spec)}){beside}")


def _with_data(env: HarnessEnv, text: str) -> str:
    return "; BUT ".join([text, *lacking(env)])


def _label(spec: HarnessSpec) -> str:
    return spec.label or spec.version[:12]


if __name__ == "__main__":
    with boundary("harness"):
        sys.exit(main())
