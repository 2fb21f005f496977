"""Stage `stage_data`: rows of the configured source -> checked tasks, split into train and held.

Flows in: `data`, `desk` of params.yaml. Flows out: `data/staged/` with both splits, the manifest and the
rejects.
Invariant: every row of the source is in exactly one of train, held, rejects.
"""

from flows._entry import stage
from tasks.run import Run


@stage("stage_data", sections=("data", "desk"))
def stage_data(run: Run) -> None:
    """Stage the tasks that training and evaluation use."""
    from tasks.data import report_manifest, stage_rows

    manifest = stage_rows(run, run.path("data", "staged"))
    report_manifest(run, manifest)


if __name__ == "__main__":
    stage_data.main()
