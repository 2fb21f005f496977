"""What BFCL-v4 asks: its categories and the groups they are asked for by, the entries of each, pinned
versions.

Invariant: a category that was asked for is run or has a reason; a category holds exactly as many entries as
BFCL-v4 has there, each id once, or nothing is run. The order is BFCL's, whatever the order of the request.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from pathlib import Path

from envace.errors import DataError, UserError
from envace.types import JSON

VERSIONS = {"2026.3.23": "bfcl.lock", "2025.12.17.1": "bfcl-2025.12.17.1.lock"}
"""Version as PyPI calls it -> its lock under locks/harness/."""
NEWEST = "2026.3.23"
FULL = {"2026.3.23": "bfcl-full.lock"}  # with what memory_vector needs
DATA = Path("bfcl_eval") / "data"

SIMPLE = ("simple_python", "simple_java", "simple_javascript")
IRRELEVANCE = ("irrelevance", "live_irrelevance")  # passed by calling nothing
MULTI_TURN = tuple(f"multi_turn_{kind}" for kind in ("base", "miss_func", "miss_param", "long_context"))
MEMORY = ("memory_kv", "memory_vector", "memory_rec_sum")
WEB_SEARCH = ("web_search_base", "web_search_no_snippet")
AGENTIC = MEMORY + WEB_SEARCH
HAVE_TURNS = MULTI_TURN + AGENTIC  # their results are nested: turns, then steps
FORMAT = "format_sensitivity"  # asks prompt-mode models only and counts in no score
# How many scored entries each category holds; a package that holds others is not the benchmark.
_NON_LIVE = dict(zip(SIMPLE, (400, 100, 50))) | {"multiple": 200, "parallel": 200, "parallel_multiple": 200}
_LIVE = {"live_simple": 258, "live_multiple": 1053, "live_parallel": 16, "live_parallel_multiple": 24}
_LIVE |= {"live_irrelevance": 884, "live_relevance": 16}
COUNTS = _NON_LIVE | {"irrelevance": 240} | _LIVE
COUNTS |= dict.fromkeys(MULTI_TURN, 200) | dict.fromkeys(MEMORY, 155) | dict.fromkeys(WEB_SEARCH, 100)
ALL, NON_LIVE, LIVE = tuple(COUNTS), (*_NON_LIVE, "irrelevance"), tuple(_LIVE)
GROUPS = {
    "all": (*ALL, FORMAT),
    "all_scoring": ALL,
    "non_live": NON_LIVE,
    "live": LIVE,
    "single_turn": NON_LIVE + LIVE,
    "multi_turn": MULTI_TURN,
    "memory": MEMORY,
    "web_search": WEB_SEARCH,
    "agentic": AGENTIC,
    "python": tuple(c for c in NON_LIVE + LIVE if not c.startswith("simple_java")),
    "non_python": SIMPLE[1:],
    # ours: what needs neither the open web nor a model beside the one that is evaluated
    "offline": tuple(c for c in ALL if c not in WEB_SEARCH and c != "memory_vector"),
}
DEFAULT = ("offline",)
SHARED = dict.fromkeys(MEMORY, "memory") | dict.fromkeys(WEB_SEARCH, "web_search")
"""Category -> the file whose questions it asks; others have a file each."""
# Answers are looked for without case and without ,./-_*^() as BFCL does.
PLAIN = str.maketrans("'", '"', ",./-_*^()")
DO_NOTHING = "i do not know"  # BFCL's own words for "no answer" in the agentic categories


def select(subsets: Iterable[str], reason_against: Callable[[str], str]) -> tuple[list[str], dict[str, str]]:
    """Categories to run, each once, and category -> reason for those that cannot be. UserError if none is
    left.
    """
    wanted: set[str] = set()
    for name in subsets or DEFAULT:
        if name not in GROUPS and name not in GROUPS["all"]:
            known = f"groups are {', '.join(GROUPS)}, categories {', '.join(ALL)}"
            raise UserError(f"bfcl has no subset {name!r}; {known}")
        wanted.update(GROUPS.get(name, (name,)))
    reasons = {c: reason_against(c) for c in GROUPS["all"] if c in wanted}
    skipped = {c: reason for c, reason in reasons.items() if reason}
    if len(skipped) == len(reasons):
        raise UserError("bfcl: nothing left to run: " + "; ".join(f"{c} {r}" for c, r in skipped.items()))
    return [c for c in reasons if c not in skipped], skipped


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
    """Conversations that fill the memory these entries ask about: whole chains, each builds on the one
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
    name = f"possible_answer/BFCL_v4_{SHARED.get(category, category)}.json"
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
        plain = (answer.lower().translate(PLAIN) for answer in truth)
        return any(re.search(rf"\b{re.escape(answer)}\b", DO_NOTHING) for answer in plain)
    return category in IRRELEVANCE  # elsewhere text is not a call


def rows(source: Path, category: str, name: str = "") -> list[dict[str, JSON]]:
    """Rows of a data file (by default the questions), under the category's own ids where several share a
    file.

    Raises DataError for one that cannot be read.
    """
    shared = SHARED.get(category, category)
    found = _read(source / DATA / (name or f"BFCL_v4_{shared}.json"))
    return [row | {"id": row["id"].replace(shared, category)} for row in found]


@cache
def _read(path: Path) -> list[dict[str, JSON]]:
    try:
        return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line.strip()]
    except (OSError, ValueError) as e:
        again = "build the harness anew (make harnesses)"
        raise DataError(f"bfcl: {path.name} cannot be read ({e}); {again}") from e
