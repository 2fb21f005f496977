"""Which code each stage of dvc.yaml must watch, from what its flow imports.

`PYTHONPATH=. python tests/flows/stage_deps.py` prints what dvc.yaml lacks and what it has too much; with
`--write` it puts the wanted dependencies there. Dependencies that are no code (data, weights, results) are
left as they are.

A stage watches what its `flows/<stage>.py` reaches by imports, those inside functions and those named in
texts (`"envace.bench.bfcl.adapter:Bfcl"`) among them. `NEUTRAL` code is left out with what only that reaches,
for it cannot change an output. A folder stands for its files where a stage uses most of them.
"""

from __future__ import annotations

import ast
import re
import sys
import textwrap
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import accumulate
from pathlib import Path

import grimp
import yaml

from envace.types import JSON

ROOT = Path(__file__).resolve().parents[2]
PIPELINE = ROOT / "dvc.yaml"
# Starts and watches stages, writes logs, checks parameters (which DVC watches by key).
NEUTRAL = re.compile(
    r"(flows\._\w+|flows\.services|tasks\.(run|tracking|summary|artifacts)|"
    r"envace\.(track|params|config|errors|types|io)\b.*)$"
)
SHAPES_OUTPUTS = {"envace.config.method", "envace.io.chat_client"}  # of these
DATA = {  # what is read, by words in the code that reads it
    re.compile(r"\bload_prompt_set\b"): "envace/prompts",
    re.compile(r"import [^\n]*\bBUNDLED\b"): "envace/policy/start",
    re.compile(r'"locks" / "harness"'): "locks/harness",
}
REGISTRY = "envace.bench.harness.registry"
ADAPTERS = ("bfcl", "tau2", "vita", "finmcp")
MODULE = re.compile(r"(?:pkg://)?((?:envace|flows|tasks)(?:\.\w+)+)(?::\w+)?")
ENOUGH = 0.5  # of a folder's files, for the folder to stand for them
DEPS = re.compile(r"^( +)deps:.*\n(?:\1 +.*\n)*", re.M)
CODE = ("flows/", "tasks/", "envace/", "locks/")


def import_graph() -> grimp.ImportGraph:
    """Imports of the project, with modules that are named in texts, without what neutral code imports."""
    graph = grimp.build_graph("flows", "tasks", "envace", exclude_type_checking_imports=True, cache_dir=None)
    for module in sorted(graph.modules):
        for named in _named_in_texts(module, graph.modules):
            graph.add_import(importer=module, imported=named)
    for module in filter(_neutral, graph.modules):
        for imported in graph.find_modules_directly_imported_by(module) - SHAPES_OUTPUTS:
            graph.remove_import(importer=module, imported=imported)
    return graph


def _neutral(module: str) -> bool:
    return NEUTRAL.match(module) is not None and module not in SHAPES_OUTPUTS


def source_of(module: str) -> str:
    """The text of a module."""
    path = ROOT / module.replace(".", "/")
    return (path / "__init__.py" if path.is_dir() else path.with_suffix(".py")).read_text()


def _named_in_texts(module: str, known: Iterable[str]) -> Iterator[str]:
    for node in ast.walk(ast.parse(source_of(module))):
        if (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and (m := MODULE.fullmatch(node.value))
        ):
            name = m[1] if m[1] in known else m[1].rpartition(".")[0]
            if name in known and name != module:
                yield name


def reached(start: str, graph: grimp.ImportGraph) -> set[str]:
    """A module and the files with code that it imports, however far."""
    found = {start, *graph.find_upstream_modules(start)}
    return {m for m in found if not _neutral(m) and not (ROOT / m.replace(".", "/")).is_dir()}


def wanted(stage: str, graph: grimp.ImportGraph) -> set[str]:
    """The code a stage must watch, as dvc.yaml names it."""
    modules, own = reached(f"flows.{stage}", graph), set[str]()
    if stage == "bench":  # a matrix over adapters: each watches its own, and what it takes from elsewhere
        modules, own = _of_any_adapter(graph), {"envace/bench/${item.benchmark}"}
    found = _folded(modules, graph) | own
    texts = [source_of(m) for m in modules]
    data = {path for words, path in DATA.items() if any(map(words.search, texts))}
    return found | {path for path in data if not any(path.startswith(f"{folder}/") for folder in found)}


def _of_any_adapter(graph: grimp.ImportGraph) -> set[str]:
    """What the stage of an adapter reaches, but for the adapter itself."""
    homes = [f"envace.bench.{name}" for name in ADAPTERS]
    named = [m for m in graph.find_modules_directly_imported_by(REGISTRY) if m.startswith(tuple(homes))]
    for module in named:
        graph.remove_import(importer=REGISTRY, imported=module)
    found = reached("flows.bench", graph)
    for home in homes:
        found |= {m for m in reached(f"{home}.adapter", graph) if not m.startswith(f"{home}.")}
    for module in named:
        graph.add_import(importer=REGISTRY, imported=module)
    return found


def _folded(modules: set[str], graph: grimp.ImportGraph) -> set[str]:
    """Files, and folders in place of most of their files."""
    found = set()
    for module in modules:
        packages = list(accumulate(module.split(".")[:-1], "{}.{}".format))[1:]
        whole = (p for p in packages if _mostly(p, modules, graph))
        found.add(next((p.replace(".", "/") for p in whole), f"{module.replace('.', '/')}.py"))
    return found


def _mostly(package: str, modules: set[str], graph: grimp.ImportGraph) -> bool:
    held = {m for m in graph.find_descendants(package) if not (ROOT / m.replace(".", "/")).is_dir()}
    return len(held & modules) >= ENOUGH * len(held)


def dependencies(stage: dict[str, JSON]) -> list[str]:
    """What dvc.yaml names, of a stage or of a foreach."""
    return list(stage.get("do", stage)["deps"])


def differences(graph: grimp.ImportGraph) -> dict[str, tuple[set[str], set[str]]]:
    """{stage: (what its dependencies lack, what they name without need)}"""
    found = {}
    for name, stage in yaml.safe_load(PIPELINE.read_text())["stages"].items():
        named, need = {d for d in dependencies(stage) if d.startswith(CODE)}, wanted(name, graph)
        if need != named:
            found[name] = (need - named, named - need)
    return found


def rewritten(text: str, graph: grimp.ImportGraph) -> str:
    """dvc.yaml with the wanted dependencies; all else as it is."""
    for name, stage in yaml.safe_load(text)["stages"].items():
        other = [d for d in dependencies(stage) if not d.startswith(CODE)]
        code = sorted(wanted(name, graph), key=lambda d: (CODE.index(f"{d.partition('/')[0]}/"), d))
        shown = ", ".join(f'"{d}"' if "{" in d else d for d in (*other, *code))
        at = text.index(f"\n  {name}:\n")
        before, after = text[:at], text[at:]
        text = before + DEPS.sub(partial(_laid_out, shown), after, count=1)
    return text


def _laid_out(shown: str, old: re.Match[str]) -> str:
    lay = textwrap.TextWrapper(
        109, f"{old[1]}  [", f"{old[1]}   ", break_long_words=False, break_on_hyphens=False
    )
    return f"{old[1]}deps:\n{lay.fill(shown)}]\n"


def main() -> None:
    """Print, or write, what the dependencies of dvc.yaml should be."""
    graph = import_graph()
    for name, (lacks, needless) in differences(graph).items():
        print(f"{name}: lacks {sorted(lacks)}, does not need {sorted(needless)}")
    if "--write" in sys.argv:
        PIPELINE.write_text(rewritten(PIPELINE.read_text(), graph))


if __name__ == "__main__":
    main()
