"""What one episode has come to so far: its books, and the stream of tokens ACT has been shown.

Flows in: messages, generations, observations and verdicts as they happen. Flows out: ACT's next prompt, and what the
finished `Episode` is made of.
Invariant: everything is entered once and in order. ACT's prompts come from the token log (`envace/chat/tokens.py`),
so what the policy sampled stands in later prompts as it was sampled; each row the log began anew is counted under
`restart/<reason>`.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from envace.chat.calls import ParsedReply
from envace.chat.renderer import Renderer
from envace.chat.text import dumps
from envace.chat.tokens import TokenLog
from envace.config import RolloutParams
from envace.config.method import Method
from envace.judge.base import Judge
from envace.policy.protocol import Policy
from envace.rollout.interfaces import ObservationSource
from envace.rollout.prompts import with_head
from envace.types import (
    FailureReason,
    Generation,
    Message,
    Observation,
    Role,
    Sampling,
    StopReason,
    Task,
    ToolCall,
    Verdict,
    replace,
)

Watch = Callable[[Any], None]  # called with every Message, Observation and Verdict as it happens

FAILED = {StopReason.JUDGE_FAILED, StopReason.POLICY_FAILED, StopReason.SOURCE_FAILED}
COUNTED = ("act", "rehearse", "calls", "errors", "tokens_act", "tokens_rehearse")


@dataclass(slots=True)
class State:
    """One episode under way: who plays it by which rules, then what has happened."""

    task: Task
    policy: Policy
    source: ObservationSource
    renderer: Renderer
    judge: Judge
    method: Method
    params: RolloutParams
    episode_id: str
    seed: int
    sampling: Sampling
    watch: Watch | None
    head: str  # system text on top of the task's own
    messages: list[Message]
    generations: list[Generation] = field(default_factory=list)
    observations: list[Observation] = field(default_factory=list)
    verdicts: list[Verdict] = field(default_factory=list)
    turn_rewards: list[float] = field(default_factory=list)
    real_calls: list[ToolCall] = field(default_factory=list)
    counters: Counter[str] = field(default_factory=Counter)
    turn: int = 0
    turn_open: bool = True  # False once the current turn has been judged, or its judge has failed
    unscored: str = ""
    clock: asyncio.Timeout | None = None
    log: TokenLog | None = None
    logged: int = 0  # messages the log knows of

    @property
    def n_turns(self) -> int:
        return len(self.task.checklist) or self.task.n_turns

    @property
    def micro_steps(self) -> int:
        """Generations of either role so far."""
        return self.counters["act"] + self.counters["rehearse"]

    # --- what ACT is shown --------------------------------------------------------------------------------

    def prompt(self) -> tuple[tuple[Message, ...], tuple[int, ...]]:
        """The chat and the ids of ACT's next prompt."""
        view = self._view()
        if self.log is None:
            keep = self.method.old_thoughts == "keep"
            self.log = TokenLog(self.renderer, view, self.task.tools, keep_thoughts=keep)
        elif new := self.messages[self.logged :]:
            self.log.add_user(new[0]) if new[0].role == "user" else self.log.add_results(new)
        self.logged = len(self.messages)
        return view, self.log.prompt_ids()

    def _view(self) -> tuple[Message, ...]:
        return with_head(self.messages, self.head)

    # --- entries ------------------------------------------------------------------------------------------

    def record(self, generation: Generation) -> None:
        self.generations.append(generation)
        self.counters[generation.role.value] += 1
        self.counters[f"tokens_{generation.role.value}"] += len(generation.output_ids)
        self.counters[f"prompt_{generation.role.value}"] += len(generation.prompt_ids)

    def blame(self, failure: FailureReason) -> None:
        """The newest ACT generation failed. Its first failure stands: what comes of it later is no new one."""
        at = max(i for i, g in enumerate(self.generations) if g.role is Role.ACT)
        if self.generations[at].failure is None:
            self.generations[at] = replace(self.generations[at], failure=failure)

    def say(self, message: Message) -> None:
        self.messages.append(message)
        if self.watch:
            self.watch(message)

    def say_reply(self, reply: ParsedReply) -> None:
        """The message read from the newest ACT generation."""
        message = Message(
            role="assistant",
            content=reply.content,
            thinking=reply.thinking,
            calls=reply.calls,
            turn=self.turn,
        )
        ids = self.generations[-1].output_ids
        if ids and self.log.restart:
            self.counters[f"restart/{self.log.restart.value}"] += 1
        self.log.add_sampled(ids, said=message)
        self.say(message)
        self.logged = len(self.messages)

    def observe(self, name: str, observation: Observation, count: bool = True) -> None:
        """The response of one call; `count` False leaves its failure to be counted elsewhere."""
        self.observations.append(observation)
        self.counters["errors"] += observation.error
        if count and observation.failure is not None:
            self.counters[f"failure/{observation.failure.value}"] += 1
        self.say(Message(role="tool", content=dumps(observation.content), name=name, turn=self.turn))
        if self.watch:
            self.watch(observation)

    def counted(self) -> dict[str, int]:
        return {
            **{name: self.counters[name] for name in COUNTED},
            **{k: v for k, v in self.counters.items() if v},
        }
