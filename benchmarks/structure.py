"""`make structure`: how much there is to read, and what ties it together. Paths narrow it: ARGS="envace/judge
tests/judge".

Flows in: the tracked files. Flows out: one line a figure, then the places behind it with --where.
"""

from __future__ import annotations

import argparse
import ast
import collections
import re
import subprocess
from pathlib import Path

import grimp
import networkx

CODE, TESTS, BENCH = ("envace/", "flows/", "tasks/"), "tests/", "benchmarks/"
LOOSE = {"Any", "object", "cast"}


def tracked(ends: tuple[str, ...], under: list[str]) -> list[Path]:
    names = subprocess.run(
        ["git", "ls-files", *under], capture_output=True, text=True, check=True
    ).stdout.split("\n")
    return [Path(n) for n in names if n.endswith(ends) and Path(n).is_file()]


def annotations(tree: ast.AST) -> list[ast.expr]:
    """Every annotation of a module: arguments, returns, variables, fields."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.arg | ast.AnnAssign) and node.annotation:
            found.append(node.annotation)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.returns:
            found.append(node.returns)
    return found


def loose(text: str, tree: ast.AST) -> collections.Counter[str]:
    """Any, object and cast as the code uses them, and `type: ignore`."""
    counts: collections.Counter[str] = collections.Counter()
    for note in annotations(tree):
        names = [n.id for n in ast.walk(note) if isinstance(n, ast.Name)]
        if isinstance(note, ast.Constant) and isinstance(note.value, str):
            names += re.findall(r"\w+", note.value)
        counts.update(n for n in names if n in LOOSE)
    calls = [n.func.id for n in ast.walk(tree) if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)]
    counts.update(n for n in calls if n == "cast")
    counts["type: ignore"] += len(re.findall(r"# type: ignore", text))
    return counts


def code_lines(text: str, tree: ast.AST) -> int:
    """Lines that are neither blank nor a comment nor part of a docstring."""
    own = {
        i for i, line in enumerate(text.split("\n"), 1) if line.strip() and not line.lstrip().startswith("#")
    }
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Constant)
            and isinstance(node.value.value, str)
        ):
            own -= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return len(own)


def room(module: str) -> str:
    parts = module.split(".")
    return ".".join(parts[:2]) if parts[0] == "envace" else parts[0]


def circles() -> tuple[list[list[str]], list[tuple[str, str]]]:
    """Circles of files, and arrows between rooms that are part of a circle of rooms; lazy imports count."""
    graph = grimp.build_graph("envace", "flows", "tasks")
    files = networkx.DiGraph(
        (m, n) for m in graph.modules for n in graph.find_modules_directly_imported_by(m)
    )
    rooms = networkx.DiGraph((room(m), room(n)) for m, n in files.edges if room(m) != room(n))
    tied = [c for c in networkx.strongly_connected_components(rooms) if len(c) > 1]
    up = [(m, n) for m, n in files.edges if room(m) != room(n) and any({room(m), room(n)} <= c for c in tied)]
    return [sorted(c) for c in networkx.strongly_connected_components(files) if len(c) > 1], up


def main() -> None:
    cli = argparse.ArgumentParser(prog="make structure", description=__doc__)
    cli.add_argument("paths", nargs="*", help="only these folders")
    cli.add_argument("--where", action="store_true", help="name the places behind each figure")
    args = cli.parse_args()
    lines: collections.Counter[str] = collections.Counter()
    classes, any_in = collections.defaultdict(list), collections.Counter()
    total, functions, sloc, long, unformatted = collections.Counter(), 0, 0, [], []
    for path in tracked((".py",), args.paths):
        text, name = path.read_text(encoding="utf-8"), str(path)
        part = "code" if name.startswith(CODE) else name.split("/")[0]
        lines[part] += text.count("\n")
        long += [f"{name}:{i}" for i, line in enumerate(text.split("\n"), 1) if len(line) > 110]
        unformatted += [
            f"{name}:{i}"
            for i, line in enumerate(text.split("\n"), 1)
            if re.search(r"# fmt: (skip|off)", line)
        ]
        if part != "code":
            continue
        tree = ast.parse(text)
        sloc += code_lines(text, tree)
        functions += sum(isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef) for n in ast.walk(tree))
        for node in tree.body:
            if isinstance(node, ast.ClassDef):
                classes[node.name].append(name)
        counts = loose(text, tree)
        total += counts
        any_in[name] = sum(counts.values())
    other = sum(
        p.read_text().count("\n")
        for p in tracked((".jinja", ".sh", ".css"), args.paths)
        if not str(p).startswith("tests/")
    )
    words = sum(len(p.read_text(encoding="utf-8").split()) for p in tracked((".md",), args.paths))
    several = {name: where for name, where in classes.items() if len(where) > 1}
    print(f"lines of code            {lines['code']:6}   (templates and shell beside: {other})")
    print(f"lines of benchmarks      {lines['benchmarks']:6}\nlines of tests           {lines['tests']:6}")
    print(f"classes of one name in several files {len(several)}")
    print("loose annotations        " + ", ".join(f"{k} {v}" for k, v in sorted(total.items())))
    print(
        f"functions in 100 lines   {100 * functions / max(1, sloc):6.1f}   (of {sloc} without blank lines, "
        "comments, docstrings)"
    )
    print(
        f"lines over 110           {len(long):6}\nfmt: skip                {len(unformatted):6}\nwords of "
        f"documents       {words:6}"
    )
    tied, up = circles() if not args.paths else ([], [])
    if not args.paths:
        print(
            f"circles of files         {len(tied):6}   ({sum(map(len, tied))} files)\narrows within circles "
            f"of rooms {len(up)}"
        )
    if args.where:
        print(
            *(f"  {n}: {', '.join(w)}" for n, w in several.items()),
            *(f"  {n} {c}" for n, c in any_in.most_common(40) if c),
            sep="\n",
        )
        print(
            *(f"  {p}" for p in long + unformatted),
            *(f"  {' '.join(c)}" for c in tied),
            *(f"  {m} -> {n}" for m, n in up),
            sep="\n",
        )


if __name__ == "__main__":
    main()
