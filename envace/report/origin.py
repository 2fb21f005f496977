"""Sections on what a run cost and where it comes from.

Invariant: nothing is estimated; what no stage wrote down is a dash."""

from __future__ import annotations

import dataclasses
import platform
from pathlib import Path

from envace.report.estimates import number
from envace.report.manifest import Manifest
from envace.report.results import EvalRun, TrainRun
from envace.report.study import Study
from envace.report.table import DASH, Section, Table, captioned, count, duration, table
from envace.track.lineage import NONE, file_hash, git_commit, git_dirty, versions

PLAIN_STAGES = ("stage_data", "policy", "export")
"""They make files, not scores: their time is noted beside them."""


@dataclasses.dataclass(frozen=True, slots=True)
class StageCost:
    stage: str
    seconds: float | None
    tokens: float | None = None
    what: str = ""


def cost(study: Study) -> Section:
    rows = [(c.stage, duration(c.seconds), count(c.tokens) if c.what else DASH, c.what) for c in costs(study)]
    note = (
        "Time: of the last run of the stage, wherever it was unchanged since. Tokens: written by the policy; "
        "in training those it learned from."
    )
    found = captioned(("Time and tokens a stage", table("stage | time | tokens | what", rows, note)))
    return Section(id="cost", title="Cost", tables=found)


def costs(study: Study) -> list[StageCost]:
    """Seconds and tokens of each stage, as the stages wrote them down."""
    results, made = study.results, []
    for stage in PLAIN_STAGES:
        own = sorted((n, s) for n, s in results.stage_seconds.items() if n.split("@")[0] == stage)
        made += [StageCost(n.replace("@", " "), seconds) for n, seconds in own]
    for run in (r for r in results.train if r.info or r.steps):
        tokens = number(run.info.get("tokens")) or _sum(run, "train/tokens")
        seconds = number(run.info.get("seconds")) or _sum(run, "seconds/step")
        steps = f"{run.steps[-1]['step']} steps" if run.steps else "no step"
        made.append(StageCost(f"train {run.name}", seconds, tokens, steps + _attempts(run)))
    for kind, runs in (("evaluate", results.evals), ("tts", results.tts)):
        for r in (r for r in runs if r.info or r.samples):
            private = count(r.rehearsal.get("tokens"))
            tail = f"; {private} tokens read and written in rehearsals" if r.rehearsal.get("tokens") else ""
            seconds = number(r.info.get("seconds"))
            made.append(
                StageCost(f"{kind} {r.name}", seconds, _run_tokens(r), f"{len(r.samples)} samples{tail}")
            )
    for f in (f for f in results.fidelity if f.info or f.scores):
        numbers = (number(f.info.get("seconds")), number(f.info.get("tokens")))
        made.append(StageCost(f"fidelity {f.policy}", *numbers, f"{len(f.calls)} calls"))
    return made


def _attempts(run: TrainRun) -> str:
    resumed, attempts = number(run.info.get("resumed_from")), number(run.info.get("attempts"))
    again = f", {attempts:.0f} attempts" if attempts and attempts > 1 else ""
    return again + (f", resumed from step {resumed:.0f}" if resumed else "")


def _sum(run: TrainRun, key: str) -> float | None:
    found = [v for s in run.steps if (v := number(s.get(key))) is not None]
    return sum(found) if found else None


def _run_tokens(run: EvalRun) -> float | None:
    """Written in the committed runs."""
    if (own := number(run.info.get("tokens"))) is not None:
        return own
    found = [v for s in run.samples if (v := number(s.metrics.get("tokens"))) is not None]
    found = found or [float(e.counters.get("tokens_act", 0)) for e in run.episodes]
    return sum(found) if found else None


def lineage(study: Study, root: Path) -> Section:
    """Code, data, weights, prompts and versions, by hash where there is one; and the method as resolved."""
    results, params = study.results, study.params
    rows = [
        ("code", _code(root)),
        ("size", params.size),
        ("seed", str(params.seed)),
        ("preset", params.method.preset),
    ]
    if results.manifest is not None:
        rows.append(("data manifest", f"sha256 {file_hash(root / 'data/staged/manifest.json')}"))
        rows += _data(results.manifest)
    for name, c in results.cards.items():
        rows.append((f"weights {name}", f"sha256 {c.hash or 'unknown'} (step {c.step}, {c.kind}, {c.uri})"))
    shown = [e for r in results.evals for e in r.episodes] + [r.shown for r in results.train if r.shown]
    rows += [("prompt set", p) for p in sorted({e.prompt_set for e in shown}) if p]
    used = {"python": platform.python_version(), **versions()}
    rows.append(("versions", ", ".join(f"{k} {v}" for k, v in used.items())))
    return Section(
        id="lineage",
        title="Lineage",
        lead="What this report was made from.",
        tables=captioned(("Origin", table("what | which", rows)), ("Method, as resolved", _method(study))),
    )


def _code(root: Path) -> str:
    commit = git_commit(root)
    state = {"true": "with uncommitted changes", "false": "clean"}.get(git_dirty(root), "state unknown")
    return "no commit known" if commit == NONE else f"{commit} ({state})"


def _data(m: Manifest) -> list[tuple[str, str]]:
    """The source, a line a staged file with its rows and hash, and one for what was left out."""
    s = m.source
    at = f" at {s.revision}" if s.revision else ""
    files = f"{len(s.files)} file{'' if len(s.files) == 1 else 's'}" if s.files else ""
    parts = [f"{s.kind} {s.uri}".strip() + at, files, f"licence {s.licence}" if s.licence else ""]
    rows = [("data source", where)] if (where := ", ".join(filter(None, parts))) else []
    made = [(name, f) for name, f in m.outputs.items() if f.rows]
    rows += [(f"data {name}", f"{f.rows} rows, sha256 {f.sha256 or 'unknown'}") for name, f in made]
    if m.counts.rejected is not None:
        read = "unknown" if m.counts.read is None else m.counts.read
        rows.append(("data rejected", f"{m.counts.rejected} of {read} rows"))
    return rows


def _method(study: Study) -> Table | None:
    """The resolved switches, one column an arm."""
    names = study.params.arms_trained
    arms = [dataclasses.asdict(study.params.resolved_method(arm)) for arm in names]
    rows = [(key, *(_switch(a[key]) for a in arms)) for key in arms[0]]
    return table(" | ".join(("switch", *names)), rows)


def _switch(value: str | float | bool | tuple[str, ...]) -> str:
    if isinstance(value, tuple):
        return ", ".join(map(str, value))
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)
