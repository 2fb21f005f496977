"""Stage `fidelity@<policy>`: rehearsed responses and whole rehearsals held against the true world.

Flows in: `models/<policy>/`, held-out tasks with their true responses. Flows out:
`results/fidelity/<policy>/`.
Invariant: the true response is never part of a prompt.
"""

from flows._entry import stage
from tasks.run import Run


@stage("fidelity", sections=("rollout", "judge", "eval", "fidelity"), policy=lambda params, policy: policy)
def fidelity(run: Run, policy: str) -> None:
    """Measure how true a policy's rehearsals are, and the collusion gap."""
    from tasks.fidelity import measure_fidelity
    from tasks.rows import note_rows

    note_rows(run, "held")
    measure_fidelity(run, policy)


if __name__ == "__main__":
    fidelity.main()
