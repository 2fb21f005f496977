"""BFCL's categories and the groups they are asked for by.

Invariant: a category that was asked for is run or has a reason; none is left out in silence. The order is
fixed, whatever the order of the request.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from envace.errors import UserError

# How many scored entries each category holds; a package that holds others is not the benchmark.
COUNTS = {
    "simple_python": 400,
    "simple_java": 100,
    "simple_javascript": 50,
    "multiple": 200,
    "parallel": 200,
    "parallel_multiple": 200,
    "irrelevance": 240,
    "live_simple": 258,
    "live_multiple": 1053,
    "live_parallel": 16,
    "live_parallel_multiple": 24,
    "live_irrelevance": 884,
    "live_relevance": 16,
    "multi_turn_base": 200,
    "multi_turn_miss_func": 200,
    "multi_turn_miss_param": 200,
    "multi_turn_long_context": 200,
    "memory_kv": 155,
    "memory_vector": 155,
    "memory_rec_sum": 155,
    "web_search_base": 100,
    "web_search_no_snippet": 100,
}
ALL = tuple(COUNTS)
NON_LIVE, LIVE, MULTI_TURN = ALL[:7], ALL[7:13], ALL[13:17]
MEMORY, WEB_SEARCH = ALL[17:20], ALL[20:]
AGENTIC = MEMORY + WEB_SEARCH
HAVE_TURNS = MULTI_TURN + AGENTIC  # their results are nested: turns, then steps
IRRELEVANCE = ("irrelevance", "live_irrelevance")  # passed by calling nothing
FORMAT = "format_sensitivity"  # asks prompt-mode models only and counts in no score
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
    "non_python": ("simple_java", "simple_javascript"),
    # ours: what needs neither the open web nor a model beside the one that is evaluated
    "offline": tuple(c for c in ALL if c not in WEB_SEARCH and c != "memory_vector"),
}
DEFAULT = ("offline",)


def expand(subsets: Iterable[str]) -> list[str]:
    """Categories of these subsets, each once, in BFCL's order. Raises UserError for an unknown name."""
    wanted: set[str] = set()
    for name in subsets:
        if name not in GROUPS and name not in GROUPS["all"]:
            raise UserError(
                f"bfcl has no subset {name!r}; groups are {', '.join(GROUPS)}, categories {', '.join(ALL)}"
            )
        wanted.update(GROUPS.get(name, (name,)))
    return [c for c in GROUPS["all"] if c in wanted]


def select(subsets: Iterable[str], reason_against: Callable[[str], str]) -> tuple[list[str], dict[str, str]]:
    """Categories to run, and category -> reason for those that cannot be. Raises UserError when
    none is left.
    """
    reasons = {c: reason_against(c) for c in expand(subsets or DEFAULT)}
    runnable = [c for c, reason in reasons.items() if not reason]
    skipped = {c: reason for c, reason in reasons.items() if reason}
    if not runnable:
        raise UserError("bfcl: nothing left to run: " + "; ".join(f"{c} {r}" for c, r in skipped.items()))
    return runnable, skipped
