"""The weighted overall. fixtures/bfcl/tables.json holds tables that BFCL itself made of crafted score
files."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from kit_records import scored_sample

from envace.bench.bfcl.scores import DERIVED, estimate, score_records
from envace.bench.bfcl.tasks import ALL, COUNTS, NON_LIVE

TABLES = json.loads((Path(__file__).parent / "fixtures" / "bfcl" / "tables.json").read_text())
COLUMNS = {
    "overall": "Overall Acc",
    "non_live": "Non-Live AST Acc",
    "live": "Live Acc",
    "multi_turn": "Multi Turn Acc",
    "web_search": "Web Search Acc",
    "memory": "Memory Acc",
    "irrelevance_mean": "Irrelevance Detection",
}


def values(correct):
    return {c: {f"{c}/{n}": [float(n < right)] for n in range(COUNTS[c])} for c, right in correct.items()}


def printed(which, table="overall"):
    header, row = csv.reader(TABLES[which]["tables"][table].splitlines())
    return dict(zip(header, row))


def test_every_number_equals_the_one_bfcl_prints_for_a_full_run():
    mine = {n: estimate(n, values(TABLES["full"]["correct"]), 0, 0)[0] for n in DERIVED}
    assert {n: f"{mine[n] * 100:.2f}%" for n in COLUMNS} == {
        n: printed("full")[c] for n, c in COLUMNS.items()
    }
    assert f"{mine['agentic'] * 100:.2f}%" == printed("full", "agentic")["Agentic Overall Acc"]


def test_bug_30_gorilla_1353_bfcl_counts_absent_categories_as_zero_and_we_withhold():
    assert printed("partial")["Overall Acc"] == "8.33%"
    there = values(TABLES["partial"]["correct"])
    assert all(estimate(n, there, 0, 0) is None for n in DERIVED)


def test_the_offline_subset_needs_no_web_and_no_second_model():
    right = {c: COUNTS[c] for c in ALL}
    assert estimate("offline_subset", values(right), 0, 0)[0] == pytest.approx(1)
    kept = {c: n for c, n in right.items() if c in DERIVED["offline_subset"].needs}
    assert len(kept) == 18 and not any(c.startswith("web") or c == "memory_vector" for c in kept)
    no_memory = {c: 0 if c.startswith("memory") else n for c, n in kept.items()}
    assert estimate("offline_subset", values(no_memory), 0, 0)[0] == pytest.approx(0.75)


def test_live_relevance_counts_in_no_derived_number():
    assert not any("live_relevance" in d.needs for d in DERIVED.values())


def test_intervals_resample_tasks_within_each_category():
    point, low, high = estimate("overall", values(TABLES["full"]["correct"]), 400, 1)
    assert (
        low < point < high
        and (low, high) == estimate("overall", values(TABLES["full"]["correct"]), 400, 1)[1:]
    )
    # a category that is all right or all wrong varies with no draw of its tasks
    sure = values({c: COUNTS[c] if i % 2 else 0 for i, c in enumerate(ALL)})
    point, low, high = estimate("overall", sure, 50, 0)
    assert low == pytest.approx(point) and high == pytest.approx(point)


def test_trials_of_a_task_are_one_task():
    single = {c: {f"{c}/{n}": [float(n % 2)] for n in range(20)} for c in ALL}
    thrice = {c: {t: v * 3 for t, v in tasks.items()} for c, tasks in single.items()}
    assert estimate("multi_turn", single, 300, 0) == estimate("multi_turn", thrice, 300, 0)


def test_a_category_of_one_task_gives_no_interval():
    few = {c: {f"{c}/0": [1.0]} for c in ALL}
    assert estimate("overall", few, 100, 0) == (pytest.approx(1.0), None, None)


def samples(category, n, right):
    return [scored_sample(f"{category}/{i}", float(i < right)) for i in range(n)]


def scored(counts, floors=None, skipped=None):
    tasks = {c: [f"{c}/{i}" for i in range(n)] for c, (n, _) in counts.items()}
    made = [s for c, (n, right) in counts.items() for s in samples(c, n, right)]
    how = {"min_complete": 1.0, "bootstrap": 50, "seed": 0, "harness": "h", "policy": "p"}
    floors = floors or dict.fromkeys(tasks, 0.0)
    records = score_records(made, tasks, 1, floors=floors, skipped=skipped or {}, **how)
    return {(r.subset, r.source): r for r in records}


def test_the_overall_lists_what_it_lacks_and_why():
    some = {c: (10, 5) for c in ALL if c not in ("memory_vector", "web_search_base")}
    records = scored(some, skipped={"memory_vector": "needs torch"})
    overall = records["overall", "derived"]
    assert overall.score is None and records["overall", "upstream"].score is None
    assert overall.skipped == ("memory_vector: needs torch", "web_search_base: not asked for")
    assert records["offline_subset", "derived"].score == pytest.approx(0.5)
    assert overall.n_tasks == overall.n_scored == 190, "live_relevance is not among them"


def test_a_full_run_has_every_group_from_both_sources_with_the_floor():
    floors = {c: float("irrelevance" in c) for c in ALL}
    records = scored({c: (4, 1) for c in ALL}, floors)
    assert {s for s, source in records if source == "derived"} == set(DERIVED)
    overall = records["overall", "derived"]
    assert overall.score == pytest.approx(0.25) == records["overall", "upstream"].score
    assert overall.floors == {"do_nothing": pytest.approx(0.1)} and overall.low < 0.25 < overall.high
    assert records["irrelevance", "strict"].floors == {"do_nothing": 1.0}
    assert {r.harness for r in records.values()} == {"h"} and {r.policy for r in records.values()} == {"p"}


def test_one_category_alone_gives_no_group_that_it_is_not_of():
    records = scored({"multi_turn_base": (3, 3)})
    assert {s for s, _ in records} == {"multi_turn_base", "multi_turn", "offline_subset", "overall"}
    assert records["multi_turn_base", "strict"].score == 1 and records["multi_turn", "derived"].score is None
    assert records["overall", "derived"].n_tasks == 3


def test_only_relevance_asked_for_leaves_the_overall_empty():
    overall = scored({"live_relevance": (3, 3)})["overall", "derived"]
    assert (overall.score, overall.n_tasks, overall.n_scored) == (None, 0, 0)


def test_gorilla_1115_and_1140_a_category_is_not_the_group_that_bears_its_name():
    """The table's "simple" is the plain mean of three languages; readers took it for simple_python and found
    another."""
    counts = {c: (50, 48 if c == "simple_python" else 27) for c in NON_LIVE}
    records = scored(counts)
    assert records["simple_python", "strict"].score == pytest.approx(0.96)
    simple = (0.96 + 0.54 + 0.54) / 3
    assert simple == pytest.approx(0.68)
    assert records["non_live", "derived"].score == pytest.approx((simple + 3 * 0.54) / 4)
    assert not any(subset == "simple" for subset, _ in records)


def test_evalscope_831_the_overall_is_weighted_as_bfcl_does_and_no_dropped_entry_raises_it():
    """Another wrapper averaged the entries that came back, all alike: 4,391 of 4,441."""
    counts = {c: (10, 10 if c in ("live_multiple", "simple_python") else 0) for c in ALL}
    overall = scored(counts)["overall", "derived"].score
    live = COUNTS["live_multiple"] / (258 + 1053 + 16 + 24)
    assert overall == pytest.approx(0.1 * (1 / 3 / 4) + 0.1 * live)
    assert overall != pytest.approx(2 / 22)
    made = [s for c, (n, right) in counts.items() for s in samples(c, n, right)]
    lost = [s for s in made if s.reward == 1.0 or s.task != "memory_kv/3"]
    tasks = {c: [f"{c}/{i}" for i in range(n)] for c, (n, _) in counts.items()}
    how = {"min_complete": 1.0, "bootstrap": 10, "seed": 0}
    records = score_records(lost, tasks, 1, floors=dict.fromkeys(tasks, 0.0), skipped={}, **how)
    found = {(r.subset, r.source): r for r in records}
    assert found["overall", "derived"].score is None is found["overall", "upstream"].score
    assert "memory_kv: withheld" in found["overall", "derived"].skipped


def test_the_formula_is_written_out():
    v = {c: np.float64(i) for i, c in enumerate(ALL)}
    simple = (v["simple_python"] + v["simple_java"] + v["simple_javascript"]) / 3
    assert DERIVED["non_live"].of(v) == pytest.approx((simple + 3 + 4 + 5) / 4)
    assert DERIVED["agentic"].of(v) == pytest.approx(((17 + 18 + 19) / 3 + (20 + 21) / 2) / 2)
