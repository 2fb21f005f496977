"""BFCL's data as the installed package holds them: ids, prerequisite conversations, answers, and the floor.

Flows in: the package's data folder. Flows out: ids to run and what doing nothing scores on them.
Invariant: a category holds exactly as many entries as BFCL-v4 has there, each id once, or nothing is run.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from envace.bench.bfcl.categories import COUNTS, MEMORY, MULTI_TURN, WEB_SEARCH, is_agentic, is_irrelevance
from envace.errors import DataError

DATA = Path("bfcl_eval") / "data"
DO_NOTHING = "I do not know"  # BFCL's own words for "no answer" in the agentic categories


def choose(ids: Sequence[str], limit: int, seed: int) -> list[str]:
    """`limit` ids by hash, in the order they came; 0 is all. The same for every policy."""
    if not limit or limit >= len(ids):
        return list(ids)
    ranked = sorted(ids, key=lambda i: hashlib.sha256(f"{seed}/{i}".encode()).hexdigest())
    kept = set(ranked[:limit])
    return [i for i in ids if i in kept]


def question_ids(source: Path, category: str) -> list[str]:
    """Ids of the scored entries. Raises DataError when they are not the benchmark's."""
    ids = [_own_id(row["id"], category) for row in _questions(source, category)]
    if len(ids) != COUNTS[category] or len(set(ids)) != len(ids):
        raise DataError(
            f"bfcl {category}: the installed package holds {len(set(ids))} entries in {len(ids)} rows, BFCL-v4 has "
            f"{COUNTS[category]}; build the harness anew (make harnesses)"
        )
    return ids


def prerequisite_ids(source: Path, category: str, ids: Sequence[str]) -> list[str]:
    """Conversations that fill the memory these entries ask about: whole chains, as each builds on the one before."""
    if category not in MEMORY:
        return []
    scenarios = sorted({scenario(i) for i in ids})
    files = [source / DATA / "memory_prereq_conversation" / f"memory_{s}.json" for s in scenarios]
    return [_own_id(row["id"], category) for file in files for row in _rows(file)]


def scenario(memory_id: str) -> str:
    """`memory_kv_7-customer-7` -> `customer`."""
    return memory_id.split("-")[1]


def answers(source: Path, category: str) -> dict[str, Any]:
    """Id -> ground truth; empty for categories that have none (relevance and irrelevance)."""
    path = source / DATA / "possible_answer" / _file(category)
    if not path.exists():
        return {}
    return {_own_id(row["id"], category): row["ground_truth"] for row in _rows(path)}


def do_nothing(source: Path, category: str, ids: Sequence[str]) -> float:
    """Share of these entries that an agent passes which calls nothing and says that it does not know."""
    truth = answers(source, category)
    return sum(_passes(category, truth.get(i)) for i in ids) / max(len(ids), 1)


def _passes(category: str, truth: Any) -> bool:
    if is_irrelevance(category):
        return True
    if category in MULTI_TURN:
        return not any(truth)  # a turn without calls asks for none
    if is_agentic(category):
        return any(re.search(rf"\b{re.escape(_plain(a))}\b", _plain(DO_NOTHING)) for a in truth)
    return False  # text is not a call


def _plain(text: str) -> str:
    """Answers are looked for without case and without ,./-_*^() as BFCL does."""
    return text.lower().translate(str.maketrans("'", '"', ",./-_*^()"))


def _questions(source: Path, category: str) -> list[dict[str, Any]]:
    return _rows(source / DATA / _file(category))


def _file(category: str) -> str:
    shared = {c: "memory" for c in MEMORY} | {c: "web_search" for c in WEB_SEARCH}
    return f"BFCL_v4_{shared.get(category, category)}.json"


def _own_id(row_id: str, category: str) -> str:
    """Memory and web search ask the same questions in several categories."""
    if category in MEMORY:
        return row_id.replace("memory", category)
    return row_id.replace("web_search", category) if category in WEB_SEARCH else row_id


@cache
def _rows(path: Path) -> list[dict[str, Any]]:
    try:
        return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line.strip()]
    except (OSError, ValueError) as e:
        raise DataError(
            f"bfcl: {path.name} cannot be read ({e}); build the harness anew (make harnesses)"
        ) from e
