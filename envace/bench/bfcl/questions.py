"""BFCL's data as the installed package holds them: ids, prerequisite conversations, answers, and the floor.

Invariant: a category holds exactly as many entries as BFCL-v4 has there, each id once, or nothing is run.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from envace.bench.bfcl.categories import AGENTIC, COUNTS, IRRELEVANCE, MEMORY, MULTI_TURN, WEB_SEARCH
from envace.errors import DataError
from envace.types import JSON

DATA = Path("bfcl_eval") / "data"
DO_NOTHING = "I do not know"  # BFCL's own words for "no answer" in the agentic categories
SHARED = dict.fromkeys(MEMORY, "memory") | dict.fromkeys(WEB_SEARCH, "web_search")
"""Category -> the file whose questions it asks; others have a file each."""


def question_ids(source: Path, category: str) -> list[str]:
    """Ids of the scored entries. Raises DataError when they are not the benchmark's."""
    ids = [row["id"] for row in rows(source, category)]
    if len(ids) != COUNTS[category] or len(set(ids)) != len(ids):
        raise DataError(
            f"bfcl {category}: the installed package holds {len(set(ids))} entries in {len(ids)} rows, "
            f"BFCL-v4 has {COUNTS[category]}; build the harness anew (make harnesses)"
        )
    return ids


def prerequisite_ids(source: Path, category: str, ids: Sequence[str]) -> list[str]:
    """Conversations that fill the memory these entries ask about: whole chains, as each builds on the one
    before.
    """
    if category not in MEMORY:
        return []
    names = [f"memory_prereq_conversation/memory_{s}.json" for s in sorted({scenario(i) for i in ids})]
    return [row["id"] for name in names for row in rows(source, category, name)]


def scenario(memory_id: str) -> str:
    """`memory_kv_7-customer-7` -> `customer`."""
    return memory_id.split("-")[1]


def answers(source: Path, category: str) -> dict[str, JSON]:
    """Id -> ground truth; empty for categories that have none (relevance and irrelevance)."""
    name = f"possible_answer/{_file(category)}"
    there = (source / DATA / name).exists()
    return {row["id"]: row["ground_truth"] for row in rows(source, category, name)} if there else {}


def do_nothing(source: Path, category: str, ids: Sequence[str]) -> float:
    """Share of these entries that an agent passes which calls nothing and says that it does not know."""
    truth = answers(source, category)
    return sum(passed_by_nothing(category, truth.get(i)) for i in ids) / max(len(ids), 1)


def passed_by_nothing(category: str, truth: JSON) -> bool:
    """Whether such an agent passes an entry with this ground truth."""
    if category in MULTI_TURN:
        return not any(truth)  # a turn without calls asks for none
    if category in AGENTIC:
        return any(re.search(rf"\b{re.escape(_plain(a))}\b", _plain(DO_NOTHING)) for a in truth)
    return category in IRRELEVANCE  # elsewhere text is not a call


def _plain(text: str) -> str:
    """Answers are looked for without case and without ,./-_*^() as BFCL does."""
    return text.lower().translate(str.maketrans("'", '"', ",./-_*^()"))


def rows(source: Path, category: str, name: str = "") -> list[dict[str, JSON]]:
    """Rows of a data file (by default the category's questions) under the category's own ids, as memory and
    web search ask the same questions in several categories. Raises DataError for one that cannot be read.
    """
    shared = SHARED.get(category, category)
    found = _read(source / DATA / (name or _file(category)))
    return [row | {"id": row["id"].replace(shared, category)} for row in found]


def _file(category: str) -> str:
    return f"BFCL_v4_{SHARED.get(category, category)}.json"


@cache
def _read(path: Path) -> list[dict[str, JSON]]:
    try:
        return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line.strip()]
    except (OSError, ValueError) as e:
        raise DataError(
            f"bfcl: {path.name} cannot be read ({e}); build the harness anew (make harnesses)"
        ) from e
