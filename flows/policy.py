"""Stage `policy`: the weights training starts from.

Flows in: `policy`, `rollout`, `desk` of params.yaml. Flows out: `models/start/` with its card.
Invariant: training never changes this stage's inputs, so "before" stays cached.
"""

from flows._entry import stage
from tasks.run import Run


@stage("policy", sections=("policy", "rollout", "desk"))
def policy(run: Run) -> None:
    """Make or fetch the start policy."""
    from tasks.artifacts import record_policy
    from tasks.models import make_start

    ref = make_start(run, run.path("models", "start"))
    record_policy(run, ref)


if __name__ == "__main__":
    policy.main()
