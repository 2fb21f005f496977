"""Upstream benchmarks: the paper's tables with our rows in them, policies compared, and all scores.

Invariant: a score is shown with its tasks, trials, floors, what was left out and who judged it; every row
says whether it is of this run or of the paper, and a cell without a number says why. Two runs that differ in
harness, data, user, judge or thinking bear different letters and are never compared; the setup is taken over
every record that matters, and what is not recorded counts as different."""

from __future__ import annotations

from collections.abc import Sequence

from envace.bench.compare import average, difference, statistic
from envace.bench.labels import setup
from envace.bench.summary import few
from envace.report import paper, plots
from envace.report.bench_scores import (
    HEADLINES,
    Key,
    apart,
    find,
    groups,
    headline,
    key_of,
    score_of,
    single_subsets,
)
from envace.report.estimates import SEED, Estimate
from envace.report.results import EvalRun
from envace.report.study import Study
from envace.report.table import (
    DASH,
    MINUS,
    Section,
    Table,
    between,
    captioned,
    fixed,
    lost,
    reading,
    table,
    trials,
)
from envace.types import ScoreRecord

MAIN = ("bfcl", "tau2", "vita")
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
TITLES = {"bfcl": "BFCL-v4 by group", "tau2": "τ²-Bench by domain", "vita": "VitaBench by domain"}
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
OURS, PAPER, NOT_RUN, NOT_PRINTED = "this run", "paper", "not run", "not printed"
INTERVALS = "In percent. [ ]: 95 % interval over tasks."
AS_PRINTED = f"{INTERVALS} ( ): tasks × trials. Rows of the paper are as printed, not measured here"
MOST_OTHERS = 4
"""Columns of subsets that are no part of an average."""


def bench(study: Study) -> Section:
    """The section, with the figure, the paper's tables and the details of the benchmarks that ran."""
    runs = [r for r in study.results.bench if r.finished]
    note = study.small_policy_note([r.policy for r in runs])
    return Section(
        id="bench",
        title="Upstream benchmarks",
        wide=True,
        lead="Each in the harness its authors publish, run as a process of its own. Strict: a failure of the "
        "agent counts 0. Upstream: as the harness counts, which may leave failures out. Intervals are 95 %, "
        f"bootstrapped over tasks. {note}",
        plots=tuple(filter(None, (_figure(runs, b) for b in study.params.bench.benchmarks))),
        tables=captioned(
            ("Main results", main_results(runs, study.n)),
            *((title, parts(runs, b)) for b, title in TITLES.items()),
            ("FinMCP-Bench", finmcp(runs)),
            ("On the same tasks", comparisons(runs, study.n)),
            ("Every score", every(runs)),
        ),
    )


def _marks(runs: Sequence[EvalRun], benchmark: str) -> dict[str, str]:
    """Policy -> the letter of its setup, where a benchmark was run under more than one."""
    found = groups(runs, benchmark)
    named = {run.policy: chr(ord("a") + k) for k, group in enumerate(found) for run in group}
    return {policy: f" {{{letter}}}" for policy, letter in named.items()} if len(found) > 1 else {}


def _setups(runs: Sequence[EvalRun], names: Sequence[str]) -> str:
    """What was measured: one setup a benchmark, or one a letter."""
    said = ""
    for b in names:
        marks = _marks(runs, b)
        for group in groups(runs, b):
            said += f" {b}{marks.get(group[0].policy, '')}: {_described(group[0])}."
    return said


def _described(run: EvalRun) -> str:
    """The setup of all records in words: "harness x; user u; judge none, j; thinking false; data 1f"."""
    values: dict[str, dict[str, None]] = {}
    for s in run.scores:
        for name, value in setup(s).items():
            values.setdefault(name, {})[value] = None
    single = {name: [v for v in own if "; " not in v or len(own) == 1] for name, own in values.items()}
    return "; ".join(f"{name} {', '.join(own)}" for name, own in single.items())


# --- the paper's tables -------------------------------------------------------------------------------------


def main_results(runs: Sequence[EvalRun], n: int) -> Table | None:
    """Models by the three benchmarks, of those that were run, and their plain mean where all three were.
    Ours first, each followed by the paper's row of the same name, then the rest of the paper's."""
    names = [b for b in MAIN if any(r.benchmark == b for r in runs)]
    keys = [*names, "overall"] if len(names) == len(MAIN) else names
    marks = {b: _marks(runs, b) for b in names}
    rows, left = [], {} if not names else dict(paper.MAIN)

    def printed(model: str) -> tuple[str, ...]:
        values = left.pop(model)
        return model, PAPER, *(_printed(values.get(k), k) for k in keys)

    for policy in dict.fromkeys(r.policy for r in runs if r.benchmark in names):
        own = {r.benchmark: r for r in runs if r.policy == policy}
        cells = [_official(own.get(b), b) + marks[b].get(policy, "") for b in names]
        cells += [_overall(own, n)] if "overall" in keys else []
        rows.append((policy, OURS, *cells))
        rows += [printed(model) for model in list(left) if paper.same_model(policy, model)]
    rows += [printed(model) for model in list(left)]
    columns = " | ".join(("model", "from", *(paper.COLUMNS.get(k, k) for k in keys)))
    unknown = "; it does not say which versions, users, judges or languages it used."
    return table(columns, rows, AS_PRINTED + unknown + _setups(runs, names))


