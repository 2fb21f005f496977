"""A policy that says what a task's reference dialogue says, and answers calls as they were answered there."""

from __future__ import annotations

from envace.chat.calls import render_calls
from envace.chat.contract import render_result
from envace.chat.renderer import Renderer
from envace.errors import DataError
from envace.policy.protocol import GenerationRequest
from envace.policy.scripted import RulePolicy
from envace.types import Role, Task


class ReferencePolicy(RulePolicy):
    """`ReferencePolicy(task)`: what the checklist of a row makes of the row's own dialogue."""

    def __init__(self, task: Task, renderer: Renderer | None = None):
        """Raises DataError for a task without a reference dialogue."""
        super().__init__(renderer)
        if not task.reference:
            raise DataError(f"task {task.id} has no reference dialogue to follow")
        self.task = task
        self.said = [m for m in task.reference if m.role == "assistant"]

    def speak(self, request: GenerationRequest) -> str:
        """Raises DataError for a step or call that the dialogue does not have."""
        if request.role is Role.REHEARSE:
            same = [r for r in self.task.records if r.call == request.call]
            here = [r for r in same if r.turn == request.turn] or same
            if not here:
                raise DataError(f"task {self.task.id} has no recorded result of the call {request.call}")
            return render_result(here[0].result)
        if request.step >= len(self.said):
            raise DataError(f"the reference dialogue of task {self.task.id} ends before step {request.step}")
        m = self.said[request.step]
        thought = f"<think>\n{m.thinking}\n</think>\n\n" if m.thinking else ""
        return thought + "\n".join(part for part in (m.content, render_calls(m.calls)) if part)
