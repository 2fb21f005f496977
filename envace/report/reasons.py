"""Tables of reasons: why episodes ended, and what went wrong inside them.

Flows in: `Results`. Flows out: `Table`s, a column for each training run of the headline arm
and for its evaluation before and after.
Invariant: a reason that occurred is shown, one nobody knows too; each known one has its sentence.
"""

from __future__ import annotations

from collections import Counter

from envace.config import Params
from envace.report.names import START, arm_of, trained_name
from envace.report.reader import number
from envace.report.results import EvalRun, Results, TrainRun
from envace.report.table import Table, table
from envace.types import FailureReason, StopReason

MEANING = {
    StopReason.DONE: "the last user turn was answered",
    StopReason.REQUIRED_ITEM: "an item the next turn builds on was not met",
    StopReason.JUDGE_FAILED: "no verdict could be had; unscored",
    StopReason.STEP_BUDGET: "as many ACT generations as allowed",
    StopReason.CALL_BUDGET: "as many tool calls as allowed",
    StopReason.CONTEXT_BUDGET: "no room for another generation",
    StopReason.ERROR_BUDGET: "more failed calls than allowed",
    StopReason.TOOL_ERROR: "a failed call ends the episode",
    StopReason.DEADLINE: "longer than the wall clock allows",
    StopReason.CANCELLED: "the run stopped meanwhile",
    StopReason.POLICY_FAILED: "the policy raised; unscored",
    StopReason.SOURCE_FAILED: "whoever answers calls raised; unscored",
    FailureReason.EMPTY_OUTPUT: "no visible text",
    FailureReason.TRUNCATED: "the token budget ran out",
    FailureReason.NO_CALL_FOUND: "a call tag without a readable block",
    FailureReason.BAD_JSON: "the call is not JSON",
    FailureReason.NO_ARGUMENTS: "arguments missing or no object",
    FailureReason.NO_NAME: "no tool named",
    FailureReason.UNKNOWN_TOOL: "a tool the task does not offer",
    FailureReason.SCHEMA_VIOLATION: "arguments break the tool's schema",
    FailureReason.TOO_MANY_CALLS: "more parallel calls than allowed",
    FailureReason.NO_RESULT_TAG: "REHEARSE wrote no result block",
    FailureReason.RESULT_TAG_MALFORMED: "REHEARSE's result block is open or doubled",
    FailureReason.RESULT_BAD_JSON: "REHEARSE's result is not JSON",
    FailureReason.RESULT_BAD_TYPE: "REHEARSE's result is no object or list",
    FailureReason.PROMPT_TOO_LONG: "the prompt does not fit",
    FailureReason.NO_RECORD: "no recorded result for the call",
}


def reasons(results: Results, params: Params, kind: str) -> Table | None:
    """`kind` stop or failure: how often, in the headline arm's training and in its evaluation before and
    after."""
    columns: list[tuple[str, Counter[str]]] = []
    name, first = trained_name(params), params.eval.first
    for run in results.train:
        if run.steps and arm_of(run.name) == arm_of(name or run.name):
            columns.append((f"training {run.name}", _train_reasons(run, kind)))
    for run in (r for r in results.evals if r.policy in (START, name) and r.benchmark == first):
        if run.episodes or (run.samples and kind == "stop"):
            columns.append((f"{run.benchmark} {run.policy}", _eval_reasons(run, kind)))
    enum = StopReason if kind == "stop" else FailureReason
    seen = {name for _, c in columns for name, n in c.items() if n}
    known = [r for r in enum if r.value in seen]
    rows = [(r.value, MEANING[r], *(str(c[r.value]) for _, c in columns)) for r in known]
    rows += [
        (name, "", *(str(c[name]) for _, c in columns)) for name in sorted(seen - {r.value for r in enum})
    ]
    if rows and kind == "stop":
        rows.append(("all", "", *(str(sum(c.values())) for _, c in columns)))
    return table((f"{kind} reason", "meaning", *(name for name, _ in columns)), rows)


def _train_reasons(run: TrainRun, kind: str) -> Counter[str]:
    found: Counter[str] = Counter()
    for step in run.steps:
        for key, value in step.items():
            if key.startswith(f"{kind}/") and number(value):
                found[key.partition("/")[2]] += int(value)
    return found


def _eval_reasons(run: EvalRun, kind: str) -> Counter[str]:
    if kind == "stop":
        return Counter(s.stop for s in run.samples if s.stop) or Counter(e.stop.value for e in run.episodes)
    found: Counter[str] = Counter()
    for episode in run.episodes:
        found.update(
            {k.partition("/")[2]: n for k, n in episode.counters.items() if k.startswith("failure/")}
        )
    return found
