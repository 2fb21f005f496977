"""The paper's tables with the rows of this run in them: models by benchmarks, then the parts of each
benchmark.

Flows in: runs and the paper's values. Flows out: `Table`s, everything in percent.
Invariant: every row says whether it is of this run or of the paper; a cell without a number says why; rows of
different setups bear different letters, which the note spells out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from envace.bench.compare import average, statistic
from envace.bench.summary import few
from envace.report import paper
from envace.report.bench_scores import HEADLINES, described, find, groups
from envace.report.estimates import SEED
from envace.report.results import EvalRun
from envace.report.table import DASH, Table, table, trials
from envace.types import ScoreRecord

MAIN = {b: paper.COLUMNS[b] for b in ("bfcl", "tau2", "vita")}
OURS, PAPER = "this run", "paper"
NOT_RUN, NOT_PRINTED = "not run", "not printed"
PARTS = {  # subset -> heading, the average last
    "bfcl": {
        "non_live": "non-live",
        "live": "live",
        "irrelevance_mean": "irrelevance",
        "multi_turn": "multi-turn",
        "memory": "memory",
        "web_search": "web search",
        "offline_subset": "offline subset (ours)",
        "overall": "overall",
    },
    "tau2": {"airline": "airline", "retail": "retail", "telecom": "telecom", "macro": "average"},
    "vita": {
        "delivery": "delivery",
        "instore": "in-store",
        "ota": "OTA",
        "cross": "cross",
        "macro": "average",
    },
}
FINMCP_SUBSETS = ("single", "multi", "multi_turn", "all")
FINMCP = {
    "tp": "TP",
    "tr": "TR",
    "tf1": "TF1",
    "emr": "EMR",
    "macro_tp": "macro TP",
    "macro_tr": "macro TR",
    "macro_tf1": "macro TF1",
    "emr_described": "EMR, any order in parallel",
}
INTERVALS = "In percent. [ ]: 95 % interval over tasks."
NOTE = f"{INTERVALS} ( ): tasks × trials. Rows of the paper are as printed, not measured here"
MOST_OTHERS = 4  # columns
UNKNOWN = "; it does not say which versions, users, judges or languages it used."


def main(runs: Sequence[EvalRun], n: int) -> Table | None:
    """Models by the three benchmarks, of those that were run, and their plain mean where all three were."""
    names = [b for b in MAIN if any(r.benchmark == b for r in runs)]
    if not names:
        return None
    keys = (*names, "overall") if len(names) == len(MAIN) else tuple(names)
    marks = {b: _letters(runs, b) for b in names}

    def ours(policy: str) -> tuple[str, ...]:
        own = {r.benchmark: r for r in runs if r.policy == policy}
        cells = [_marked(_official(own.get(b), b), marks[b].get(policy, "")) for b in names]
        return policy, OURS, *cells, *([_overall(own, n)] if "overall" in keys else [])

    def theirs(model: str) -> tuple[str, ...]:
        return model, PAPER, *(_value(paper.MAIN[model].get(k), k) for k in keys)

    policies = list(dict.fromkeys(r.policy for r in runs if r.benchmark in names))
    rows = _merged(policies, paper.MAIN, ours, theirs)
    columns = ("model", "from", *(MAIN.get(k, k) for k in keys))
    return table(columns, rows, note=NOTE + UNKNOWN + _setups(runs, names))


def parts(runs: Sequence[EvalRun], benchmark: str) -> Table | None:
    """Groups or domains of one benchmark and its average."""
    own = {r.policy: r for r in runs if r.benchmark == benchmark}
    if not own:
        return None
    headings = PARTS[benchmark] | _others(list(own.values()), PARTS[benchmark])
    digits, letters = paper.DIGITS[benchmark], _letters(runs, benchmark)
    rows = []
    for policy, run in own.items():
        found = [_of_subset(run, subset) for subset in headings]
        played = trials(max([s.n_trials for s in found if s is not None], default=0))
        cells = [_cell(s, digits, size=lambda s: f"({s.n_tasks})") for s in found]
        rows.append((_marked(policy, letters.get(policy, "")), OURS, played, *cells))
    floors = [_floor(list(own.values()), subset, digits) for subset in headings]
    if any(f != DASH for f in floors):
        rows.append(("an agent that does nothing", "floor", DASH, *floors))
    note = f"{INTERVALS} ( ): tasks." + _setups(runs, [benchmark])
    return table(("model", "from", "trials", *headings.values()), rows, note=note)


def _others(runs: Sequence[EvalRun], known: Mapping[str, str]) -> dict[str, str]:
    """Subsets that are no part of the average, where they are few: `mock`, a category by itself."""
    found = dict.fromkeys(
        s.subset for r in runs for s in r.scores if s.source == "strict" and s.subset not in known
    )
    return {subset: subset for subset in found} if len(found) <= MOST_OTHERS else {}


def finmcp(runs: Sequence[EvalRun]) -> Table | None:
    """The paper's layout, one row a subset; micro first, then macro."""
    own = [r for r in runs if r.benchmark == "finmcp"]
    if not own:
        return None
    digits, rows, letters = paper.DIGITS["finmcp"], [], _letters(runs, "finmcp")
    for run in own:
        name = _marked(run.policy, letters.get(run.policy, ""))
        for subset in FINMCP_SUBSETS:
            found = [find(run, (subset, metric, "strict")) for metric in FINMCP]
            rows.append((name, OURS, subset, _size(found[0]), *(_cell(s, digits, size=None) for s in found)))
    for model, values in paper.FINMCP.items():
        rows.append((model, PAPER, "all", NOT_PRINTED, *(_value(values.get(m), "finmcp") for m in FINMCP)))
    return table(
        ("model", "from", "conversations", "tasks × trials", *FINMCP.values()),
        rows,
        note=NOTE + "." + _setups(runs, ["finmcp"]),
    )


