"""The section on upstream benchmarks of a folder, and its cells by name."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from envace.config import Params, parse
from envace.report.bench import bench
from envace.report.load import load_results
from envace.report.study import Study
from envace.report.table import Section, Table

POLICIES = ["start", "envace-1", "qwen3-8b"]


def bench_params(*benchmarks: str) -> Params:
    server = {"base_url": "http://127.0.0.1:9/v1", "model": "u"}
    section = {
        "policies": POLICIES,
        "benchmarks": list(benchmarks),
        "user": server,
        "judge": server,
        "baselines": {"qwen3-8b": server},
    }
    return parse({"bench": section, "report": {"bootstrap": 200}})


@dataclass
class Shown:
    """The section: its tables by caption, all of their words, and its figures."""

    section: Section

    @property
    def tables(self) -> dict[str, Table]:
        return dict(self.section.tables)

    @property
    def words(self) -> str:
        return self.section.lead + repr(self.tables)


def shown(root: Path, *benchmarks: str) -> Shown:
    params = bench_params(*(benchmarks or ("tau2",)))
    return Shown(bench(Study(load_results(root, params), params)))


def rows(text: Shown, caption: str) -> list[list[str]]:
    """Head and cells of one table."""
    found = text.tables[caption]
    return [list(found.columns), *map(list, found.rows)]


def row(text: Shown, caption: str, *starts: str) -> dict[str, str]:
    head, *body = rows(text, caption)
    (found,) = [r for r in body if tuple(r[: len(starts)]) == starts]
    return dict(zip(head, found))


def three(airline: list[Any], retail: list[Any], telecom: list[Any]) -> dict[str, list[Any]]:
    return {"airline": airline, "retail": retail, "telecom": telecom}


FAIR = three([1.0, 0.0], [1.0, 0.0], [0.0, 0.0])
GOOD = three([1.0, 1.0], [1.0, 1.0], [1.0, 0.0])


def pair(text: Shown, *scores: str) -> dict[str, str]:
    return row(text, "On the same tasks", *scores)
