"""verl's buffer of finished prompt groups, which looks after the processes it waits for.

An episode whose process is gone never comes back; verl would wait for it without end.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import ray
from ray.actor import ActorHandle
from ray.exceptions import RayActorError
from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer

from envace.types import JSON

POLL_S = 0.25
"""How often the queue is asked for finished groups; verl's 2 s would be half of a small step."""
ASK_S = 3.0
"""How often the agent loops' processes are asked whether they live."""


class WatchedQueue(ReplayBuffer):
    """What `trainer.v1.sampler.custom_sampler` names."""

    def __init__(self, **verls: JSON):
        super().__init__(**{**verls, "poll_interval": POLL_S})
        self.workers: Sequence[ActorHandle] = ()
        self._asked: list[ray.ObjectRef] = []
        self._asked_at = 0.0

    def _wait_for_next_poll(self, partition_id: str, last_debug_time: float) -> float:
        self.check_workers()
        return super()._wait_for_next_poll(partition_id, last_debug_time)

    def check_workers(self) -> None:
        """Ask every agent-loop process, without waiting for answers. Raises RuntimeError for a dead one."""
        if time.monotonic() - self._asked_at < ASK_S:
            return
        self._asked_at = time.monotonic()
        pending: list[ray.ObjectRef] = []
        try:
            if self._asked:
                answered, pending = ray.wait(self._asked, num_returns=len(self._asked), timeout=0)
                ray.get(answered)
        except RayActorError as e:
            raise RuntimeError(f"an agent-loop process died, and its episodes with it: {e}") from None
        self._asked = pending or [worker.__ray_ready__.remote() for worker in self.workers]
