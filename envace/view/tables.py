"""Tables of scores: before and after, test-time scaling, fidelity, the collusion gap.

Flows in: `Results`, parameters. Flows out: `Table`s.
Invariant: a score is never shown without its number of tasks and trials, and one of a single trial says so.
"""

from __future__ import annotations

from envace.params import Params
from envace.types import ScoreRecord
from envace.view import measures
from envace.view.load import EvalRun, Results
from envace.view.measures import Estimate
from envace.view.table import DASH, MINUS, Table, between, count, fixed, signed, table, trials, verdict


def scores(results: Results, params: Params) -> Table | None:
    """Every score record of every evaluation, with its interval and floors."""
    rows = []
    for run in results.evals:
        for s in run.scores:
            rows.append((run.policy, *_score_cells(s, run)))
        if not run.scores and (e := measures.estimate(run, params.report.bootstrap)):
            metric = measures.metric_of(run)
            rows.append(
                (
                    run.policy,
                    run.benchmark,
                    metric,
                    fixed(e.value),
                    between(e),
                    str(e.n_tasks),
                    trials(e.trials),
                    DASH,
                    DASH,
                )
            )
    columns = (
        "policy",
        "benchmark",
        "metric",
        "score",
        "95 % interval",
        "tasks",
        "trials",
        "floors",
        "not scored",
    )
    note = "An interval without width means that every task scored alike, not that the score is certain."
    return table(columns, rows, note=note)


def _score_cells(s: ScoreRecord, run: EvalRun) -> tuple[str, ...]:
    own = Estimate(value=s.score or 0.0, low=s.low, high=s.high)
    floors = ", ".join(f"{k.replace('_', ' ')} {v:.3f}" for k, v in s.floors.items()) or DASH
    lost = [
        f"{n} {what}"
        for n, what in (
            (s.n_agent_failure, "agent failed (0)"),
            (s.n_infra_failure, "infrastructure"),
            (s.n_missing, "missing"),
        )
        if n
    ]
    value = "withheld" if s.score is None else fixed(s.score)
    subset = f"{s.benchmark}/{s.subset}" if s.subset and s.subset != s.benchmark else s.benchmark
    metric = s.metric if s.source == "strict" else f"{s.metric} ({s.source})"
    return (
        subset,
        metric,
        value,
        between(own) if s.score is not None else DASH,
        str(s.n_tasks),
        trials(measures.trials_of(run)),
        floors,
        ", ".join(lost) or "0",
    )


def gains(results: Results, params: Params) -> Table | None:
    """Each trained policy against start, paired by task."""
    rows = []
    for run in (r for r in results.evals if r.policy != "start"):
        before, after = (measures.find_eval(results, p, run.benchmark) for p in ("start", run.policy))
        for metric in measures.shares_of(run):
            g = measures.gain(before, after, params.report.bootstrap, metric)
            if g is not None:
                head = (f"{run.policy} {MINUS} start", run.benchmark, metric)
                rows.append(
                    (*head, signed(g.value), between(g, "+.3f"), verdict(g), str(g.n_tasks), trials(g.trials))
                )
    columns = (
        "comparison",
        "benchmark",
        "metric",
        "difference",
        "95 % interval",
        "reading",
        "tasks",
        "trials",
    )
    return table(columns, rows, note="Difference over the same tasks; tasks, not trials, are resampled.")


def tts(results: Results, params: Params) -> Table | None:
    rows = []
    for run in results.tts:
        e = measures.estimate(run, params.report.bootstrap)
        if e is None:
            continue
        control = measures.find_tts(results, run.mode, 0)
        g = measures.gain(control, run, params.report.bootstrap) if run.n else None
        cost = DASH
        if run.rehearsal_tokens is not None and run.samples:
            cost = count(run.rehearsal_tokens / len(run.samples))
        rows.append(
            (run.mode, str(run.n) if run.n else "0 (control)", fixed(e.value), between(e), signed(g.value) if g else DASH,
             between(g, "+.3f"), verdict(g) if g else DASH, cost, str(e.n_tasks), trials(e.trials))
        )  # fmt: skip
    columns = (
        "mode",
        "private rehearsals",
        "score",
        "95 % interval",
        "against control",
        "95 % interval",
        "reading",
        "tokens a run",
        "tasks",
        "trials",
    )
    return table(
        columns, rows, note="Tokens a run: read and written in private, on top of the committed run."
    )


FIDELITY = {
    "valid": "response keeps the contract",
    "exact": "equal to the true response",
    "key_f1": "same keys, F1",
    "error_agreement": "both refuse or both answer",
    "false_success": "answers what the world refuses",
    "false_refusal": "refuses what the world answers",
}


def fidelity(results: Results) -> Table | None:
    """Policies side by side, a line for each metric and for each way of showing records."""
    found = [f for f in results.fidelity if f.scores]
    rows = []
    for mode in measures.fidelity_modes(found):
        by_policy = [measures.fidelity_scores(f, mode) for f in found]
        for name in dict.fromkeys(k for scores in by_policy for k in scores):
            rows.append(
                (
                    mode or DASH,
                    FIDELITY.get(name, name.replace("_", " ")),
                    *(fixed(s.get(name)) for s in by_policy),
                )
            )
    note = "Shares of all calls; records shown: which true responses REHEARSE sees as examples (none: it knows the world from its weights alone)."
    return table(("records shown", "metric", *(f.policy for f in found)), rows, note=note)


def collusion(results: Results, params: Params) -> Table | None:
    rows = []
    for label, last in (("start of training", False), ("end of training", True)):
        g = measures.headline_gap(results, params, last=last)
        if g is not None:
            span = f"{g.steps[0]}{DASH}{g.steps[1]}" if g.steps[0] != g.steps[1] else str(g.steps[0])
            rows.append(
                (label, fixed(g.rehearsed), f"episodes: {g.n}, steps: {span}", fixed(g.true), signed(g.value))
            )
    note = "A gap that grows in training means that the two roles please each other, not the world."
    return table(("when", "rehearsed success", "counted over", "true success", "gap"), rows, note=note)
