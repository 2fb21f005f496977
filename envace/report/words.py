"""Plain words: what the run shows, what it does not, and which differences are inside noise.

Flows in: `Results`, parameters. Flows out: sentences. Invariant: a difference is called one only when its
interval excludes zero; everything that was compared and is not decided is named as such."""

from __future__ import annotations

from envace.config import Params
from envace.report import paper
from envace.report.estimates import Estimate, call_values, difference, floors_of, paired, pool, pooled
from envace.report.names import (
    START,
    arm_of,
    arms,
    benchmark_label,
    control,
    evals_of,
    find_eval,
    find_fidelity,
    trained_name,
)
from envace.report.results import Results
from envace.report.table import between, signed

Claim = tuple[str, Estimate]  # what was compared, after - before


def honest(results: Results, params: Params) -> tuple[list[str], list[str]]:
    """What this run shows, and what it does not."""
    shows, lacks = _chain(results, params), []
    if params.data.source == "desk":
        if any(r.scores for r in results.evals):
            shows.append(
                "The method on a small customer-service world that can be executed: "
                "scores are checked against its true state, not against a model's opinion."
            )
        lacks.append(
            "Nothing about real tools, real users or long dialogues: the desk is a small embedded world."
        )
    made = claims(results, params)
    shows += [f"Outside noise: {_said(what, e)}." for what, e in made if e.decided]
    if not any(what.startswith("success after") for what, _ in made):
        lacks.append("No comparison of before and after: one of the two evaluations is not there.")
    lacks += [f"Inside noise: {_said(what, e)}." for what, e in made if not e.decided]
    return shows, lacks + _nothing_to_gain(results, params) + _limits(results, params)


def _said(what: str, e: Estimate) -> str:
    return f"{what}, {signed(e.value)} {between(e, '+.3f')} on {e.n_tasks} tasks"


def claims(results: Results, params: Params) -> list[Claim]:
    """Every comparison the report stands for."""
    return [
        *_success(results, params),
        *_controls(results, params),
        *_rehearsals(results, params),
        *_scaling(results, params),
    ]


def _success(results: Results, params: Params) -> list[Claim]:
    n, arm, found = params.report.bootstrap, arm_of(trained_name(params)), []
    for benchmark in params.eval.benchmarks:
        start, runs = find_eval(results, START, benchmark), evals_of(results, arm, benchmark)
        if (g := difference([start], runs, n)) is not None:
            found.append((f"success after training against before, {benchmark_label(benchmark)}", g))
        blind = floors_of(runs[0]).get("blind") if runs else None
        if blind is not None and (e := pooled(runs, n)) is not None:
            found.append((f"success above the blind ceiling, {benchmark_label(benchmark)}", e.minus(blind)))
    return found


def _controls(results: Results, params: Params) -> list[Claim]:
    n, main, first = params.report.bootstrap, arm_of(trained_name(params)), params.eval.first
    own, found = evals_of(results, main, first), []
    for arm in arms(params):
        over = difference(evals_of(results, arm, first), own, n) if arm != main else None
        if over is not None:
            found.append((f"{main} against {arm}", over))
    return found


def _rehearsals(results: Results, params: Params) -> list[Claim]:
    n, mode, name, found = (
        params.report.bootstrap,
        params.resolved_method().few_shot,
        trained_name(params),
        [],
    )
    start = find_fidelity(results, START)
    runs = [f for f in results.fidelity if arm_of(f.policy) == arm_of(name)]
    if start is not None and runs:
        sides = [
            pool([call_values(f, mode, "exact", recorded=True) for f in group]) for group in (runs, [start])
        ]
        if (e := paired(*sides, n)) is not None:
            found.append(("exact fidelity on recorded calls, after against before", e))
    for f in (find_fidelity(results, p) for p in (START, name)):
        if f is not None and (g := f.scores.get("gap/collusion")) is not None:
            e = Estimate(value=g.value, low=g.low, high=g.high, n_tasks=g.tasks)
            found.append((f"collusion gap of {f.policy}, rehearsed against true success", e))
    return found


def _scaling(results: Results, params: Params) -> list[Claim]:
    found = []
    for run in (r for r in results.tts if r.n):
        if (g := difference([control(results)], [run], params.report.bootstrap)) is not None:
            found.append((f"{run.n} private rehearsals ({run.mode}) against none", g))
    return found


def _chain(results: Results, params: Params) -> list[str]:
    """What ran, by what it left."""
    runs = [t for t in results.train if t.steps]
    run = next((t for t in runs if t.name == trained_name(params)), runs[0] if runs else None)
    if run is None:
        return []
    roles = " and ".join(r.upper() for r in params.resolved_method(arm_of(run.name)).roles)
    parts = [f"one policy trained as {roles} for {run.steps[-1]['step']} optimizer steps by stock verl"]
    parts += ["export"] if run.name in results.cards else []
    parts += ["evaluation in the true world"] if any(r.scores for r in results.evals) else []
    parts += ["private rehearsal before committing"] if any(r.scores and r.n for r in results.tts) else []
    return [f"The real chain at work: {', '.join(parts)}."]


def _nothing_to_gain(results: Results, params: Params) -> list[str]:
    first = params.eval.first
    start, runs = find_eval(results, START, first), evals_of(results, arm_of(trained_name(params)), first)
    both = [pooled(side, params.report.bootstrap) for side in ([start] if start else [], runs) if side]
    if len(both) == 2 and all(e is not None and e.value == 0 for e in both):
        return [f"No success to gain from: neither policy finishes a task of {first}."]
    return []


def _limits(results: Results, params: Params) -> list[str]:
    lacks = []
    ran = {r.benchmark for r in results.bench if r.finished}
    unrun = [title for b, title in paper.COLUMNS.items() if b not in ran]
    if unrun:
        lacks.append(
            f"No public benchmark result: {', '.join(unrun)} were not run."
            if len(unrun) == len(paper.COLUMNS)
            else f"Not run: {', '.join(unrun)}."
        )
    if params.policy.kind in ("bundled", "tiny"):
        lacks.append(
            "Nothing about language models of useful size: the policy is a tiny network made from scratch, "
            "and its scores do not carry over."
        )
    seeds = len({p for p in params.eval.policies if arm_of(p) == arm_of(trained_name(params))})
    if seeds < 2:
        lacks.append(
            "No spread over training seeds: one seed was evaluated; the intervals cover tasks and trials "
            "only."
        )
    else:
        lacks.append(
            f"{seeds} seeds are few: intervals cover tasks and trials, the table of seeds shows how far they "
            "differ."
        )
    if params.judge.kind == "rule":
        lacks.append("No judge model: checklist items are decided by rules.")
    return lacks
