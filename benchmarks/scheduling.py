"""When episodes wait for each other: ours beside a lock-step loop and verl's agent loops, on one latency model.

Flows in: groups, members, seeds. Flows out: a table, and JSON where `--out` says.
Invariant: all three bring the same episodes, token for token, or nothing is reported; the order alternates from round to
round. Requests sleep. Seconds are those of a machine of its own: CPU of this process plus what was slept, which is skipped
(see clock.py), so that neither other work nor a scale for the sleeps distorts them.

  lock-step   as the authors' code: all live episodes make a request, and none goes on before the slowest is done; ACT,
              REHEARSE and the judge take turns. It is treated kindly: the calls of a message are answered at once (theirs
              one after another), and an answer joins the phase that comes next.
  verl        `AgentLoopWorker.generate_sequences` of the installed verl, which awaits a coroutine an episode; ours is what it
              runs, its server manager the scripted policy. Padding to tensors, which is part of it, is timed.
  envace      `run_pool`, without a limit on how many run at once.
`alone` is the longest episode without any other or any CPU: nothing can be faster.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks import clock, scripted
from benchmarks.scripted import ACT, JUDGE, REHEARSE
from benchmarks.table import times, write_json
from envace.errors import boundary
from envace.policy.warmstart import BUNDLED
from envace.rollout.pool import Job, run_pool

LOCKSTEP, VERL, OURS = "lock-step", "verl's agent loops", "envace"
ROUNDS_OF_THE_LOOP = 8  # until nobody has anything left to do before the slowest is waited for
Play = Callable[[int, int, int], tuple[list[Any], float]]  # (seed, groups, members) -> episodes, seconds


@dataclass(slots=True)
class Lockstep:
    """A `spend` under which nobody goes on before all have been served."""

    live: int
    waiting: dict[str, list[tuple[asyncio.Future[None], float]]] = field(default_factory=dict)
    blocked: dict[str, int] = field(default_factory=dict)  # episode -> its open requests

    async def spend(self, kind: str, episode: str, seconds: float) -> None:
        turn = asyncio.get_running_loop().create_future()
        self.waiting.setdefault(kind, []).append((turn, seconds))
        self.blocked[episode] = self.blocked.get(episode, 0) + 1
        await turn
        self.blocked[episode] -= 1
        if not self.blocked[episode]:
            del self.blocked[episode]

    def ended(self, episode: Any) -> None:
        self.live -= 1

    async def drive(self) -> None:
        """Phase after phase until no episode is left."""
        while self.live:
            for kind in (ACT, REHEARSE, JUDGE):
                await self._all_wait()
                if batch := self.waiting.pop(kind, []):
                    await asyncio.sleep(max(seconds for _, seconds in batch))
                    for turn, _ in batch:
                        turn.set_result(None)

    async def _all_wait(self) -> None:
        quiet = 0
        while quiet < ROUNDS_OF_THE_LOOP:
            await asyncio.sleep(0)
            quiet = quiet + 1 if len(self.blocked) == self.live else 0


def lockstep(seed: int, groups: int, members: int) -> tuple[list[Any], float]:
    async def play() -> list[Any]:
        gate = Lockstep(groups * members)
        jobs = scripted.jobs(seed, groups, members, gate.spend)
        driver = asyncio.create_task(gate.drive())
        episodes = await run_pool(jobs, concurrency=len(jobs), on_episode=gate.ended)
        await driver
        return episodes

    return clock.run(play())


def ours(seed: int, groups: int, members: int) -> tuple[list[Any], float]:
    jobs = scripted.jobs(seed, groups, members, scripted.sleep)
    return clock.run(run_pool(jobs, concurrency=len(jobs)))


class Peer:
    """verl's worker, in this process, with an agent loop that plays one of `jobs` by its index."""

    def __init__(self) -> None:
        from verl.experimental.agent_loop.agent_loop import AgentLoopWorker

        self.jobs: list[Job] = []
        self.episodes: dict[int, Any] = {}
        self.worker = AgentLoopWorker(_config(), llm_client=self)
        _register()

    async def play(self, index: int) -> Any:
        self.episodes[index] = await self.jobs[index].start()
        return self.episodes[index]

    def __call__(self, seed: int, groups: int, members: int) -> tuple[list[Any], float]:
        from verl import DataProto

        self.jobs = scripted.jobs(seed, groups, members, scripted.sleep)
        n = len(self.jobs)
        columns = {"index": list(range(n)), "agent_name": ["scripted"] * n, "raw_prompt": [[]] * n}
        batch = DataProto.from_dict(non_tensors={k: _column(v) for k, v in columns.items()})
        _, seconds = clock.run(self.worker.generate_sequences(batch))
        return [self.episodes[k] for k in range(n)], seconds


def _column(values: list[Any]) -> Any:
    import numpy as np

    column = np.empty(len(values), dtype=object)
    column[:] = values
    return column


