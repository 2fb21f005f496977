"""The closing sections: reasons, cost, lineage.

Flows in: `Results`, parameters. Flows out: sections.
Invariant: a section without results says so in its lead and is never left out, so that an empty report cannot
pass for a complete one.
"""

from __future__ import annotations

from pathlib import Path

from envace.config import Params
from envace.report import ledger, reasons
from envace.report.results import Results
from envace.report.section import NOTHING, Section, captioned


def stops(results: Results, params: Params) -> Section:
    stop, failure = (reasons.reasons(results, params, kind) for kind in ("stop", "failure"))
    lead = NOTHING
    if stop:
        lead = (
            "Every episode ends for one named reason; every generation or call that goes wrong is counted "
            "under one."
        )
    return Section(
        id="reasons",
        title="Stop and failure reasons",
        lead=lead,
        tables=captioned(("Why episodes ended", stop), ("What went wrong inside them", failure)),
    )


def cost(results: Results) -> Section:
    found = ledger.cost(results)
    return Section(
        id="cost",
        title="Cost",
        lead="" if found else NOTHING,
        tables=captioned(("Time and tokens a stage", found)),
    )


def lineage(results: Results, params: Params, root: Path) -> Section:
    return Section(
        id="lineage",
        title="Lineage",
        lead="What this report was made from.",
        tables=captioned(
            ("Origin", ledger.lineage(results, params, root)), ("Method, as resolved", ledger.method(params))
        ),
    )
