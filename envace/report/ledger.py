"""Tables of what a run cost and where it comes from.

Flows in: `Results`, parameters, the project's folder. Flows out: `Table`s.
Invariant: nothing is estimated; what no stage wrote down is a dash.
"""

from __future__ import annotations

import dataclasses
import platform
from pathlib import Path

from envace.config import Params
from envace.report.reader import number
from envace.report.results import EvalRun, Results, Staged, TrainRun
from envace.report.table import Table, count, duration, table

PLAIN_STAGES = (
    "stage_data",
    "policy",
    "export",
)  # they make files, not scores: their time is noted beside them


def _stage_order(entry: tuple[str, float]) -> tuple[int, str]:
    return PLAIN_STAGES.index(entry[0].split("@")[0]), entry[0]


def cost(results: Results) -> Table | None:
    """Seconds and tokens of each stage, as the stages wrote them down."""
    plain = [(n, s) for n, s in results.stage_seconds.items() if n.split("@")[0] in PLAIN_STAGES]
    rows = [(n.replace("@", " "), duration(s), "–", "") for n, s in sorted(plain, key=_stage_order)]
    for run in results.train:
        if run.info or run.steps:
            tokens = number(run.info.get("tokens")) or _sum(run, "train/tokens")
            seconds = number(run.info.get("seconds")) or _sum(run, "seconds/step")
            what = f"{run.steps[-1]['step']} steps" if run.steps else ""
            rows.append((f"train {run.name}", duration(seconds), count(tokens), what + _attempts(run)))
    for kind, runs in (("evaluate", results.evals), ("tts", results.tts)):
        rows += [
            (
                f"{kind} {r.name}",
                duration(number(r.info.get("seconds"))),
                count(_run_tokens(r)),
                f"{len(r.samples)} samples" + _private(r),
            )
            for r in runs
            if r.info or r.samples
        ]
    for f in results.fidelity:
        if f.info or f.scores:
            rows.append(
                (
                    f"fidelity {f.policy}",
                    duration(number(f.info.get("seconds"))),
                    count(number(f.info.get("tokens"))),
                    f"{len(f.calls)} calls",
                )
            )
    return table(
        ("stage", "time", "tokens", "what"),
        rows,
        note=(
            "Time: of the last run of the stage, wherever it was unchanged since. Tokens: written by the "
            "policy; in training those it learned from."
        ),
    )


def _private(run: EvalRun) -> str:
    return (
        f"; {count(run.rehearsal['tokens'])} tokens read and written in rehearsals"
        if run.rehearsal.get("tokens")
        else ""
    )


def _attempts(run: TrainRun) -> str:
    resumed, attempts = number(run.info.get("resumed_from")), number(run.info.get("attempts"))
    parts = [f"{attempts:.0f} attempts"] if attempts and attempts > 1 else []
    parts += [f"resumed from step {resumed:.0f}"] if resumed else []
    return "".join(f", {p}" for p in parts)


def _sum(run: TrainRun, key: str) -> float | None:
    found = [v for s in run.steps if (v := number(s.get(key))) is not None]
    return sum(found) if found else None


def _run_tokens(run: EvalRun) -> float | None:
    """Written in the committed runs."""
    if (own := number(run.info.get("tokens"))) is not None:
        return own
    found = [v for s in run.samples if (v := number(s.metrics.get("tokens"))) is not None]
    if not found:
        found = [float(e.counters.get("tokens_act", 0)) for e in run.episodes]
    return sum(found) if found else None


def lineage(results: Results, params: Params, root: Path) -> Table | None:
    """Code, data, weights, prompts and versions, by hash where there is one."""
    from envace.track.lineage import file_hash, versions

    rows = [
        ("code", _code(root)),
        ("size", params.size),
        ("seed", str(params.seed)),
        ("preset", params.method.preset),
    ]
    if results.manifest:
        rows.append(("data manifest", f"sha256 {file_hash(root / 'data/staged/manifest.json')}"))
    rows += _data(results.staged)
    for name, c in results.cards.items():
        rows.append((f"weights {name}", f"sha256 {c.hash or 'unknown'} (step {c.step}, {c.kind}, {c.uri})"))
    shown = [e for r in results.evals for e in r.episodes] + [r.shown for r in results.train if r.shown]
    rows += [("prompt set", p) for p in sorted({e.prompt_set for e in shown}) if p]
    rows.append(
        (
            "versions",
            ", ".join(f"{k} {v}" for k, v in {"python": platform.python_version(), **versions()}.items()),
        )
    )
    return table(("what", "which"), rows)


def _code(root: Path) -> str:
    from envace.track.lineage import NONE, git_commit, git_dirty

    commit = git_commit(root)
    state = {"true": "with uncommitted changes", "false": "clean"}.get(git_dirty(root), "state unknown")
    return "no commit known" if commit == NONE else f"{commit} ({state})"


def _data(s: Staged | None) -> list[tuple[str, str]]:
    """The source, a line a staged file with its rows and hash, and one for what was left out."""
    if s is None:
        return []
    rows = [("data source", where)] if (where := _source(s)) else []
    rows += [
        (f"data {f.name}", f"{f.rows} rows, sha256 {f.sha256 or 'unknown'}") for f in s.outputs if f.rows
    ]
    if "rejected" in s.totals:
        rows.append(("data rejected", f"{s.totals['rejected']} of {s.totals.get('read', 'unknown')} rows"))
    return rows


def _source(s: Staged) -> str:
    """`hub owner/name at 1a2b, 3 files, licence cc-by-4.0`."""
    at = f" at {s.revision}" if s.revision else ""
    parts = [
        f"{s.kind} {s.uri}".strip() + at,
        f"{len(s.files)} file{'' if len(s.files) == 1 else 's'}" if s.files else "",
        f"licence {s.licence}" if s.licence else "",
    ]
    return ", ".join(p for p in parts if p)


def method(params: Params) -> Table | None:
    """The resolved switches, one column an arm."""
    arms = [dataclasses.asdict(params.resolved_method(arm)) for arm in params.arms_trained]
    rows = [(key, *(_switch(a[key]) for a in arms)) for key in arms[0]]
    return table(("switch", *params.arms_trained), rows)


def _switch(value: object) -> str:
    if isinstance(value, tuple):
        return ", ".join(map(str, value))
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)