def _config() -> Any:
    """verl's own, with the bundled tokenizer and room for the scripted words."""
    from hydra import compose, initialize_config_module

    with initialize_config_module("verl.trainer.config", version_base=None):
        return compose("ppo_trainer", overrides=[
            f"actor_rollout_ref.model.path={BUNDLED}", "actor_rollout_ref.rollout.name=hf",
            "actor_rollout_ref.rollout.prompt_length=2048", "actor_rollout_ref.rollout.response_length=16384",
        ])  # fmt: skip


def _register() -> None:
    from verl.experimental.agent_loop.agent_loop import (
        AgentLoopBase,
        AgentLoopMetrics,
        AgentLoopOutput,
        register,
    )

    @register("scripted")
    class ScriptedLoop(AgentLoopBase):
        async def run(self, sampling_params: dict[str, Any], **kwargs: Any) -> Any:
            episode = await self.server_manager.play(int(kwargs["index"]))
            written = [i for g in episode.generations if g.role == ACT for i in g.output_ids]
            return AgentLoopOutput(
                prompt_ids=list(episode.generations[0].prompt_ids), response_ids=written,
                response_mask=[1] * len(written), reward_score=episode.reward, num_turns=len(episode.turn_rewards),
                metrics=AgentLoopMetrics(), extra_fields={"reward_extra_info": {}},
            )  # fmt: skip

    globals()["ScriptedLoop"] = ScriptedLoop  # verl makes one an episode, from its dotted name
    ScriptedLoop.__qualname__ = "ScriptedLoop"
    register("scripted")(ScriptedLoop)


def alone(seed: int, groups: int, members: int) -> float:
    """Seconds of the longest episode, its parallel calls side by side, without any CPU."""
    spent = []
    for group in range(groups):
        turns = scripted.make_task(seed, group).n_turns
        for member in range(members):
            name = f"t{group}-{member}"
            spent.append(sum(scripted.requests(seed, name, turns)))
    return max(spent)


def players() -> tuple[dict[str, Play], str]:
    """What is compared, and why a peer is missing."""
    try:
        return {LOCKSTEP: lockstep, VERL: Peer(), OURS: ours}, ""
    except ImportError as e:
        return {LOCKSTEP: lockstep, OURS: ours}, f"{VERL}: not installed ({e})"


def compare(found: dict[str, Play], seed: int, groups: int, members: int, rounds: int) -> dict[str, Any]:
    """Raises ValueError when an episode differs, or did not come to its end."""
    spent: dict[str, list[float]] = {name: [] for name in found}
    want: list[str] = []
    episodes = tokens = 0
    for k in range(rounds):
        for name in list(found) if k % 2 == 0 else list(found)[::-1]:
            played, seconds = found[name](seed, groups, members)
            said = sorted(map(scripted.essence, played))
            want = want or said
            if said != want or any(e.stop.value != "done" for e in played):
                raise ValueError(f"{name} brings other episodes: nothing to report")
            spent[name].append(seconds)
            episodes, tokens = len(played), sum(len(g.output_ids) for e in played for g in e.generations)
    floor = alone(seed, groups, members)
    median = {name: statistics.median(values) for name, values in spent.items()}
    print(
        f"seed {seed}: {episodes} episodes of {groups} groups, {tokens} tokens, {rounds} rounds, episodes equal"
    )
    for name, values in spent.items():
        print(
            f"  {name:20} {median[name]:8.1f} s [{min(values):.1f}, {max(values):.1f}]"
            f"  envace is {median[name] / median[OURS]:5.2f}x as fast"
        )
    print(f"  {'alone':20} {floor:8.1f} s")
    return {
        "seed": seed, "groups": groups, "members": members, "rounds": rounds, "episodes": episodes, "tokens": tokens,
        "seconds": spent, "median_s": median, "alone_s": floor,
        "times": times(median, OURS),
    }  # fmt: skip


def main() -> None:
    """Compare episode scheduling with a lock-step loop and with verl's."""
    cli = argparse.ArgumentParser(prog="python -m benchmarks.scheduling", description=main.__doc__)
    cli.add_argument("--groups", type=int, default=16)
    cli.add_argument("--members", type=int, default=4)
    cli.add_argument("--seed", type=int, nargs="+", default=[0, 1, 2])
    cli.add_argument("--rounds", type=int, default=2)
    cli.add_argument("--out", type=Path, help="write the numbers as JSON")
    args = cli.parse_args()
    with boundary("benchmarks.scheduling"):
        found, missing = players()
        if missing:
            print(f"skipped {missing}")
        results = [compare(found, s, args.groups, args.members, args.rounds) for s in args.seed]
        if args.out:
            write_json(args.out, {"results": results, "skipped": missing}, ("verl",), {})


if __name__ == "__main__":
    sys.exit(main())
