"""Stage `export@<arm>-<seed>`: the last checkpoint -> a Hugging Face folder.

Flows in: the work folder of training. Flows out: `models/<arm>-<seed>/` with its card.
Invariant: the step exported is the one train.json names.
"""

from envace.config import split_run
from flows._entry import stage
from tasks.run import Run


@stage("export", policy=lambda params, training: training)
def export(run: Run, training: str) -> None:
    """Export trained weights; TRAINING is <arm>-<seed>."""
    from tasks.artifacts import record_policy
    from tasks.training import export_weights

    ref = export_weights(run, *split_run(training))
    record_policy(run, ref)


if __name__ == "__main__":
    export.main()
