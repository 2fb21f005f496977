"""The scripted expert of the embedded worlds, as a policy.

Flows in: generation requests on tasks whose world is of a kind in `NEXT_STEP`. Flows out: what a perfect
agent writes.
Invariant: as ACT it decides on the observations shown and never reads the hidden world; only its REHEARSE
side does, which answers as the true world would.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from envace.chat.calls import render_calls
from envace.chat.contract import render_result
from envace.chat.renderer import Renderer
from envace.chat.transcript import seen_in_turn
from envace.errors import DataError
from envace.policy.protocol import GenerationRequest
from envace.policy.scripted import RulePolicy
from envace.types import JSON, Role, Task, ToolCall
from envace.worlds.desk.expert import next_step as desk_step
from envace.worlds.files.expert import next_step as files_step
from envace.worlds.registry import Seen, World, kind_of, make_world, world_data

# kind of world -> (goal of the turn, what was seen in it) -> calls to make, or the closing reply
NEXT_STEP: dict[str, Callable[[dict[str, JSON], Seen], list[ToolCall] | str]] = {
    "desk": desk_step,
    "files": files_step,
}


class ExpertPolicy(RulePolicy):
    """Plays ACT perfectly and REHEARSE truthfully, for one task or for many told apart by their id."""

    def __init__(self, tasks: Task | Iterable[Task], renderer: Renderer | None = None):
        """Raises DataError for a task of another world."""
        super().__init__(renderer)
        self.tasks = {t.id: t for t in ([tasks] if isinstance(tasks, Task) else tasks)}
        self._worlds: dict[str, World] = {}  # one an episode, so that later calls see earlier ones
        for task in self.tasks.values():
            if (kind := kind_of(task)) not in NEXT_STEP:
                known = ", ".join(NEXT_STEP)
                raise DataError(
                    f"the expert plays tasks of these worlds only: {known}; {task.id} has {kind or 'none'}"
                )

    def speak(self, request: GenerationRequest) -> str:
        task = self.tasks[request.task_id]
        if request.role is Role.REHEARSE and request.call is not None:
            if request.episode_id not in self._worlds:
                self._worlds[request.episode_id] = make_world(task)
            return render_result(self._worlds[request.episode_id].call(request.call).content)
        world = world_data(task)
        step = NEXT_STEP[world["kind"]](world["goals"][request.turn], seen_in_turn(request.messages))
        return step if isinstance(step, str) else render_calls(step)
