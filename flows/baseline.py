"""Stage `baseline@<name>`: a policy of somebody else to compare with.

Flows in: `bench.baselines.<name>`. Flows out: `models/<name>/` with a card; a hub model's gigabytes stay in
the hub's own cache, only its commit is kept here.
"""

from flows._entry import stage
from tasks.run import Run


@stage("baseline", sections=("bench",))
def baseline(run: Run, name: str) -> None:
    """Write the card of baseline NAME."""
    from tasks.artifacts import record_policy
    from tasks.baselines import write_baseline

    record_policy(run, write_baseline(run, name, run.path("models", name)))


if __name__ == "__main__":
    baseline.main()