# --- cells --------------------------------------------------------------------------------------------------


def _of_subset(run: EvalRun, subset: str) -> ScoreRecord | None:
    return find(run, (subset, "reward", "derived")) or find(run, (subset, "reward", "strict"))


def _official(run: EvalRun | None, benchmark: str) -> str:
    score = find(run, HEADLINES[benchmark][0]) if run is not None else None
    return _cell(score, paper.DIGITS[benchmark])


def _size(s: ScoreRecord | None) -> str:
    if s is None:
        return NOT_RUN
    return f"{s.n_tasks}, single trial" if s.n_trials == 1 else f"{s.n_tasks} × {s.n_trials}"


def _sized(s: ScoreRecord) -> str:
    return f"({_size(s)})"


def _cell(s: ScoreRecord | None, digits: int, *, size: Callable[[ScoreRecord], str] | None = _sized) -> str:
    if s is None:
        return NOT_RUN
    if s.score is None:
        return f"withheld: {_why(s)}"
    return _number(s.score, s.low, s.high, digits) + (f" {size(s)}" if size else "")


def _number(value: float, low: float | None, high: float | None, digits: int) -> str:
    edges = "" if low is None or high is None else f" [{100 * low:.{digits}f}, {100 * high:.{digits}f}]"
    return f"{100 * value:.{digits}f}{edges}"


def _why(s: ScoreRecord) -> str:
    """A subset alone lacks samples; an average lacks parts, which it names."""
    lost = s.n_infra_failure + s.n_missing
    if lost and s.source != "derived":
        return f"{lost} of {lost + s.n_scored + s.n_agent_failure} samples have no score"
    return few(s.skipped, 2) or "no reason given"


def _value(value: float | None, benchmark: str) -> str:
    return NOT_PRINTED if value is None else f"{value:.{paper.DIGITS[benchmark]}f}"


def _floor(runs: Sequence[EvalRun], subset: str, digits: int) -> str:
    """What doing nothing scores; runs of other tasks have floors of their own, which the details show."""
    found = {s.floors.get("do_nothing") for run in runs if (s := _of_subset(run, subset)) is not None} - {
        None
    }
    if len(found) > 1:
        return "differs by run"
    return f"{100 * found.pop():.{digits}f}" if found else DASH


def _overall(own: Mapping[str, EvalRun], n: int) -> str:
    """Plain mean of the three official scores, all of them given; tasks are resampled within each
    benchmark."""
    made = {}
    for b in MAIN:
        score = find(own[b], HEADLINES[b][0]) if b in own else None
        if score is None or score.score is None:
            return f"withheld: {MAIN[b]}"
        made[b] = (statistic(b, score.subset, score.metric), own[b].samples)
    return _number(*average(made, n, SEED), paper.DIGITS["overall"])


# --- rows ---------------------------------------------------------------------------------------------------


def _merged(
    policies: Sequence[str],
    printed: Mapping[str, object],
    ours: Callable[[str], tuple[str, ...]],
    theirs: Callable[[str], tuple[str, ...]],
) -> list[tuple[str, ...]]:
    """Ours first, each followed by the paper's row of the same name, then the rest of the paper's."""
    rows, left = [], list(printed)
    for policy in policies:
        rows.append(ours(policy))
        for model in [m for m in left if paper.same_model(policy, m)]:
            rows.append(theirs(model))
            left.remove(model)
    return rows + [theirs(model) for model in left]


def _letters(runs: Sequence[EvalRun], benchmark: str) -> dict[str, str]:
    """Policy -> the letter of its setup, where a benchmark was run under more than one."""
    found = groups([r for r in runs if r.benchmark == benchmark])
    if len(found) < 2:
        return {}
    return {run.policy: chr(ord("a") + k) for k, group in enumerate(found) for run in group}


def _marked(text: str, letter: str) -> str:
    return f"{text} {{{letter}}}" if letter else text


def _setups(runs: Sequence[EvalRun], names: Sequence[str]) -> str:
    """What was measured: one setup a benchmark, or one a letter."""
    said = []
    for b in names:
        found = groups([r for r in runs if r.benchmark == b])
        for k, group in enumerate(found):
            letter = f" {{{chr(ord('a') + k)}}}" if len(found) > 1 else ""
            said.append(f"{b}{letter}: {described(group[0])}.")
    return " " + " ".join(said)
