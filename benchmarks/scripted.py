"""Episodes whose every word and every latency is known beforehand.

Words and seconds of a request depend on the seed and on which request it is, never on when it is made; so
however episodes are scheduled, they are the same episodes.

An episode has 3 to 20 ACT generations over one to three user turns; all but the last of a turn make one or
two calls, which REHEARSE answers; a judge answers each turn. Seconds are log-normal around a median for each
kind."""

from __future__ import annotations

import asyncio
import hashlib
import json
import math
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from statistics import NormalDist

from envace.chat.calls import render_calls
from envace.chat.contract import render_result
from envace.chat.renderer import ByteRenderer
from envace.config import RolloutParams
from envace.config.method import Method
from envace.policy.protocol import GenerationRequest
from envace.policy.scripted import ScriptedPolicy
from envace.rollout.pool import Job, episode_job
from envace.rollout.prompts import load_prompt_set
from envace.rollout.sources import make_source
from envace.types import Answer, Episode, Item, Message, Role, Task, ToolCall, Verdict

ACT, REHEARSE, JUDGE = "act", "rehearse", "judge"
MEDIAN_S = {ACT: 6.0, REHEARSE: 3.0, JUDGE: 4.0}  # of one request
SIGMA = 0.8  # of its logarithm
FEWEST, MOST = 3, 20  # ACT generations
WORDS = "order status moved open paid seat city total note limit".split()
PARAMS = RolloutParams(
    prompt_tokens=60_000, response_tokens=4000, max_steps=40, max_calls=80, max_errors=4, deadline_s=3600.0
)
RENDERER = ByteRenderer()
Spend = Callable[[str, str, float], Awaitable[None]]  # (kind, episode, seconds)


def draw(*names: object) -> random.Random:
    return random.Random(hashlib.sha256("/".join(map(str, names)).encode()).digest())


def seconds(seed: int, kind: str, *names: object) -> float:
    """Of one request."""
    p = min(max(draw(seed, kind, *names).random(), 1e-6), 1 - 1e-6)
    return MEDIAN_S[kind] * math.exp(SIGMA * NormalDist().inv_cdf(p))


@dataclass(frozen=True, slots=True)
class Plan:
    """What one episode will say: for each ACT generation its calls, none for a reply."""

    calls: tuple[tuple[ToolCall, ...], ...]

    @classmethod
    def make(cls, seed: int, episode: str, turns: int) -> Plan:
        rng = draw(seed, "plan", episode)
        steps = rng.randint(max(FEWEST, turns), MOST)
        replies = {*rng.sample(range(steps - 1), turns - 1), steps - 1}

        def calls(step: int) -> tuple[ToolCall, ...]:
            count = 0 if step in replies else rng.choice((1, 1, 2))
            return tuple(
                ToolCall(name="look", arguments={"id": f"#{step}-{k}", "why": words(rng, 4)})
                for k in range(count)
            )

        return cls(tuple(calls(step) for step in range(steps)))


def words(rng: random.Random, n: int) -> str:
    return " ".join(rng.choices(WORDS, k=n))


@dataclass(slots=True)
class Speaker:
    """The policy of all episodes."""

    seed: int
    spend: Spend
    plans: dict[str, Plan] = field(default_factory=dict)

    async def __call__(self, request: GenerationRequest) -> str:
        where = (request.episode_id, request.step, request.call_index)
        kind = request.role.value
        await self.spend(kind, request.episode_id, seconds(self.seed, kind, *where))
        rng = draw(self.seed, "text", kind, *where)
        if request.role is Role.REHEARSE:
            return render_result({"note": words(rng, 20)})
        calls = self.plans[request.episode_id].calls[request.step]
        return f"{words(rng, 30)}\n{render_calls(calls)}" if calls else words(rng, 30)


@dataclass(slots=True)
class Judge:
    """Of one episode."""

    seed: int
    spend: Spend
    episode: str

    async def judge_turn(self, task: Task, turn: int, messages: Sequence[Message]) -> list[Verdict]:
        await self.spend(JUDGE, self.episode, seconds(self.seed, JUDGE, self.episode, turn))
        held = draw(self.seed, "verdict", self.episode, turn).random() < 0.5
        answers = (Answer.YES if held or k else Answer.NO for k, _ in enumerate(task.checklist[turn]))
        return [
            Verdict(item_id=item.id, turn=turn, answer=answer)
            for item, answer in zip(task.checklist[turn], answers)
        ]


def make_task(seed: int, group: int) -> Task:
    turns = draw(seed, "turns", group).randint(1, 3)
    schema = {"type": "object", "properties": {"id": {"type": "string"}, "why": {"type": "string"}}}
    tool = {"type": "function", "function": {"name": "look", "description": "Looks.", "parameters": schema}}
    item = {"question": "?", "pass_condition": "", "focus_on": "assistant.tool_calls"}
    items = tuple(Item(id=f"C{k}", weight=0.5, **item) for k in range(2))
    return Task(
        id=f"t{group}",
        prefix=(Message(role="user", content="Look it all up."),),
        tools=(tool,),
        source="benchmark",
        user_turns=("And then?",) * (turns - 1),
        checklist=(items,) * turns,
    )


def jobs(seed: int, groups: int, members: int, spend: Spend) -> list[Job]:
    """The episodes, none of them begun."""
    speaker = Speaker(seed, spend)
    policy, method, prompts = ScriptedPolicy(speaker, RENDERER), Method(), load_prompt_set("compact")
    made = []
    for group in range(groups):
        task = make_task(seed, group)
        for member in range(members):
            name = f"t{group}-{member}"
            speaker.plans[name] = Plan.make(seed, name, task.n_turns)
            made.append(
                episode_job(
                    task,
                    episode_id=name,
                    group_id=task.id,
                    seed=member,
                    method=method,
                    params=PARAMS,
                    judge=Judge(seed, spend, name),
                    policy=policy,
                    renderer=RENDERER,
                    prompt_set=prompts,
                    make_source=lambda task=task: make_source(task, method, policy, RENDERER, PARAMS),
                )
            )
    return made


def essence(episode: Episode) -> str:
    """All of an episode that must not depend on its schedule, as text."""
    generations = [[g.role, g.step, g.call_index, g.prompt_ids, g.output_ids] for g in episode.generations]
    verdicts = [[v.turn, v.item_id, v.answer] for v in episode.verdicts]
    return json.dumps([episode.id, generations, verdicts, episode.reward, episode.stop, episode.counters])


async def sleep(kind: str, episode: str, seconds: float) -> None:
    """Every request takes its own time, whoever else waits."""
    await asyncio.sleep(seconds)
