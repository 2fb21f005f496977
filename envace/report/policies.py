"""What a reader must know of the policy before a score of an upstream benchmark means anything.

Flows in: parameters. Flows out: a sentence, or none.
Invariant: it is said of every policy that this project makes itself at laptop size, and of no other.
"""

from __future__ import annotations

from envace.config import Params

OWN_KINDS = ("bundled", "tiny")  # policy.kind of weights made here, from nothing


def small_policy_note(params: Params, policies: tuple[str, ...] = ()) -> str:
    """For scores of the desk's own tiny policy; `policies`: whose scores are shown, where baselines may be
    among them."""
    if params.policy.kind not in OWN_KINDS:
        return ""
    if policies and all(name in params.bench.baselines for name in policies):
        return ""
    return (
        "The policy made here (policy.kind "
        f"{params.policy.kind}) has under a million parameters, about a thousand tokens of context, and was "
        "taught the "
        "desk's dialogues only: scores near zero are expected of it on benchmarks made by others. They show "
        "that the "
        "evaluation runs end to end, not what the method reaches."
    )
