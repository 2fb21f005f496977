"""The results with the questions that every section asks of them: which policies, arms and benchmarks, and
what one has over another.

Invariant: a run that left nothing is never found; arms are pooled over their seeds and paired by task."""

from __future__ import annotations

from dataclasses import dataclass

from envace.config import Params
from envace.report.estimates import Estimate, difference, measured, pooled
from envace.report.results import EvalRun, FidelityRun, Results, TrainRun

START = "start"
BENCHMARKS = {
    "desk": "held-out tasks",
    "desk-validation": "validation tasks",
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
SMALL_POLICY = (
    "The policy made here (policy.kind {kind}) has under a million parameters, about a thousand tokens of "
    "context, and was taught the desk's dialogues only: scores near zero are expected of it on benchmarks "
    "made by others. They show that the evaluation runs end to end, not what the method reaches."
)


def benchmark_label(name: str) -> str:
    """`desk-unseen (unseen combinations)`."""
    return f"{name} ({BENCHMARKS[name]})" if name in BENCHMARKS else name


def arm_of(policy: str) -> str:
    """`envace-1` -> `envace`; the start policy is an arm of its own."""
    head, _, seed = policy.rpartition("-")
    return head if head and seed.isdigit() else policy


def trained_name(params: Params) -> str:
    """The trained policy the headline compares with `start`."""
    trained = [p for p in params.eval.policies if p != START]
    return params.tts.policy if params.tts.policy in trained else (trained or [""])[0]


@dataclass(frozen=True, slots=True)
class Study:
    results: Results
    params: Params

    @property
    def n(self) -> int:
        """Resamples of the bootstrap."""
        return self.params.report.bootstrap

    @property
    def name(self) -> str:
        """The trained policy of the headline."""
        return trained_name(self.params)

    @property
    def main(self) -> str:
        """The headline's arm."""
        return arm_of(self.name)

    @property
    def first(self) -> str:
        """The headline's benchmark."""
        return self.params.eval.first

    @property
    def mode(self) -> str:
        """How the method shows records to REHEARSE."""
        return self.params.resolved_method().few_shot

    @property
    def arms(self) -> list[str]:
        """The arms whose policies are to be evaluated, the headline's first."""
        found = dict.fromkeys(arm_of(p) for p in self.params.eval.policies if p != START)
        return sorted(found, key=lambda a: a != self.main)

    def find(self, policy: str, benchmark: str) -> EvalRun | None:
        """A finished evaluation, None when it left nothing."""
        found = (e for e in self.results.evals if (e.policy, e.benchmark) == (policy, benchmark))
        return next((e for e in found if e.finished), None)

    def of_arm(self, arm: str, benchmark: str) -> list[EvalRun]:
        """The finished evaluations of an arm's policies, one a seed; of START its one."""
        found = (e for e in self.results.evals if arm_of(e.policy) == arm and e.benchmark == benchmark)
        return [e for e in found if e.finished]

    def score(self, runs: list[EvalRun]) -> Estimate | None:
        return pooled(runs, self.n)

    def gain(self, runs: list[EvalRun], benchmark: str) -> Estimate | None:
        """What runs have over the start policy."""
        return difference(self.of_arm(START, benchmark), runs, self.n)

    def over(self, arm: str, benchmark: str) -> Estimate | None:
        """What the headline's arm has over another."""
        return difference(self.of_arm(arm, benchmark), self.of_arm(self.main, benchmark), self.n)

    @property
    def control(self) -> EvalRun | None:
        """The finished committed runs without private rehearsal."""
        return next((t for t in self.results.tts if not t.n and t.finished), None)

    def rehearsed(self, run: EvalRun) -> Estimate | None:
        """What a point of test-time scaling has over none."""
        return difference([self.control], [run], self.n) if run.n else None

    def fidelity(self, policy: str) -> FidelityRun | None:
        return next((f for f in self.results.fidelity if f.policy == policy and f.scores), None)

    def measured(self, policy: str, key: str) -> Estimate | None:
        """A fidelity score of a policy, as an estimate."""
        f = self.fidelity(policy)
        return measured(f.scores.get(key)) if f else None

    @property
    def training(self) -> TrainRun | None:
        """The headline's training, or the first that left steps."""
        runs = [t for t in self.results.train if t.steps]
        return next((t for t in runs if t.name == self.name), runs[0] if runs else None)

    def rehearses(self, run: str) -> bool:
        """Whether the observations in a training came from the policy itself."""
        return self.params.resolved_method(arm_of(run)).source == "rehearse"

    def small_policy_note(self, policies: list[str]) -> str:
        """What a reader must know of the project's own tiny policy before its scores on benchmarks of others
        mean anything; empty where only other policies are shown."""
        kind, baselines = self.params.policy.kind, self.params.bench.baselines
        own = kind in ("bundled", "tiny") and not (policies and all(p in baselines for p in policies))
        return SMALL_POLICY.format(kind=kind) if own else ""
