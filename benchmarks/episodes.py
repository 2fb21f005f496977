"""Episodes of known lengths for what happens after a rollout: rows, advantages, packing.

Flows in: numbers of episodes, turns and tokens. Flows out: `Episode`s whose ids are random and whose ACT prompts only
grow, as a transcript of tool turns does; each call is answered by a REHEARSE generation with a prompt of its own.
Invariant: everything depends on the seed alone.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from envace.types import Episode, FinishReason, Generation, Role, Sampling, StopReason

IDS = 150_000


def make(
    episodes: int,
    turns: tuple[int, int],
    *,
    head: int,
    act: int,
    result: int,
    members: int = 4,
    seed: int = 0,
) -> list[Episode]:
    """Episodes of `turns` (fewest, most) ACT generations; the other numbers are tokens, act and result on average."""
    rng = random.Random(seed)
    return [_episode(k, rng.randint(*turns), head, act, result, members, rng) for k in range(episodes)]


def _episode(
    k: int, turns: int, head: int, act: int, result: int, members: int, rng: random.Random
) -> Episode:
    stream = ids(head, rng)
    generations: list[Generation] = []
    for step in range(turns):
        said = ids(_around(act, rng), rng)
        generations.append(_written(Role.ACT, step, stream, said))
        if step < turns - 1:
            answer = ids(_around(result, rng), rng)
            generations.append(_written(Role.REHEARSE, step, ids(head // 2, rng) + said, answer))
            stream = stream + said + answer
    return Episode(
        id=f"p{k // members}-{k % members}", task_id=f"t{k // members}", group_id=f"p{k // members}", seed=k, prompt_set="",
        generations=tuple(generations), messages=(), reward=rng.random(), stop=StopReason.DONE,
    )  # fmt: skip


def ids(n: int, rng: random.Random) -> tuple[int, ...]:
    return tuple(rng.choices(range(IDS), k=n))


def _around(mean: int, rng: random.Random) -> int:
    return rng.randint(max(1, mean // 2), mean + mean // 2)


def _written(role: Role, step: int, prompt: Sequence[int], output: Sequence[int]) -> Generation:
    return Generation(
        role=role, turn=0, step=step, prompt_ids=tuple(prompt), output_ids=tuple(output),
        logprobs=(-0.5,) * len(output), text="words", sampling=Sampling(), finish=FinishReason.STOP,
    )  # fmt: skip
