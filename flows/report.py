"""Stage `report`: everything the run left behind, on one page.

Flows in: outputs of all stages. Flows out: `report/index.html`, `report.md`, `summary.json`.
Invariant: what is missing is named on the page.
"""

from flows._entry import stage
from tasks.run import Run


@stage("report", sections=("report",))
def report(run: Run) -> None:
    """Write the report."""
    from tasks.report import build_report, record_report

    record_report(run, build_report(run))


if __name__ == "__main__":
    report.main()
