"""Stage `tts@<point>`: rehearse privately, then commit once. A point is `<mode>-<n>`, `plain-0` the control.

Flows in: `models/<tts.policy>/`, held-out tasks. Flows out: `results/tts/<point>/`.
Invariant: all points commit with the same seeds; rehearsals never touch the true world.
"""

from flows._entry import stage
from tasks.run import Run


@stage("tts", sections=("rollout", "judge", "eval", "tts"), policy=lambda params, **_: params.tts.policy)
def tts(run: Run, point: str) -> None:
    """Test-time scaling by private rehearsal."""
    from tasks.evaluation import gate, write_outcome
    from tasks.rehearsal import rehearse_and_commit
    from tasks.rows import note_rows

    note_rows(run, "held")
    outcome = gate(run, rehearse_and_commit(run, point))
    write_outcome(run, outcome, run.path("results/tts", point), ("tts", point))


if __name__ == "__main__":
    tts.main()
