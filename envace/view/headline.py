"""The top of the report: the few numbers to look at first, and what the run does and does not show.

Flows in: `Results`, parameters. Flows out: `Tile`s and sentences.
Invariant: a number that was not measured has no tile; a gain is called one only when its interval excludes zero.
"""

from __future__ import annotations

from dataclasses import dataclass

from envace.params import Params
from envace.view import measures, paper
from envace.view.load import Results
from envace.view.table import MINUS, between, fixed, signed, verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    label: str
    value: str
    detail: str


def tiles(results: Results, params: Params) -> list[Tile]:
    """The few numbers to look at first; those that were not measured are not there."""
    n, name = params.report.bootstrap, measures.trained_name(params)
    first = params.eval.benchmarks[0]
    before, after = (measures.find_eval(results, p, first) for p in ("start", name))
    found = []
    for label, run in (("before", before), ("after", after)):
        if run is not None and (e := measures.estimate(run, n)) is not None:
            found.append(
                Tile(
                    label=f"{first} {measures.metric_of(run)}, {label}",
                    value=fixed(e.value),
                    detail=f"{run.policy} · {between(e)} · {_trials(e.trials)}",
                )
            )
    if (g := measures.gain(before, after, n)) is not None:
        found.append(
            Tile(
                label="gain, paired by task",
                value=signed(g.value),
                detail=f"{between(g, '+.3f')} · {verdict(g)} · {g.n_tasks} tasks",
            )
        )
    if (c := measures.headline_gap(results, params)) is not None:
        found.append(
            Tile(
                label="collusion gap",
                value=signed(c.value),
                detail=f"rehearsed {fixed(c.rehearsed)} {MINUS} true {fixed(c.true)}",
            )
        )
    best = [
        (g, r)
        for r in results.tts
        if r.n and (g := measures.gain(measures.find_tts(results, r.mode, 0), r, n))
    ]
    for g, r in best[:2]:
        found.append(
            Tile(
                label=f"{r.n} private rehearsals, {r.mode}",
                value=signed(g.value),
                detail=f"against none · {between(g, '+.3f')} · {verdict(g)}",
            )
        )
    return found


def _trials(n: int) -> str:
    return "single trial" if n == 1 else f"{n} trials"


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
    found = _change(results, params)
    (shows if found.startswith("A measured") else lacks).append(found)
    return shows, lacks + _limits(params)


def _chain(results: Results, params: Params) -> list[str]:
    """What ran, by what it left."""
    run = next((t for t in results.train if t.steps), None)
    if run is None:
        return []
    roles = " and ".join(r.upper() for r in params.resolved_method(run.name.rpartition("-")[0]).roles)
    parts = [f"one policy trained as {roles} for {run.steps[-1]['step']} optimizer steps by stock verl"]
    parts += ["export"] if run.name in results.cards else []
    parts += ["evaluation in the true world"] if any(r.scores for r in results.evals) else []
    parts += ["private rehearsal before committing"] if any(r.scores and r.n for r in results.tts) else []
    return [f"The real chain at work: {', '.join(parts)}."]


def _change(results: Results, params: Params) -> str:
    """One sentence on before and after; it begins with "A measured" only when the interval excludes zero."""
    first = params.eval.benchmarks[0]
    before, after = (measures.find_eval(results, p, first) for p in ("start", measures.trained_name(params)))
    g = measures.gain(before, after, params.report.bootstrap)
    if g is None:
        return "No comparison of before and after: one of the two evaluations is not there."
    said = f"{signed(g.value)} {between(g, '+.3f')} on {g.n_tasks} tasks"
    if g.decided:
        return f"A measured change after training: {said}."
    e = measures.estimate(after, params.report.bootstrap) if after else None
    if e is not None and e.value == g.value == 0.0:
        return f"No gain, and no success to gain from: neither policy finishes a task of {first}."
    return f"No proven gain: the difference {said} is compatible with none."


def _limits(params: Params) -> list[str]:
    lacks = []
    unrun = [paper.COLUMNS[b] for b in paper.COLUMNS if b not in params.eval.benchmarks]
    if unrun:
        lacks.append(
            f"No public benchmark result: {', '.join(unrun)} were not run."
            if len(unrun) == len(paper.COLUMNS)
            else f"Not run: {', '.join(unrun)}."
        )
    if params.policy.kind == "tiny":
        lacks.append(
            "Nothing about language models of useful size: the policy is a tiny network made from scratch, and its scores do not carry over."
        )
    if len(params.train.seeds) == 1:
        lacks.append(
            "No spread over training seeds: each arm was trained once; the intervals cover tasks and trials only."
        )
    if params.judge.kind == "rule":
        lacks.append("No judge model: checklist items are decided by rules.")
    return lacks
