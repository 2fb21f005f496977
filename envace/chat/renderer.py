"""Chat -> token ids and back.

Text inside a message never becomes a control token, whoever wrote it. A renderer keeps no state between
calls, so one can serve any number of episodes.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from envace.chat.calls import render_calls
from envace.chat.text import dumps, sanitise
from envace.errors import EnvironmentUnready
from envace.types import JSON, Message

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_TAGS = ("think", "tool_call", "tool_response", "execution_result")  # words of the chat, no control tokens
_MARKUP = {f"<{slash}{tag}>" for tag in _TAGS for slash in ("", "/")}


class Renderer(Protocol):
    """A chat template with its tokenizer."""

    end_ids: frozenset[int]
    """Tokens that close an assistant turn."""
    end_id: int
    """The one the chat template writes."""

    def render(self, messages: Sequence[Message], tools: Sequence[dict[str, JSON]] = ()) -> list[int]:
        """Chat -> ids, generation prompt at the end."""
        ...

    def encode(self, text: str) -> list[int]: ...

    def decode(self, ids: Sequence[int]) -> str:
        """End-of-turn tokens are dropped; <think>, <tool_call> and the like are kept."""
        ...


def as_dicts(messages: Sequence[Message], *, arguments_as_text: bool = False) -> list[dict[str, JSON]]:
    """Messages in the OpenAI form. Call ids are positions, so the same chat always gives the same dicts."""
    dicts: list[dict[str, JSON]] = []
    waiting: list[str] = []
    n_calls = 0
    for message in messages:
        entry: dict[str, JSON] = {"role": message.role, "content": sanitise(message.content)}
        if message.thinking:
            entry["reasoning_content"] = sanitise(message.thinking)
        if message.calls:
            waiting = [f"call_{n_calls + i}" for i in range(len(message.calls))]
            n_calls += len(waiting)
            entry["tool_calls"] = []
            for id_, call in zip(waiting, message.calls):
                arguments = dumps(call.arguments) if arguments_as_text else call.arguments
                function = {"name": call.name, "arguments": arguments}
                entry["tool_calls"].append({"id": id_, "type": "function", "function": function})
        if message.role == "tool":
            entry["name"] = message.name
            entry["tool_call_id"] = waiting.pop(0) if waiting else "call_unknown"
        dicts.append(entry)
    return dicts


class HFRenderer:
    """A transformers fast tokenizer and its chat template."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, enable_thinking: bool = False):
        self.tokenizer, self.enable_thinking = tokenizer, enable_thinking
        known = {t.content: i for i, t in tokenizer.added_tokens_decoder.items()}
        ends = (tokenizer.eos_token, "<|im_end|>", "<|endoftext|>")
        self.end_ids = frozenset(known[t] for t in ends if t in known)
        self.end_id = known.get("<|im_end|>", tokenizer.eos_token_id)
        special = {t.content for t in tokenizer.added_tokens_decoder.values() if t.special} - _MARKUP
        special |= {t for t in tokenizer.all_special_tokens if t not in _MARKUP}
        longest_first = sorted((t for t in special if t), key=len, reverse=True)
        self._control = re.compile("|".join(map(re.escape, longest_first))) if longest_first else None
        self._splits_thinking = "reasoning_content" in str(tokenizer.chat_template)

    @classmethod
    def of(cls, folder: str | Path, enable_thinking: bool = False) -> HFRenderer:
        """As a folder of weights says. Raises EnvironmentUnready when it holds no tokenizer."""
        from transformers import AutoTokenizer

        try:
            tokenizer = AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
        except (OSError, ValueError) as e:
            raise EnvironmentUnready(f"{folder} holds no tokenizer: {e}") from e
        return cls(tokenizer, enable_thinking)

    def render(self, messages: Sequence[Message], tools: Sequence[dict[str, JSON]] = ()) -> list[int]:
        text = self.tokenizer.apply_chat_template(
            [self._entry(d) for d in as_dicts(messages)],
            tools=[self._plain(t) for t in tools] or None,
            add_generation_prompt=True,
            tokenize=False,
            enable_thinking=self.enable_thinking,
        )
        ids: list[int] = self.tokenizer.encode(str(text), add_special_tokens=False)
        return ids

    def encode(self, text: str) -> list[int]:
        ids: list[int] = self.tokenizer.encode(sanitise(text), add_special_tokens=False)
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        kept = [i for i in ids if i not in self.end_ids]
        text = self.tokenizer.decode(kept, skip_special_tokens=False, clean_up_tokenization_spaces=False)
        return str(text)

    def _entry(self, entry: dict[str, JSON]) -> dict[str, JSON]:
        entry = {key: self._plain(value) for key, value in entry.items()}
        if not self._splits_thinking and (thinking := entry.pop("reasoning_content", "")):
            entry["content"] = f"<think>\n{thinking}\n</think>\n\n{entry['content']}"
        return entry

    def _plain(self, value: JSON) -> JSON:
        """Break every control token that stands in text, at any depth, by a space after its first
        character."""
        if isinstance(value, str):
            value = sanitise(value)
            return self._control.sub(lambda m: f"{m[0][0]} {m[0][1:]}", value) if self._control else value
        if isinstance(value, dict):
            return {self._plain(k): self._plain(v) for k, v in value.items()}
        return [self._plain(v) for v in value] if isinstance(value, (list, tuple)) else value


class ByteRenderer:
    """One id per UTF-8 byte and two control ids that no text can hold. For scripted policies and tests."""

    START, END = 256, 257
    end_id, end_ids = END, frozenset({END})

    def render(self, messages: Sequence[Message], tools: Sequence[dict[str, JSON]] = ()) -> list[int]:
        ids: list[int] = []
        for tool in tools:
            ids += [self.START, *self.encode(f"tool\n{dumps(tool)}"), self.END]
        for message in messages:
            thinking = f"<think>\n{message.thinking}\n</think>\n" if message.thinking else ""
            calls = render_calls(message.calls)
            body = thinking + message.content + ("\n" if calls and message.content else "") + calls
            ids += [self.START, *self.encode(f"{message.role}\n{body}"), self.END]
        return [*ids, self.START, *self.encode("assistant\n")]

    def encode(self, text: str) -> list[int]:
        return list(sanitise(text).encode())

    def decode(self, ids: Sequence[int]) -> str:
        return bytes(i for i in ids if i < 256).decode(errors="replace")
