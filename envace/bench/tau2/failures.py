"""How a dialogue of tau² ended -> who caused it.

Flows in: tau²'s termination word and, where a dialogue died of an exception, its type, text and traceback.
Flows out: a status and a named cause.
Invariant: only what is known to be the agent's is an agent failure: a call that is no JSON, an empty message,
a conversation longer than its context. Every other exception, and every word this file does not know, is a
failure of the infrastructure and stops the headline. A grader that raises because what it looks for is not in
the database the agent left behind says that the agent did not put it there.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from envace.types import SampleStatus

GRADED = {"user_stop", "agent_stop"}
AGENT_ENDINGS = {  # tau² counts these 0
    "too_many_errors": "too many failed calls",
    "agent_error": "broke the communication protocol",
    "context_window_exceeded": "context overflow",
    "judge_stop": "stuck in a loop",
}
INFRA_ENDINGS = {"user_error", "timeout", "unexpected_error"}  # tau² counts these 0
BUDGET = "max_steps"  # scored as it stands: 0

FRAME = re.compile(r'File "[^"]*?\btau2/([a-z_]+)/([a-z_]+)\.py", line \d+, in [^\n]+\n\s*(.*)')
OVERFLOW = re.compile(r"context.?(length|window)|maximum context|context_length_exceeded", re.I)
EMPTY = re.compile(r"must have (either )?content or tool.?calls", re.I)


@dataclass(frozen=True, slots=True, kw_only=True)
class DialogueCause:
    """`DialogueCause(role="agent", kind="malformed call", text="JSONDecodeError: Expecting value: ...")`."""

    role: str
    """agent | user | judge | harness"""
    kind: str
    """malformed call | empty message | context overflow | asserted state is absent | "" (anything else)"""
    text: str

    @property
    def verdict(self) -> tuple[SampleStatus, str]:
        """Status and named cause."""
        agents = self.role == "agent" and self.kind
        status = SampleStatus.AGENT_FAILURE if agents else SampleStatus.INFRA_FAILURE
        return status, f"{self.role}: {self.kind or self.text}"


def cause_of(error_type: str, error: str, traceback: str) -> DialogueCause:
    """What an exception that ended a dialogue says."""
    frames: list[tuple[str, str, str]] = FRAME.findall(traceback)
    first = error.strip().splitlines()[0] if error.strip() else ""
    kind = _kind(error_type, error, frames)
    return DialogueCause(role=_role(frames), kind=kind, text=f"{error_type}: {first}"[:240])


def _role(frames: list[tuple[str, str, str]]) -> str:
    """Who was being asked: the outermost part of tau² that is a participant or a grader."""
    for package, _module, source in frames:
        if package == "evaluator":
            if any("run_env_assertion" in line for *_, line in frames):
                return "agent"
            return "judge" if any(m == "evaluator_nl_assertions" for _, m, _ in frames) else "harness"
        if package in ("agent", "user"):
            return package
        if source.startswith(("agent_msg.validate", "user_msg.validate")):
            return source.split("_")[0]
    return "harness"


def _kind(error_type: str, error: str, frames: list[tuple[str, str, str]]) -> str:
    _, module, source = frames[-1] if frames else ("", "", "")
    if error_type == "ValueError" and any("run_env_assertion" in line for *_, line in frames):
        return "asserted state is absent"
    if error_type in ("JSONDecodeError", "ValidationError", "TypeError"):
        reads_call = module == "llm_utils" and ("arguments" in source or "ToolCall" in source)
        return "malformed call" if reads_call else ""
    if error_type in ("ValueError", "AssertionError"):
        return "empty message" if EMPTY.search(error) else ""
    overflow = error_type == "BadRequestError" and OVERFLOW.search(error)
    return "context overflow" if overflow or error_type == "ContextWindowExceededError" else ""
