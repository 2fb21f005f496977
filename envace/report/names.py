"""Which policies, arms and benchmarks the report speaks of, and what it calls them.

Flows in: parameters, `Results`. Flows out: names, and the runs behind them.
Invariant: a run that left nothing is never found.
"""

from __future__ import annotations

from envace.config import Params
from envace.report.results import EvalRun, FidelityRun, Results

START = "start"
BENCHMARKS = {
    "desk": "held-out tasks",
    "desk-unseen": "unseen combinations",
    "files": "second world",
}
ARMS = {
    "envace": "rehearsal training with the whole checklist",
    "standard_grpo": "GRPO in the true world, ACT only",
    "no_grounding": "rehearsal training without grounding items in the reward",
    "zero_reward": "the same steps with every reward zero",
    "shuffled_reward": "the same steps with rewards shuffled among episodes",
    "sft": "continued supervised training of equal time",
}


def benchmark_label(name: str) -> str:
    """`desk-unseen (unseen combinations)`."""
    return f"{name} ({BENCHMARKS[name]})" if name in BENCHMARKS else name


def arm_of(policy: str) -> str:
    """`envace-1` -> `envace`; the start policy is an arm of its own."""
    head, _, seed = policy.rpartition("-")
    return head if head and seed.isdigit() else policy


def arms(params: Params) -> list[str]:
    """The arms whose policies were evaluated, the headline's first."""
    found = dict.fromkeys(arm_of(p) for p in params.eval.policies if p != START)
    return sorted(found, key=lambda a: a != arm_of(trained_name(params)))


def trained_name(params: Params) -> str:
    """The trained policy the headline compares with `start`."""
    trained = [p for p in params.eval.policies if p != START]
    if params.tts.policy in trained:
        return params.tts.policy
    return trained[0] if trained else ""


def rehearses(params: Params, run: str) -> bool:
    """Whether the observations in training came from the policy itself."""
    return params.resolved_method(arm_of(run)).source == "rehearse"


def find_eval(results: Results, policy: str, benchmark: str) -> EvalRun | None:
    """A finished evaluation, None when it left nothing."""
    return next(
        (e for e in results.evals if e.policy == policy and e.benchmark == benchmark and e.finished), None
    )


def evals_of(results: Results, arm: str, benchmark: str) -> list[EvalRun]:
    """The finished evaluations of an arm's policies, one a seed."""
    return [e for e in results.evals if arm_of(e.policy) == arm and e.benchmark == benchmark and e.finished]


def control(results: Results) -> EvalRun | None:
    """The finished committed runs without private rehearsal."""
    return next((t for t in results.tts if not t.n and t.finished), None)


def find_fidelity(results: Results, policy: str) -> FidelityRun | None:
    return next((f for f in results.fidelity if f.policy == policy and f.scores), None)
