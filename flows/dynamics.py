"""Stage `dynamics@<arm>-<seed>-<step>-<benchmark>`: a point on the curve of training.

Flows in: the weights that training kept of a step (step 0: `models/start`), a benchmark of `evaluate` or of
`bench`.
Flows out: `results/dynamics/<arm>-<seed>-<step>-<benchmark>/`.
Invariant: a step whose weights were not kept fails with one sentence that names the parameters to set.
"""

from flows._entry import stage
from tasks.run import Run


@stage(
    "dynamics",
    sections=("dynamics", "rollout", "judge", "eval", "bench"),
    policy=lambda params, training, step, benchmark: "" if step else "start",
)
def dynamics(run: Run, training: str, step: int, benchmark: str) -> None:
    """Score TRAINING (<arm>-<seed>) after STEP updates on BENCHMARK."""
    from tasks.dynamics import evaluate_step, write_point

    write_point(run, evaluate_step(run, training, step, benchmark), training, step, benchmark)


if __name__ == "__main__":
    dynamics.main()
