"""Checklist items -> verdicts -> turn reward -> episode reward. A judge that fails says "unscored" with a
reason; it never produces a score."""

from envace.judge.base import Judge, RuleJudge, make_judge
from envace.judge.checklist import TurnScore, episode_reward, turn_reward

__all__ = ["Judge", "RuleJudge", "TurnScore", "episode_reward", "make_judge", "turn_reward"]
