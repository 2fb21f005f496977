"""Dialogues that show what a chat template does, and the check that two renderers show the same prompts.

The dialogues hold plain, thoughtful and mixed assistant messages, one call and several, a result nobody
called for, and later user turns; every assistant message is preceded by a prompt.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from envace.chat.renderer import Renderer
from envace.errors import ParamsError
from envace.types import JSON, Message, ToolCall

TOOL: dict[str, JSON] = {
    "type": "function",
    "function": {
        "name": "look",
        "description": "Looks.",
        "parameters": {"type": "object", "properties": {"id": {"type": "string"}}, "required": ["id"]},
    },
}
Render = Callable[[Sequence[Message], Sequence[dict[str, JSON]]], Sequence[int]]


def probe_dialogues() -> list[list[Message]]:
    """Without thoughts, with a thought in every message, and with one in every other (both ways round)."""
    return [_dialogue(thinks) for thinks in (".", "x", "x.", ".x")]


def prompts_in(chat: Sequence[Message]) -> list[int]:
    """Lengths n for which chat[:n] is a prompt: an assistant message follows."""
    return [n for n, message in enumerate(chat) if message.role == "assistant"]


def check_same_prompts(training: Renderer, evaluation: Render, name: str = "") -> None:
    """Hold what evaluation shows a policy against what training shows it, thoughts above all.

    evaluation: (messages, tools) -> ids, as the evaluated policy is really given them; a harness that sends
    no thoughts back is a function that drops them first. Raises ParamsError at the first probe that differs.
    """
    of = f" of {name}" if name else ""
    for chat in probe_dialogues():
        for n in prompts_in(chat):
            if list(training.render(chat[:n], [TOOL])) != list(evaluation(chat[:n], [TOOL])):
                what = "thoughts" if any(m.thinking for m in chat[:n]) else "prompts"
                raise ParamsError(
                    f"evaluation{of} shows the policy other {what} than training (message {n} of a probe): "
                    "give both the same chat template and the same rollout.enable_thinking"
                )


def _dialogue(thinks: str) -> list[Message]:
    """Two user turns and the begin of a third. `thinks` is repeated: an assistant message thinks where x
    stands."""
    chat = [Message(role="system", content="Help."), Message(role="user", content="first wish")]

    def say(content: str, *names: str, results: Sequence[str] = ()) -> None:
        i = len(prompts_in(chat))
        thought = f"musing{i}" if thinks[i % len(thinks)] == "x" else ""
        calls = tuple(ToolCall(name=name, arguments={"id": f"#{i}"}) for name in names)
        chat.append(Message(role="assistant", content=content, thinking=thought, calls=calls))
        answers = results or names
        chat.extend(Message(role="tool", content=f'{{"of": "{name}"}}', name=name) for name in answers)

    say("", "look")
    say("Both at once.", "look", "find")
    say("unreadable", results=("",))  # an answer to a message that held no call
    say("done")
    for wish in ("second wish", "third wish"):
        chat.append(Message(role="user", content=wish))
        say("", "find", "look", "find")
        say("done again")
    return chat
