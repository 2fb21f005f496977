"""Stage `export@<arm>-<seed>`: the last checkpoint -> a Hugging Face folder.

Flows in: the work folder of training. Flows out: `models/<arm>-<seed>/` with its card.
Invariant: the step exported is the one train.json names.
"""

from flows._entry import Run, stage


@stage("export", policy=lambda params, arm, seed: f"{arm}-{seed}")
def export(run: Run, arm: str, seed: int) -> None:
    """Export trained weights."""
    from tasks.training import export_weights, record_model

    ref = export_weights(run, arm, seed)
    record_model(run, ref)


if __name__ == "__main__":
    export.main()
