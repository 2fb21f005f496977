"""What one episode has come to so far: its books, and the stream of tokens ACT has been shown.

Invariant: everything is entered once and in order. ACT's prompts come from the token log
(`envace/chat/tokens.py`), so what the policy sampled stands in later prompts as it was sampled; each prompt
the log wrote anew is counted under `restart/<reason>`.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

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
    JSON,
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

Watch = Callable[[Message | Observation | Verdict], None]  # called with each as it happens

FAILED = {
    StopReason.JUDGE_FAILED,
    StopReason.POLICY_FAILED,
    StopReason.SOURCE_FAILED,
    StopReason.DEADLINE,  # wall clock says more about the machine than about the policy
}
COUNTED = ("act", "rehearse", "calls", "errors", "tokens_act", "tokens_rehearse")


@dataclass(slots=True)
class EpisodeState:
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
    watch: Watch
    tools: tuple[dict[str, JSON], ...]
    """As ACT is shown them."""
    head: str
    """System text on top of the task's own."""
    messages: list[Message]
    generations: list[Generation] = field(default_factory=list)
    observations: list[Observation] = field(default_factory=list)
    verdicts: list[Verdict] = field(default_factory=list)
    turn_rewards: list[float] = field(default_factory=list)
    real_calls: list[ToolCall] = field(default_factory=list)
    counters: Counter[str] = field(default_factory=Counter)
    turn: int = 0
    turn_open: bool = True
    """False once the current turn has been judged, or its judge has failed."""
    unscored: str = ""
    clock: asyncio.Timeout | None = None
    log: TokenLog | None = None
    """Made with the first prompt."""
    logged: int = 0
    """Messages the log knows of."""

    @property
    def n_turns(self) -> int:
        return len(self.task.checklist) or self.task.n_turns

    @property
    def micro_steps(self) -> int:
        """Generations of either role so far."""
        return self.counters["act"] + self.counters["rehearse"]

    def seeded(self, role: Role, max_tokens: int, step: int, index: int = 0) -> Sampling:
        """Sampling of one generation: its own token budget, and a seed that only this generation has."""
        digest = hashlib.sha256(f"{self.seed}/{role.value}/{step}/{index}".encode()).digest()
        return replace(self.sampling, max_tokens=max_tokens, seed=int.from_bytes(digest[:4]) & 0x7FFFFFFF)

    def prompt(self) -> tuple[tuple[Message, ...], tuple[int, ...]]:
        """The chat and the ids of ACT's next prompt."""
        view, new = with_head(self.messages, self.head), self.messages[self.logged :]
        if self.log is None:
            keep = self.method.old_thoughts == "keep"
            self.log = TokenLog(self.renderer, view, self.tools, keep_thoughts=keep)
        elif new and new[0].role == "user":
            self.log.add_user(new[0])
        elif new:
            self.log.add_results(new)
        self.logged = len(self.messages)
        return view, self.log.prompt_ids()

    def record(self, generation: Generation) -> None:
        """A generation of either role."""
        role = generation.role.value
        self.generations.append(generation)
        self.counters[role] += 1
        self.counters[f"tokens_{role}"] += len(generation.output_ids)
        self.counters[f"prompt_{role}"] += len(generation.prompt_ids)

    def blame(self, failure: FailureReason) -> None:
        """The newest ACT generation failed. Its first failure stands: what comes of it later is no new
        one."""
        at = max(i for i, g in enumerate(self.generations) if g.role is Role.ACT)
        if self.generations[at].failure is None:
            self.generations[at] = replace(self.generations[at], failure=failure)

    def say(self, message: Message) -> None:
        """The next message of the transcript."""
        self.messages.append(message)
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
        assert self.log is not None, "a reply follows a prompt"
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
        self.watch(observation)
