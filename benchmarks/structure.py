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
    lines, total = collections.Counter[str](), collections.Counter[str]()
    classes: dict[str, list[str]] = collections.defaultdict(list)
    functions, sloc, where = 0, 0, []
    marks = {"lines over 110": re.compile(r".{111}"), "fmt: skip": re.compile(r"# fmt: (skip|off)")}
    found = dict.fromkeys(marks, 0)
    for path in tracked((".py",), args.paths):
        text, name = path.read_text(encoding="utf-8"), str(path)
        part = "code" if name.startswith(CODE) else name.split("/")[0]
        lines[part] += text.count("\n")
        for i, line in enumerate(text.split("\n"), 1):
            for mark in (m for m, form in marks.items() if form.search(line)):
                found[mark] += 1
                where.append(f"{mark}: {name}:{i}")
        if part != "code":
            continue
        tree = ast.parse(text)
        sloc += code_lines(text, tree)
        functions += sum(isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef) for n in ast.walk(tree))
        for node in (n for n in tree.body if isinstance(n, ast.ClassDef)):
            classes[node.name].append(name)
        counts = loose(text, tree)
        total += counts
        where += [f"loose: {name} {sum(counts.values())}"] * bool(sum(counts.values()))
    beside = [p for p in tracked((".jinja", ".sh", ".css"), args.paths) if not str(p).startswith("tests/")]
    figures = {f"lines of {part}": lines[part] for part in ("code", "benchmarks", "tests")}
    figures["lines of templates and shell"] = sum(p.read_text().count("\n") for p in beside)
    several = {name: files for name, files in classes.items() if len(files) > 1}
    where += [f"class in several files: {name}: {', '.join(files)}" for name, files in several.items()]
    figures["classes of one name in several files"] = len(several)
    figures |= {f"loose annotations: {k}": v for k, v in sorted(total.items())}
    figures[f"functions in 100 of {sloc} lines of code alone"] = round(100 * functions / max(1, sloc), 1)
    documents = [p for p in tracked((".md",), args.paths) if str(p).startswith(("README", "docs/"))]
    figures |= found
    figures["words of README and docs"] = sum(len(p.read_text(encoding="utf-8").split()) for p in documents)
    if not args.paths:
        tied, up = circles()
        figures |= {"circles of files": len(tied), "arrows within circles of rooms": len(up)}
        where += [f"circle: {' '.join(c)}" for c in tied] + [f"arrow: {m} -> {n}" for m, n in up]
    for figure, value in figures.items():
        print(f"{figure:46} {value:>8}")
    if args.where:
        print("\n".join(where))


if __name__ == "__main__":
    main()
