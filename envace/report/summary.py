"""The flat summary: what a run is compared by.

Flows out: `{"eval/gain": 0.12, ...}` for summary.json and MLflow. Invariant: a name has exactly one slash and
letters MLflow accepts; what could not be measured has no entry."""

from __future__ import annotations

import re

from envace.report.bench_scores import headline, is_official
from envace.report.estimates import Estimate, estimate, number
from envace.report.study import START, Study

Found = dict[str, float | None]


def summary(study: Study) -> dict[str, float]:
    """Flat metrics; `eval/gain` is the headline arm's over start on the first benchmark, all seeds pooled."""
    out: Found = {}
    _evals(out, study)
    for run in study.results.bench:
        if (s := headline(run)) is not None:
            what = "" if is_official(run.benchmark, s) else f".{s.subset}"
            out[f"bench/{run.benchmark}{what}_{run.policy}"] = s.score
    for run in study.results.tts:
        _put(out, f"tts/{run.name}", estimate(run, study.n))
        _put(out, f"tts/{run.name}_gain", study.rehearsed(run))
        out |= {f"tts/{run.name}_{k}": v for k, v in run.rehearsal.items() if run.n}
    _fidelity(out, study)
    _training(out, study)
    out["report/missing"] = float(len(study.results.missing))
    return {_name(k): v for k, raw in out.items() if (v := number(raw)) is not None}


def _evals(out: Found, study: Study) -> None:
    for run in study.results.evals:
        _put(out, f"eval/{run.benchmark}_{run.policy}", estimate(run, study.n))
    for benchmark in study.params.eval.benchmarks:
        for arm in study.arms:
            runs = study.of_arm(arm, benchmark)
            _put(out, f"eval/{benchmark}_pooled_{arm}", study.score(runs))
            _put(out, f"eval/{benchmark}_gain_{arm}", study.gain(runs, benchmark))
            if arm != study.main:
                _put(out, f"eval/{benchmark}_over_{arm}", study.over(arm, benchmark))
    _put(out, "eval/gain", study.gain(study.of_arm(study.main, study.first), study.first))


def _fidelity(out: Found, study: Study) -> None:
    """Of the method's own mode and of the gap; the headline policy's also without its name, with
    the interval."""
    for f in study.results.fidelity:
        for name, s in f.scores.items():
            head, _, tail = name.partition("/")
            if head != "gap" and (head != study.mode or "tool/" in tail):
                continue
            key = f"gap/{tail}" if head == "gap" else f"fidelity/{tail.replace('/', '.')}"
            out[f"{key}_{f.policy}"] = s.value
            if f.policy == (study.name or START):
                out |= {key: s.value, f"{key}_low": s.low, f"{key}_high": s.high}


def _training(out: Found, study: Study) -> None:
    for run in (r for r in study.results.train if r.steps):
        first, last = run.steps[0], run.steps[-1]
        own = {
            "reward_first": number(first.get("train/reward")),
            "reward_last": number(last.get("train/reward")),
            "rehearsed_success_last": number(last.get("train/rehearsed_success")),
            "steps": float(last["step"]),
            "seconds": number(run.info.get("seconds")),
            "tokens": number(run.info.get("tokens")),
        }
        for suffix in (f"_{run.name}", *([""] if run.name == study.name else [])):
            out |= {f"train/{k}{suffix}": v for k, v in own.items()}


def _put(out: Found, key: str, value: Estimate | None) -> None:
    if value is not None:
        out |= {key: value.value, f"{key}_low": value.low, f"{key}_high": value.high}


def _name(key: str) -> str:
    """A name MLflow accepts, with exactly one slash."""
    head, _, tail = key.partition("/")
    return f"{head}/{re.sub(r'[^A-Za-z0-9_.-]', '_', tail)}"
