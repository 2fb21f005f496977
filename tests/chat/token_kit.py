"""Renderers and the form in which a policy that writes as its template does would write a message."""

from functools import cache
from pathlib import Path

from envace.chat.calls import render_calls
from envace.chat.renderer import ByteRenderer, HFRenderer
from envace.chat.tokens import TokenLog
from envace.types import Message, ToolCall

ROOT = Path(__file__).parents[2]
TOOLS = [
    {"type": "function", "function": {"name": "get", "description": "d", "parameters": {"type": "object"}}}
]
KINDS = ("bytes", "tiny", "tiny thinking", "qwen3", "qwen3 thinking")


@cache
def tokenizer(template: str):
    from transformers import AutoTokenizer

    found = AutoTokenizer.from_pretrained(ROOT / "envace/policy/start")
    found.model_max_length = 1_000_000
    if template == "qwen3":
        found.chat_template = Path(__file__).with_name("qwen3.jinja").read_text(encoding="utf-8")
    return found


def renderer(kind: str):
    """bytes, or a template with thinking switched on or off; the vocabulary is the bundled one."""
    template, _, thinking = kind.partition(" ")
    return ByteRenderer() if kind == "bytes" else HFRenderer(tokenizer(template), bool(thinking))


def written(renderer, message: Message, end: bool = True) -> list[int]:
    """The ids of a message as the templates here show it."""
    gap = "\n" if isinstance(renderer, ByteRenderer) else "\n\n"
    thought = f"<think>\n{message.thinking}\n</think>{gap}" if message.thinking else ""
    calls = render_calls(message.calls)
    text = thought + message.content + ("\n" if calls and message.content else "") + calls
    return [*renderer.encode(text), *([renderer.end_id] if end else [])]


class Watched(TokenLog):
    """Remembers what was sampled behind each prompt that was written anew, and why it was: `[(None, [ids,
    ids])]`."""

    def __init__(self, *args, **more):
        super().__init__(*args, **more)
        self.rows = []

    def add_sampled(self, ids, said=None):
        restart, anew = self.restart, not self._sampled
        super().add_sampled(ids, said)
        if ids and anew:
            self.rows.append((restart, []))
        if ids:
            self.rows[-1][1].append(tuple(ids))

    @property
    def restarts(self):
        return [restart for restart, _ in self.rows]


def play(renderer, chat, tools=TOOLS, check=None) -> Watched:
    """Take a chat through a log, one answer or user message at a time; `check(log, chat so far)` at each
    prompt."""
    first = next(n for n, m in enumerate(chat) if m.role == "assistant")
    log, n = Watched(renderer, chat[:first], tools), first
    while n < len(chat):
        if check:
            check(log, chat[:n])
        ids = written(renderer, chat[n])
        log.add_sampled(ids, said=chat[n])
        end = next((k for k in range(n + 1, len(chat)) if chat[k].role == "assistant"), len(chat))
        answers = chat[n + 1 : end]
        if answers and answers[0].role == "tool":
            log.add_results(answers)
        elif answers:
            log.add_user(answers[0])
        n = end
    return log


def user(text: str) -> Message:
    return Message(role="user", content=text)


def said(text: str = "", *names: str, thinking: str = "") -> Message:
    calls = tuple(ToolCall(name=name, arguments={"id": "#a"}) for name in names)
    return Message(role="assistant", content=text, thinking=thinking, calls=calls)


def result(text: str = '{"ok": true}', name: str = "get") -> Message:
    return Message(role="tool", content=text, name=name)
