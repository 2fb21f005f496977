"""The flat summary: what a run is compared by.

Flows in: `Results`, parameters. Flows out: `{"eval/gain": 0.12, ...}` for summary.json and MLflow.
Invariant: a name has exactly one slash and letters MLflow accepts; what could not be measured has no entry.
"""

from __future__ import annotations

import re

from envace.bench.fidelity.scores import Score
from envace.config import Params
from envace.report.bench_scores import headline, is_official
from envace.report.estimates import Estimate, difference, estimate, pooled
from envace.report.names import START, arm_of, arms, control, evals_of, find_eval, trained_name
from envace.report.reader import number
from envace.report.results import Results

Found = dict[str, float | None]


def summary(results: Results, params: Params) -> dict[str, float]:
    """Flat metrics; `eval/gain` is the headline arm's over start on the first benchmark, all seeds pooled."""
    out: Found = {}
    _evals(out, results, params)
    for run in results.bench:
        if (s := headline(run)) is not None:
            what = "" if is_official(run.benchmark, s) else f".{s.subset}"
            out[f"bench/{run.benchmark}{what}_{run.policy}"] = s.score
    _tts(out, results, params)
    _fidelity(out, results, params)
    _training(out, results, trained_name(params))
    out["report/missing"] = float(len(results.missing))
    return {_name(k): float(v) for k, v in out.items() if number(v) is not None}


def _evals(out: Found, results: Results, params: Params) -> None:
    n, main = params.report.bootstrap, arm_of(trained_name(params))
    for run in results.evals:
        _put(out, f"eval/{run.benchmark}_{run.policy}", estimate(run, n))
    for benchmark in params.eval.benchmarks:
        start, own = find_eval(results, START, benchmark), evals_of(results, main, benchmark)
        for arm in arms(params):
            runs = evals_of(results, arm, benchmark)
            _put(out, f"eval/{benchmark}_pooled_{arm}", pooled(runs, n))
            _put(out, f"eval/{benchmark}_gain_{arm}", difference([start], runs, n))
            if arm != main:
                _put(out, f"eval/{benchmark}_over_{arm}", difference(runs, own, n))
    first = params.eval.first
    start, own = find_eval(results, START, first), evals_of(results, main, first)
    _put(out, "eval/gain", difference([start], own, n))


def _tts(out: Found, results: Results, params: Params) -> None:
    n = params.report.bootstrap
    for run in results.tts:
        _put(out, f"tts/{run.name}", estimate(run, n))
        if run.n:
            _put(out, f"tts/{run.name}_gain", difference([control(results)], [run], n))
            out |= {f"tts/{run.name}_{k}": v for k, v in run.rehearsal.items()}


def _fidelity(out: Found, results: Results, params: Params) -> None:
    """Of the method's own mode and of the gap; the headline policy's also without its name, with
    the interval."""
    mode, name = params.resolved_method().few_shot, trained_name(params) or START
    for f in results.fidelity:
        for key, s in f.scores.items():
            head, _, tail = key.partition("/")
            if head == "gap":
                _score(out, f"gap/{tail}", f.policy, name, s)
            elif head == mode and "tool/" not in tail:
                _score(out, f"fidelity/{tail.replace('/', '.')}", f.policy, name, s)


def _score(out: Found, key: str, policy: str, headline: str, s: Score) -> None:
    out[f"{key}_{policy}"] = s.value
    if policy == headline:
        out |= {key: s.value, f"{key}_low": s.low, f"{key}_high": s.high}


def _training(out: Found, results: Results, headline: str) -> None:
    for run in results.train:
        if not run.steps:
            continue
        own = {
            "reward_first": number(run.steps[0].get("train/reward")),
            "reward_last": number(run.steps[-1].get("train/reward")),
            "rehearsed_success_last": number(run.steps[-1].get("train/rehearsed_success")),
            "steps": float(run.steps[-1]["step"]),
            "seconds": number(run.info.get("seconds")),
            "tokens": number(run.info.get("tokens")),
        }
        out |= {f"train/{k}_{run.name}": v for k, v in own.items()}
        if run.name == headline:
            out |= {f"train/{k}": v for k, v in own.items()}


def _put(out: Found, key: str, value: Estimate | None) -> None:
    if value is not None:
        out |= {key: value.value, f"{key}_low": value.low, f"{key}_high": value.high}


def _name(key: str) -> str:
    """A name MLflow accepts, with exactly one slash."""
    head, _, tail = key.partition("/")
    return f"{head}/{re.sub(r'[^A-Za-z0-9_.-]', '_', tail)}"