def parts(runs: Sequence[EvalRun], benchmark: str) -> Table | None:
    """Groups or domains of one benchmark and its average, and what an agent that does nothing scores."""
    own = [r for r in runs if r.benchmark == benchmark]
    if not own:
        return None
    strict = (s.subset for r in own for s in r.scores if s.source == "strict")
    others = {subset: subset for subset in strict if subset not in PARTS[benchmark]}  # `mock`, a category
    headings = PARTS[benchmark] | (others if len(others) <= MOST_OTHERS else {})
    digits, marks, rows = paper.DIGITS[benchmark], _marks(runs, benchmark), []
    for run in own:
        found = [_of_subset(run, subset) for subset in headings]
        played = trials(max([s.n_trials for s in found if s is not None], default=0))
        cells = [_cell(s, digits, f" ({s.n_tasks})" if s else "") for s in found]
        rows.append((run.policy + marks.get(run.policy, ""), OURS, played, *cells))
    floors = [_floor(own, subset, digits) for subset in headings]
    if any(f != DASH for f in floors):
        rows.append(("an agent that does nothing", "floor", DASH, *floors))
    columns = " | ".join(("model", "from", "trials", *headings.values()))
    return table(columns, rows, f"{INTERVALS} ( ): tasks." + _setups(runs, [benchmark]))


def finmcp(runs: Sequence[EvalRun]) -> Table | None:
    """The paper's layout, one row a subset; micro first, then macro."""
    digits, marks, rows = paper.DIGITS["finmcp"], _marks(runs, "finmcp"), []
    for run in (r for r in runs if r.benchmark == "finmcp"):
        for subset in FINMCP_SUBSETS:
            found = [find(run, (subset, metric, "strict")) for metric in FINMCP]
            cells = [_size(found[0]), *(_cell(s, digits) for s in found)]
            rows.append((run.policy + marks.get(run.policy, ""), OURS, subset, *cells))
    for model, values in paper.FINMCP.items() if rows else ():
        cells = [_printed(values.get(m), "finmcp") for m in FINMCP]
        rows.append((model, PAPER, "all", NOT_PRINTED, *cells))
    columns = " | ".join(("model", "from", "conversations", "tasks × trials", *FINMCP.values()))
    return table(columns, rows, AS_PRINTED + "." + _setups(runs, ["finmcp"]))


def _of_subset(run: EvalRun, subset: str) -> ScoreRecord | None:
    return find(run, (subset, "reward", "derived")) or find(run, (subset, "reward", "strict"))


def _official(run: EvalRun | None, benchmark: str) -> str:
    s = find(run, HEADLINES[benchmark][0])
    return _cell(s, paper.DIGITS[benchmark], f" ({_size(s)})")


def _size(s: ScoreRecord | None) -> str:
    if s is None:
        return NOT_RUN
    return f"{s.n_tasks}, single trial" if s.n_trials == 1 else f"{s.n_tasks} × {s.n_trials}"


def _cell(s: ScoreRecord | None, digits: int, size: str = "") -> str:
    if s is None:
        return NOT_RUN
    if s.score is not None:
        return _percent(s.score, s.low, s.high, digits) + size
    gone = s.n_infra_failure + s.n_missing  # a subset alone lacks samples; an average parts, which it names
    if gone and s.source != "derived":
        return f"withheld: {gone} of {gone + s.n_scored + s.n_agent_failure} samples have no score"
    return f"withheld: {few(s.skipped, 2) or 'no reason given'}"


def _percent(value: float, low: float | None, high: float | None, digits: int) -> str:
    edges = "" if low is None or high is None else f" [{100 * low:.{digits}f}, {100 * high:.{digits}f}]"
    return f"{100 * value:.{digits}f}{edges}"


def _printed(value: float | None, benchmark: str) -> str:
    return NOT_PRINTED if value is None else f"{value:.{paper.DIGITS[benchmark]}f}"


def _floor(runs: Sequence[EvalRun], subset: str, digits: int) -> str:
    """What doing nothing scores; runs of other tasks have floors of their own, which the details show."""
    found = {
        s.floors["do_nothing"] for r in runs if (s := _of_subset(r, subset)) and "do_nothing" in s.floors
    }
    if len(found) > 1:
        return "differs by run"
    return f"{100 * found.pop():.{digits}f}" if found else DASH


