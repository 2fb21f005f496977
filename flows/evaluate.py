"""Stage `evaluate@<policy>-<benchmark>`: committed executions, scored.

Flows in: `models/<policy>/`, held-out tasks. Flows out: `results/evaluate/<policy>-<benchmark>/`.
Invariant: fails rather than publish a score from an incomplete run.
"""

from flows._entry import stage
from tasks.run import Run


@stage("evaluate", sections=("rollout", "judge", "eval"), policy=lambda params, policy, benchmark: policy)
def evaluate(run: Run, policy: str, benchmark: str) -> None:
    """Score one policy on one benchmark."""
    from tasks.evaluation import SPLITS, gate, play_benchmark, write_outcome
    from tasks.rows import note_rows

    note_rows(run, *(split for name, split in SPLITS.items() if name == benchmark))
    outcome = gate(run, play_benchmark(run, policy, benchmark))
    write_outcome(
        run, outcome, run.path("results/evaluate", f"{policy}-{benchmark}"), ("evaluate", policy, benchmark)
    )


if __name__ == "__main__":
    evaluate.main()
