"""The numbers of the report: values by task, intervals, gains, the collusion gap, and the flat summary.

Flows in: `Results`. Flows out: small records, and `{"eval/gain": 0.12, ...}` for the parent run in MLflow.
Invariant: a missing or unscored sample is left out and counted, an agent's failure counts 0; a comparison uses
only tasks that both sides have scored.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from envace.params import Params
from envace.types import Answer, SampleStatus, ScoreRecord, StopReason, Task
from envace.view.load import EpisodeNote, EvalRun, FidelityRun, Results, TrainRun, number

SEED = 0  # of the bootstrap: the same files give the same report


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A mean or a difference with its 95 % interval, bootstrapped over tasks."""

    value: float
    low: float | None = None
    high: float | None = None
    n_tasks: int = 0
    trials: int = 0

    @property
    def decided(self) -> bool:
        """The interval excludes zero."""
        return self.low is not None and self.high is not None and (self.low > 0 or self.high < 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """Success in the rehearsed world beside success in the true one."""

    rehearsed: float
    true: float
    n: int  # rehearsed episodes counted
    steps: tuple[int, int]  # optimizer steps they come from, both ends

    @property
    def value(self) -> float:
        return self.rehearsed - self.true


# --- one evaluation -----------------------------------------------------------------------------------------


def metric_of(run: EvalRun) -> str:
    """The headline metric: success where it is measured, else the first one reported."""
    names = [s.metric for s in run.scores] + [k for s in run.samples[:1] for k in s.metrics]
    if "success" in names:
        return "success"
    return names[0] if names else "reward"


def shares_of(run: EvalRun) -> list[str]:
    """The metrics from 0 to 1, the headline first; counts and seconds have no better or worse."""
    head = metric_of(run)
    return [head] + sorted({s.metric for s in run.scores if s.scale == "0-1"} - {head})


def values_by_task(run: EvalRun, metric: str) -> dict[str, list[float]]:
    """Task -> one value a scored trial (strict: a failure of the agent is 0)."""
    values: dict[str, list[float]] = {}
    for s in run.samples:
        if s.status == SampleStatus.SCORED:
            value = number(
                s.metrics.get(metric) if s.metrics else s.reward
            )  # some harnesses give a reward only
        else:
            value = 0.0 if s.status == SampleStatus.AGENT_FAILURE else None
        if value is not None:
            values.setdefault(s.task, []).append(value)
    return values


def trials_of(run: EvalRun) -> int:
    """Trials a task, as far as seen."""
    if run.samples:
        return len({s.trial for s in run.samples})
    return max([0, *(s.n_trials for s in run.scores)])


def record_of(run: EvalRun, metric: str) -> ScoreRecord | None:
    found = [s for s in run.scores if s.metric == metric]
    return next((s for s in found if s.source == "strict"), found[0] if found else None)


def estimate(run: EvalRun, n: int, metric: str = "") -> Estimate | None:
    """One metric (default: the headline) of one evaluation: as its stage published it, else from its samples.

    None when there is neither, or when the stage withheld the score because samples are missing.
    """
    metric = metric or metric_of(run)
    record, values = record_of(run, metric), values_by_task(run, metric)
    if record is not None and record.score is None:
        return None
    if record is not None and (record.low is not None or not values):
        return Estimate(
            value=record.score,
            low=record.low,
            high=record.high,
            n_tasks=record.n_tasks,
            trials=trials_of(run),
        )
    if not values:
        return None
    from envace.bench.stats import cluster_bootstrap

    mean, low, high = cluster_bootstrap(values, n, SEED)
    return Estimate(value=mean, low=low, high=high, n_tasks=len(values), trials=trials_of(run))


def gain(before: EvalRun | None, after: EvalRun | None, n: int, metric: str = "") -> Estimate | None:
    """after - before over the tasks both scored; without samples the plain difference, without interval.

    None when either side is absent or its score was withheld.
    """
    if before is None or after is None:
        return None
    metric = metric or metric_of(after)
    x, y = estimate(after, n, metric), estimate(before, n, metric)
    if x is None or y is None:
        return None
    a, b = values_by_task(after, metric), values_by_task(before, metric)
    both = sorted(a.keys() & b.keys())
    if not both:
        return Estimate(
            value=x.value - y.value, n_tasks=min(x.n_tasks, y.n_tasks), trials=min(x.trials, y.trials)
        )
    from envace.bench.stats import paired_bootstrap

    diff, low, high = paired_bootstrap({t: a[t] for t in both}, {t: b[t] for t in both}, n, SEED)
    return Estimate(
        value=diff, low=low, high=high, n_tasks=len(both), trials=min(trials_of(before), trials_of(after))
    )


# --- rehearsed success and the gap --------------------------------------------------------------------------


def rehearsed_success(note: EpisodeNote, task: Task | None) -> bool:
    """Every required item of every turn met, as for a true success; without the task: every item, to the end."""
    if task is None:
        return (
            note.stop == StopReason.DONE
            and bool(note.answers)
            and all(a == Answer.YES for a in note.answers.values())
        )
    items = [(turn, i) for turn, checklist in enumerate(task.checklist) for i in checklist]
    needed = [(t, i) for t, i in items if i.required_for_next_turn] or items
    return all(note.answers.get((t, i.id)) == Answer.YES for t, i in needed)


def gap(
    run: TrainRun | None, true: EvalRun | None, tasks: dict[str, Task], n: int, *, last: bool = True
) -> Gap | None:
    """Rehearsed success of the last (or first) third of training minus true success of the policy."""
    score = estimate(true, n) if true is not None else None
    scored = [e for e in run.notes if e.reward is not None] if run else []
    if score is None or not scored:
        return None
    steps = sorted({e.step for e in scored})
    third = -(-len(steps) // 3)
    window = steps[-third:] if last else steps[:third]
    chosen = [e for e in scored if window[0] <= e.step <= window[-1]]
    rate = sum(rehearsed_success(e, tasks.get(e.task_id)) for e in chosen) / len(chosen)
    return Gap(rehearsed=rate, true=score.value, n=len(chosen), steps=(window[0], window[-1]))


# --- fidelity -----------------------------------------------------------------------------------------------


def fidelity_scores(run: FidelityRun, mode: str) -> dict[str, float]:
    """The scores over all calls when REHEARSE is shown records as `mode` says; parts by tool are left out."""
    split = [(key.split("/"), value) for key, value in run.scores.items()]
    return {parts[-1]: value for parts, value in split if parts[:-1] in ([], [mode])}


def fidelity_modes(runs: Sequence[FidelityRun]) -> list[str]:
    """The few-shot modes measured, in the order of the files."""
    return list(dict.fromkeys(key.partition("/")[0] for f in runs for key in f.scores if "/" in key)) or [""]


# --- which run is the headline ------------------------------------------------------------------------------


def trained_name(params: Params) -> str:
    """The trained policy the headline compares with `start`."""
    trained = [p for p in params.eval.policies if p != "start"]
    if params.tts.policy in trained:
        return params.tts.policy
    return trained[-1] if trained else ""


def rehearses(params: Params, run: str) -> bool:
    """Whether the observations in training came from the policy itself."""
    return params.resolved_method(run.rpartition("-")[0]).source == "rehearse"


def find_eval(results: Results, policy: str, benchmark: str) -> EvalRun | None:
    """A finished evaluation, None when it left nothing."""
    found = [e for e in results.evals if e.policy == policy and e.benchmark == benchmark]
    return found[0] if found and (found[0].scores or found[0].samples) else None


def find_tts(results: Results, mode: str, n: int) -> EvalRun | None:
    found = [t for t in results.tts if t.mode == mode and t.n == n]
    return found[0] if found and (found[0].scores or found[0].samples) else None


def headline_gap(results: Results, params: Params, *, last: bool = True) -> Gap | None:
    """Of the headline policy; None when it was not trained on rehearsed observations."""
    name = trained_name(params)
    if not name or not rehearses(params, name):
        return None
    policy = name if last else "start"
    run = next((t for t in results.train if t.name == name), None)
    return gap(run, find_eval(results, policy, "desk"), results.tasks, params.report.bootstrap, last=last)


# --- summary ------------------------------------------------------------------------------------------------


def summary(results: Results, params: Params) -> dict[str, float]:
    """Flat metrics with one slash a name; what could not be measured has no entry."""
    out: dict[str, float | None] = {}
    n, name = params.report.bootstrap, trained_name(params)
    for run in results.evals:
        _put(out, f"eval/{run.benchmark}_{run.policy}", estimate(run, n))
    for benchmark in params.eval.benchmarks:
        own = gain(find_eval(results, "start", benchmark), find_eval(results, name, benchmark), n)
        _put(out, f"eval/{benchmark}_gain", own)
        if benchmark == params.eval.benchmarks[0]:
            _put(out, "eval/gain", own)
    _tts_summary(out, results, params)
    mode = params.resolved_method().few_shot
    for f in results.fidelity:
        main = fidelity_scores(f, mode)
        out |= {f"fidelity/{metric}_{f.policy}": value for metric, value in main.items()}
        if f.policy == (name or "start"):
            out |= {f"fidelity/{metric}": value for metric, value in main.items()}
    _train_summary(out, results, name)
    for key, which in (("gap/collusion_start", False), ("gap/collusion", True)):
        if (found := headline_gap(results, params, last=which)) is not None:
            out[key] = found.value
            out[key.replace("collusion", "rehearsed_success")] = found.rehearsed
    out["report/missing"] = float(len(results.missing))
    return {_name(k): float(v) for k, v in out.items() if number(v) is not None}


def _put(out: dict[str, float | None], key: str, value: Estimate | None) -> None:
    if value is not None:
        out |= {key: value.value, f"{key}_low": value.low, f"{key}_high": value.high}


def _tts_summary(out: dict[str, float | None], results: Results, params: Params) -> None:
    for run in results.tts:
        _put(out, f"tts/{run.name}", estimate(run, params.report.bootstrap))
        if run.n:
            _put(
                out,
                f"tts/{run.name}_gain",
                gain(find_tts(results, run.mode, 0), run, params.report.bootstrap),
            )


def _train_summary(out: dict[str, float | None], results: Results, headline: str) -> None:
    for run in results.train:
        if not run.steps:
            continue
        own = {
            "reward_first": number(run.steps[0].get("train/reward")),
            "reward_last": number(run.steps[-1].get("train/reward")),
            "steps": float(run.steps[-1]["step"]),
            "seconds": number(run.info.get("seconds")),
            "tokens": number(run.info.get("tokens")),
        }
        out |= {f"train/{k}_{run.name}": v for k, v in own.items()}
        if run.name == headline:
            out |= {f"train/{k}": v for k, v in own.items()}


def _name(key: str) -> str:
    """A name MLflow accepts, with exactly one slash."""
    head, _, tail = key.partition("/")
    return f"{head}/{re.sub(r'[^A-Za-z0-9_.-]', '_', tail)}"
