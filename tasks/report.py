"""The report and what MLflow keeps of it.

Flows in: the outputs of every stage. Flows out: `report/`.
Invariant: the pages are written by `envace.report`; here they are only stored and registered."""

from __future__ import annotations

import json

from prefect import task
from prefect.cache_policies import NO_CACHE

from envace.io.files import unwritable
from envace.report.report import build
from envace.worlds import registry as worlds
from tasks.run import Run


@task(cache_policy=NO_CACHE)
def build_report(run: Run) -> dict[str, float]:
    """Write report/index.html, report.md and summary.json; returns the summary."""
    worlds.load(run.params.rollout.worlds)  # staged rows may name the user's own kinds
    with unwritable(run.path("report")):
        return build(run.root, run.params, stage_seconds(run))


def stage_seconds(run: Run) -> dict[str, float]:
    """What the last run of each stage took on this machine."""
    return {p.stem: float(json.loads(p.read_text())["seconds"]) for p in (run.state / "costs").glob("*.json")}


@task(cache_policy=NO_CACHE)
def record_report(run: Run, summary: dict[str, float]) -> None:
    """The summary on the stage's run; the parent gets it when the pipeline ends."""
    run.metrics(summary)
    run.say(f"report/index.html written, {len(summary)} summary numbers")
