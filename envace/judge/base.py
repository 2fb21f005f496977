"""The judge's protocol, the judge that needs no model, and the choice between judges.

Every judge sees the transcript (and the task's records), never the hidden state of a world.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from envace.config import JudgeParams
from envace.judge.rules import judge_item
from envace.types import Message, Task, Verdict


class Judge(Protocol):
    """Answers the checklist of one turn."""

    async def judge_turn(self, task: Task, turn: int, messages: Sequence[Message]) -> list[Verdict]:
        """One verdict for each item of `task.checklist[turn]`, in order. Never raises for its own faults."""
        ...


class RuleJudge:
    """Evaluates each item's `rule` on the transcript: deterministic, instant, free."""

    async def judge_turn(self, task: Task, turn: int, messages: Sequence[Message]) -> list[Verdict]:
        return [judge_item(item, task, turn, messages) for item in task.checklist[turn]]

    async def aclose(self) -> None:
        """Nothing is held open."""


def make_judge(params: JudgeParams, mode: str = "turn") -> Judge:
    """The judge `params.kind` names; `mode` is the method's `judge_mode`, which says how a language model is
    asked.

    Rules read a whole turn at once, however a model would be asked. Raises EnvironmentUnready when the key's
    variable is unset.
    """
    if params.kind == "rule":
        return RuleJudge()
    from envace.judge.llm import LLMJudge  # late: only this judge needs an HTTP client

    return LLMJudge(params, mode)
