"""The top of the report: the few numbers to look at first.

Flows in: `Results`, parameters. Flows out: `Tile`s.
Invariant: a number that was not measured has no tile.
"""

from __future__ import annotations

from dataclasses import dataclass

from envace.bench.fidelity.scores import Score
from envace.config import Params
from envace.report.estimates import Estimate, difference, metric_of, pooled
from envace.report.names import START, arm_of, control, evals_of, find_eval, find_fidelity, trained_name
from envace.report.results import EvalRun, Results
from envace.report.table import MINUS, between, fixed, signed, spread, verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    label: str
    value: str
    detail: str


def tiles(results: Results, params: Params) -> list[Tile]:
    """The few numbers to look at first; those that were not measured are not there."""
    first, arm = params.eval.first, arm_of(trained_name(params))
    start = find_eval(results, START, first)
    found = [
        _score(f"{first}, before", [start] if start else [], params),
        _score(f"{first}, after", evals_of(results, arm, first), params),
        *(_gain(results, params, b) for b in params.eval.benchmarks),
        _gap(results, params),
        _fidelity(results, params),
        *_scaling(results, params),
    ]
    return [t for t in found if t is not None]


def _score(label: str, runs: list[EvalRun], params: Params) -> Tile | None:
    if not runs or (e := pooled(runs, params.report.bootstrap)) is None:
        return None
    who = runs[0].policy if len(runs) == 1 else f"{arm_of(runs[0].policy)}, {len(runs)} seeds"
    head, _, tail = label.partition(", ")
    return Tile(
        label=f"{head} {metric_of(runs[0])}, {tail}",
        value=fixed(e.value),
        detail=f"{who} · {between(e)} · {_trials(e.trials)}",
    )


def _trials(n: int) -> str:
    return "single trial" if n == 1 else f"{n} trials"


def _gain(results: Results, params: Params, benchmark: str) -> Tile | None:
    start = find_eval(results, START, benchmark)
    runs = evals_of(results, arm_of(trained_name(params)), benchmark)
    g = difference([start], runs, params.report.bootstrap)
    return (
        None
        if g is None
        else Tile(label=f"{benchmark} gain, paired by task", value=signed(g.value), detail=_read(g))
    )


def _read(g: Estimate) -> str:
    return f"{between(g, '+.3f')} · {verdict(g)} · {g.n_tasks} tasks"


def _gap(results: Results, params: Params) -> Tile | None:
    f = find_fidelity(results, trained_name(params))
    if f is None or (g := f.scores.get("gap/collusion")) is None:
        return None
    r, t = f.scores["gap/rehearsed"], f.scores["gap/true"]
    e = Estimate(value=g.value, low=g.low, high=g.high)
    detail = f"{f.policy} · {between(e, '+.3f')} · rehearsed {fixed(r.value)} {MINUS} true {fixed(t.value)}"
    return Tile(label="collusion gap", value=signed(g.value), detail=detail)


def _fidelity(results: Results, params: Params) -> Tile | None:
    key = f"{params.resolved_method().few_shot}/recorded/exact"
    f = find_fidelity(results, trained_name(params))
    if f is None or (s := f.scores.get(key)) is None:
        return None
    before = find_fidelity(results, START)
    b: Score | None = before.scores.get(key) if before else None
    then = f" · before {spread(b.value, b.low, b.high)}" if b else ""
    e = Estimate(value=s.value, low=s.low, high=s.high)
    return Tile(
        label="exact on recorded calls", value=fixed(s.value), detail=f"{f.policy} · {between(e)}{then}"
    )


def _scaling(results: Results, params: Params) -> list[Tile]:
    """The largest number of private rehearsals in each mode."""
    largest: dict[str, EvalRun] = {}
    for run in sorted((r for r in results.tts if r.n), key=lambda r: r.n):
        largest[run.mode] = run
    found = []
    for mode, run in largest.items():
        if (g := difference([control(results)], [run], params.report.bootstrap)) is not None:
            detail = f"against none · {_read(g)}"
            found.append(
                Tile(label=f"{run.n} private rehearsals, {mode}", value=signed(g.value), detail=detail)
            )
    return found
