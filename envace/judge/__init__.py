"""Checklist items -> verdicts -> turn reward -> episode reward.

Flows in: a task, the turn just answered and the transcript so far. Flows out: one `Verdict` an item and the
reward they add up to. Rules: `rules`. A language model: `llm`, which asks (`llm_requests`) through the chat
client, reads the replies (`llm_answers`), and keeps answers (`cache`) and an audit (`audit`).
Invariant: a judge that fails says "unscored" with a reason; it never produces a score.
"""

from envace.judge.base import Judge, RuleJudge, make_judge
from envace.judge.checklist import TurnScore, episode_reward, turn_reward

__all__ = ["Judge", "RuleJudge", "TurnScore", "episode_reward", "make_judge", "turn_reward"]
