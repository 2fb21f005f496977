"""The closing sections: reasons, cost, the paper's numbers, lineage.

Flows in: `Results`, parameters. Flows out: sections.
Invariant: a section without results says so in its lead and is never left out, so that an empty report cannot
pass for a complete one.
"""

from __future__ import annotations

from pathlib import Path

from envace.params import Params
from envace.view import ledger, paper, reasons
from envace.view.results import Results
from envace.view.section import NOTHING, Section, captioned


def stops(results: Results, params: Params) -> Section:
    stop, failure = (reasons.reasons(results, params, kind) for kind in ("stop", "failure"))
    lead = NOTHING
    if stop:
        lead = "Every episode ends for one named reason; every generation or call that goes wrong is counted under one."
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


def published(results: Results) -> Section:
    run = sorted({r.benchmark for r in results.evals if r.finished})
    found = paper.printed(run)
    if found:
        return Section(
            id="paper",
            title="The paper's numbers",
            lead="For comparison with the benchmarks that were run here.",
            tables=captioned(("Paper", found)),
        )
    lead = f"The paper reports {', '.join(paper.COLUMNS.values())}. These benchmarks were not run here, so its numbers are not shown beside ours."
    return Section(id="paper", title="The paper's numbers", lead=lead)


def lineage(results: Results, params: Params, root: Path) -> Section:
    return Section(
        id="lineage", title="Lineage", lead="What this report was made from.",
        tables=captioned(("Origin", ledger.lineage(results, params, root)), ("Method, as resolved", ledger.method(params))),
    )  # fmt: skip
