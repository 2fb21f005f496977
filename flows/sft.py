"""Stage `sft@<seed>`: the start policy, trained on with expert texts for about as long as rehearsal training
takes.

Flows in: `models/start/`, `sft` of params.yaml. Flows out: `models/sft-<seed>/` with its card.
Invariant: it sees only tasks of the split "warm", as the start policy did; nothing is rehearsed or rewarded.
"""

from flows._entry import stage
from tasks.run import Run


@stage("sft", sections=("policy", "sft", "rollout", "desk"), policy=lambda params, seed: "start")
def sft(run: Run, seed: int) -> None:
    """Go on with supervised training, with one seed."""
    from tasks.artifacts import record_policy
    from tasks.models import make_supervised

    ref = make_supervised(run, seed, run.path("models", f"sft-{seed}"))
    record_policy(run, ref)


if __name__ == "__main__":
    sft.main()