def _overall(own: dict[str, EvalRun], n: int) -> str:
    """Plain mean of the three official scores, all of them given; tasks are resampled within each."""
    made = {}
    for b in MAIN:
        s = find(own.get(b), HEADLINES[b][0])
        what = statistic(b, s.subset, s.metric) if s is not None and s.score is not None else None
        if what is None:
            return f"withheld: {paper.COLUMNS[b]}"
        made[b] = (what, own[b].samples)
    return _percent(*average(made, n, SEED), paper.DIGITS["overall"])


# --- one policy against another -----------------------------------------------------------------------------


def comparisons(runs: Sequence[EvalRun], n: int) -> Table | None:
    """Every later policy of a benchmark against the first one, on the same tasks: what is differenced is the
    published score itself (`envace.bench.compare`)."""
    rows = []
    for name in dict.fromkeys(r.benchmark for r in runs):
        first, *others = [r for r in runs if r.benchmark == name]
        for run in others:
            pair = f"{run.policy} {MINUS} {first.policy}"
            shared = _shared(run, first) or [("", "", "")]
            rows += [
                (name, f"{k[0]} {k[1]}".strip() or DASH, pair, *_compared(run, first, k, n)) for k in shared
            ]
    note = (
        "The score itself is differenced, in percentage points, on the tasks that both have scored; each "
        "resample draws the same tasks for both. Repeating a single trial can move it by more than its "
        "interval says."
    )
    return table("benchmark | score | comparison | difference | 95 % interval | reading | tasks", rows, note)


def _shared(a: EvalRun, b: EvalRun) -> list[Key]:
    """The headline that both have; else every subset that both have."""
    for key in HEADLINES.get(a.benchmark, ()):
        if all(score_of(find(run, key)) for run in (a, b)):
            return [key]
    theirs = {key_of(s) for s in single_subsets(b)}
    mine = [key_of(s) for s in single_subsets(a) if key_of(s) in theirs]
    return [k for k in mine if statistic(a.benchmark, k[0], k[1]) is not None]


def _compared(after: EvalRun, before: EvalRun, key: Key, n: int) -> tuple[str, str, str, str]:
    """Difference, interval, reading and tasks; or why there is none."""
    subset, metric, _ = key
    what = statistic(after.benchmark, subset, metric)
    names = apart(after, before, {subset, *what.needs}) if what else []
    if not subset:
        why = "no score is given for both"
    elif what is None:
        why = "no function of task means"
    elif names:
        why = f"{', '.join(names)} not the same"
    else:
        try:
            if found := difference(what, after.samples, before.samples, n, SEED):
                (value, low, high), tasks = found
                edges = [None if edge is None else 100 * edge for edge in (low, high)]
                e = Estimate(value=100 * value, low=edges[0], high=edges[1])
                s = find(after, key)
                single = ", single trial" if s and s.n_trials == 1 else ""
                return f"{e.value:+.1f}", between(e, "+.1f"), reading(e) + single, str(tasks)
            why = "too few tasks that both have scored"
        except ValueError as e:  # samples that some other program wrote
            why = str(e)
    return DASH, DASH, f"not compared: {why}", DASH


# --- details ------------------------------------------------------------------------------------------------


def every(runs: Sequence[EvalRun]) -> Table | None:
    rows = []
    for r in runs:
        for s in r.scores:
            floors = ", ".join(f"{k.replace('_', ' ')} {v:.3f}" for k, v in s.floors.items()) or DASH
            value = "withheld" if s.score is None else fixed(s.score)
            edges = DASH if s.low is None else between(Estimate(value=0, low=s.low, high=s.high))
            gone = lost(s.n_agent_failure, s.n_infra_failure, s.n_missing)
            size = (str(s.n_tasks), trials(s.n_trials), floors, gone, few(s.skipped) or DASH, s.harness)
            rows.append((r.benchmark, r.policy, *key_of(s), value, edges, *size))
    columns = (
        "benchmark | policy | subset | metric | counted | score | 95 % interval | tasks | trials | floors | "
        "not scored | left out | harness"
    )
    return table(columns, rows)


def _figure(runs: Sequence[EvalRun], benchmark: str) -> str:
    """One score of one setup: bars of different scores, harnesses or judges never share an axis."""
    own = max(groups(runs, benchmark), key=len, default=[])
    heads = [key_of(s) for r in own if (s := headline(r)) is not None and s.score is not None]
    if not heads:
        return ""
    shared = [k for k in HEADLINES.get(benchmark, ()) if all(score_of(find(r, k)) for r in own)]
    key = shared[0] if shared else max(heads, key=heads.count)
    bars = [
        plots.Bar(label=r.policy, at=e, color=plots.ACCENT, marks=dict(s.floors))
        for r in own
        if (s := find(r, key)) is not None and (e := score_of(s)) is not None
    ]
    return plots.intervals(f"bench-{benchmark}", bars, xlabel=f"{benchmark} {key[0]} {key[1]}")
