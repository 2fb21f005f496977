"""Stage `train@<arm>-<seed>`: world rehearsal with role-wise GRPO, by stock verl in a subprocess.

Flows in: staged tasks, start weights, parameters. Flows out: `runs/train/<arm>-<seed>/`; checkpoints stay in
`.state/train/<key>/`, where the next attempt finds them.
Invariant: succeeds only when exactly `train.steps` steps are done; called again then, it returns at once.
"""

from envace.config import split_run
from flows._entry import stage
from tasks.run import Run


@stage(
    "train", sections=("method", "train", "rollout", "judge", "engine"), policy=lambda params, **_: "start"
)
def train(run: Run, training: str) -> None:
    """Train one arm with one seed; TRAINING is <arm>-<seed>."""
    from tasks.rows import note_rows
    from tasks.training import run_training, write_training

    note_rows(run, "train")
    arm, seed = split_run(training)
    result = run_training(run, arm, seed)
    write_training(run, arm, seed, result)


if __name__ == "__main__":
    train.main()
