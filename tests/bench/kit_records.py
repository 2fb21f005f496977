"""Sample records as the benchmarks' parsers make them."""

from envace.types import SampleRecord, SampleStatus


def scored_sample(task: str, reward: float, trial: int = 0, **metrics: float) -> SampleRecord:
    """A sample that harness and strict reading score alike; `metrics` are beside the reward."""
    numbers = {"reward": reward, "upstream": reward} | metrics
    known = {"task": task, "trial": trial, "seed": 0, "reward": reward, "metrics": numbers}
    return SampleRecord(status=SampleStatus.SCORED, **known)
