"""Stage `tts@<mode>-<n>`: rehearse privately n times, then commit once.

Flows in: `models/<tts.policy>/`, held-out tasks. Flows out: `results/tts/<mode>-<n>/`.
Invariant: n = 0 is the control with the same seeds; rehearsals never touch the true world.
"""

from flows._entry import Run, stage


@stage("tts", sections=("rollout", "judge", "eval", "tts"), policy=lambda params, **_: params.tts.policy)
def tts(run: Run, mode: str, n: int) -> None:
    """Test-time scaling by private rehearsal."""
    from tasks.evaluation import gate, rehearse_and_commit, write_outcome

    outcome = gate(run, rehearse_and_commit(run, mode, n))
    write_outcome(run, outcome, run.path("results/tts", f"{mode}-{n}"), ("tts", mode, str(n)))


if __name__ == "__main__":
    tts.main()
