"""When episodes wait for each other: ours beside a lock-step loop and verl's agent loops, on one latency
model.

All three bring the same episodes, token for token, or nothing is reported. Requests sleep, and the sleeps are
skipped (`clock`): seconds are CPU of this process plus what would have been slept.

  lock-step   as the authors' code: all live episodes make a request, and none goes on before the slowest
              is done; ACT, REHEARSE and the judge take turns
  verl        `AgentLoopWorker.generate_sequences`, whose server manager is the scripted policy
  envace      `run_pool`, without a limit on how many run at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from benchmarks import clock, scripted
from benchmarks.measure import report
from benchmarks.scripted import ACT, JUDGE, REHEARSE
from envace.rollout.pool import run_pool
from envace.types import Episode

LOCKSTEP, VERL, OURS = "lock-step", "verl's agent loops", "envace"
TICKS = 8  # of the loop, until nobody has anything left to do before the slowest is waited for
Played = tuple[list[Episode], float]
Play = Callable[[int, int, int], Played]
"""(seed, groups, members) -> episodes, seconds."""


@dataclass(slots=True)
class Lockstep:
    """A `spend` under which nobody goes on before all have been served."""

    live: int
    waiting: dict[str, list[tuple[asyncio.Future[None], float]]] = field(default_factory=dict)
    blocked: dict[str, int] = field(default_factory=dict)
    """Open requests by episode."""

    async def spend(self, kind: str, episode: str, seconds: float) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.waiting.setdefault(kind, []).append((turn, seconds))
        self.blocked[episode] = self.blocked.get(episode, 0) + 1
        await turn
        self.blocked[episode] -= 1
        if not self.blocked[episode]:
            del self.blocked[episode]

    def ended(self, episode: Episode) -> None:
        self.live -= 1

    async def drive(self) -> None:
        """Phase after phase until no episode is left."""
        while self.live:
            for kind in (ACT, REHEARSE, JUDGE):
                quiet = 0
                while quiet < TICKS:
                    await asyncio.sleep(0)
                    quiet = quiet + 1 if len(self.blocked) == self.live else 0
                if batch := self.waiting.pop(kind, []):
                    await asyncio.sleep(max(seconds for _, seconds in batch))
                    for turn, _ in batch:
                        turn.set_result(None)


def lockstep(seed: int, groups: int, members: int) -> Played:
    async def play() -> list[Episode]:
        gate = Lockstep(groups * members)
        jobs = scripted.jobs(seed, groups, members, gate.spend)
        driver = asyncio.create_task(gate.drive())
        episodes = await run_pool(jobs, concurrency=len(jobs), on_episode=gate.ended)
        await driver
        return episodes

    return clock.run(play())


def ours(seed: int, groups: int, members: int) -> Played:
    jobs = scripted.jobs(seed, groups, members, scripted.sleep)
    return clock.run(run_pool(jobs, concurrency=len(jobs)))


class Verl:
    """verl's worker, in this process, with an agent loop that plays one of `jobs` by its index."""

    def __init__(self) -> None:
        from hydra import compose, initialize_config_module
        from verl.experimental.agent_loop.agent_loop import AgentLoopWorker

        rollout = {"name": "hf", "prompt_length": 2048, "response_length": 16384}
        changed = ["actor_rollout_ref.model.path=envace/policy/start"]
        changed += [f"actor_rollout_ref.rollout.{key}={value}" for key, value in rollout.items()]
        with initialize_config_module("verl.trainer.config", version_base=None):
            self.worker = AgentLoopWorker(compose("ppo_trainer", overrides=changed), llm_client=self)
        _register_loop()

    async def play(self, index: int) -> Episode:
        self.episodes[index] = await self.jobs[index].start()
        return self.episodes[index]

    def __call__(self, seed: int, groups: int, members: int) -> Played:
        import numpy as np
        from verl import DataProto

        self.jobs, self.episodes = scripted.jobs(seed, groups, members, scripted.sleep), {}
        n = len(self.jobs)
        prompts = np.empty(n, dtype=object)
        prompts[:] = [[]] * n
        columns = {
            "index": np.arange(n, dtype=object),
            "agent_name": np.array(["scripted"] * n, dtype=object),
        }
        batch = DataProto.from_dict(non_tensors={**columns, "raw_prompt": prompts})
        _, seconds = clock.run(self.worker.generate_sequences(batch))
        return [self.episodes[k] for k in range(n)], seconds


def _register_loop() -> None:
    from verl.experimental.agent_loop import agent_loop as verl

    class ScriptedLoop(verl.AgentLoopBase):
        async def run(self, sampling_params, **kwargs):
            episode = await self.server_manager.play(int(kwargs["index"]))
            written = [i for g in episode.generations if g.role == ACT for i in g.output_ids]
            return verl.AgentLoopOutput(
                prompt_ids=list(episode.generations[0].prompt_ids),
                response_ids=written,
                response_mask=[1] * len(written),
                reward_score=episode.reward,
                num_turns=len(episode.turn_rewards),
                metrics=verl.AgentLoopMetrics(),
                extra_fields={"reward_extra_info": {}},
            )

    globals()["ScriptedLoop"] = ScriptedLoop  # verl makes one an episode, from its dotted name
    ScriptedLoop.__qualname__ = "ScriptedLoop"
    verl.register("scripted")(ScriptedLoop)


def compare(found: dict[str, Play], seed: int, groups: int, members: int) -> dict[str, float]:
    """Seconds each takes. Raises ValueError when an episode differs, or did not come to its end."""
    spent, want = {}, None
    for name, play in found.items():
        played, spent[name] = play(seed, groups, members)
        said = sorted(map(scripted.essence, played))
        if said != (want or said) or any(e.stop.value != "done" for e in played):
            raise ValueError(f"{name} brings other episodes: nothing to report")
        want = said
    return spent


def main(quick: bool = False) -> None:
    groups, seeds = (3, (0,)) if quick else (16, (0, 1, 2))
    found: dict[str, Play] = {LOCKSTEP: lockstep, VERL: Verl(), OURS: ours}
    spent = [compare(found, seed, groups, 4) for seed in seeds]
    what = f"{4 * groups} episodes of {groups} groups, seeds {seeds}, simulated latency"
    report("scheduling", what, {name: [s[name] for s in spent] for name in found}, OURS, "s")
