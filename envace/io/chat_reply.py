"""What an OpenAI-compatible server sends back, read in one place.

Flows in: the bytes and the status of an answer. Flows out: `ChatReply`, or `ChatFault` with a named reason.
Invariant: whatever a server sends becomes one of the two. A fault's own text holds nothing a server wrote;
what it wrote stands in `ChatFault.said`, with the key blanked.

Reasons: timeout, unreachable, too_large, malformed (no chat completion), refused_by_model (refusal or content
filter), http_<status>; `http_429` is a server's rate limit. A caller that reads a reply may raise further
ones.
"""

from __future__ import annotations

import email.utils
import json
import re
import time
from collections import Counter
from dataclasses import dataclass, field

from envace.types import JSON

MOST_TOKENS = 10**9
"""A server that states more for one call is lying."""
RETRIED_STATUS = frozenset({408, 409, 425, 429})
"""Asked again, as every status from 500 is."""
NO_CREDIT = frozenset({"insufficient_quota", "billing_not_active", "insufficient_credits"})
"""Errors of an account, which no further request mends."""


@dataclass(eq=False)
class ChatFault(Exception):
    """One request without a usable answer."""

    reason: str
    detail: str = ""
    again: bool = True
    """Asking again may help."""
    blamed: bool = False
    """The server is at fault, not the request or the model's words."""
    status: int = 0
    code: str = ""
    """The server's short name of the error, where it gives one."""
    said: str = field(default="", repr=False)
    wait_s: float = 0.0
    """How long the server asked to be left alone."""

    def __str__(self) -> str:
        return f"{self.reason}: {self.detail}" if self.detail else self.reason


@dataclass(frozen=True, slots=True, kw_only=True)
class TextCall:
    """A tool call as it was written; `arguments` is text that may not be JSON, {} where there was none."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatReply:
    """The first choice of a chat completion: `ChatReply(text="hi", finish="stop", tokens=12)`."""

    text: str
    thinking: str = ""
    calls: tuple[TextCall, ...] = ()
    finish: str = ""
    refused: bool = False
    """By the model itself, or by a content filter."""
    tokens_in: int | None = None
    """Tokens of the prompt; None where the server does not state them."""
    tokens_out: int | None = None
    tokens: int = 0
    """Of both, 0 where nothing is stated."""
    message: dict[str, JSON] = field(default_factory=dict)
    """The message as it came."""

    @property
    def truncated(self) -> bool:
        """The answer hit its token limit."""
        return self.finish == "length"


@dataclass(slots=True)
class ChatBill:
    """What asking has cost: one question, one turn, or a client's life; tokens as the servers state them."""

    requests: int = 0
    retries: int = 0
    """Attempts after a question's first."""
    tokens: int = 0
    tokens_in: int = 0
    tokens_out: int = 0
    seconds: float = 0.0
    """Summed over the requests that brought a completion."""
    answered: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    """Attempts without a usable answer, by reason."""
    server: str = ""
    """Host and port of the last one that brought a completion that is no refusal."""

    def note(self, reply: ChatReply, seconds: float = 0.0, server: str = "") -> None:
        """Add one completion."""
        self.tokens_in += reply.tokens_in or 0
        self.tokens_out += reply.tokens_out or 0
        self.tokens += reply.tokens
        self.seconds, self.answered = self.seconds + seconds, self.answered + 1
        self.server = server or self.server

    def add(self, other: ChatBill) -> None:
        """All of another bill."""
        for name in SUMMED:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.faults.update(other.faults)
        self.server = other.server or self.server

    def split(self, parts: int) -> list[ChatBill]:
        """The bill in so many shares, as even as whole numbers can be; the faults are the first one's."""
        shares = [ChatBill(server=self.server) for _ in range(parts)]
        for name in SUMMED:
            whole = getattr(self, name)
            each, rest = (whole / parts, 0) if isinstance(whole, float) else divmod(whole, parts)
            for k, share in enumerate(shares):
                setattr(share, name, each + (k < rest))
        shares[0].faults.update(self.faults)
        return shares

    def price(self, price_in: float, price_out: float) -> float:
        """At prices of a million tokens read and written."""
        return (self.tokens_in * price_in + self.tokens_out * price_out) / 1e6


SUMMED = ("requests", "retries", "tokens", "tokens_in", "tokens_out", "seconds", "answered")


def read_completion(content: str) -> ChatReply:
    """The first choice of an answer with status 200. Raises ChatFault, with the status an error names."""
    try:
        data = json.loads(content)
        error = data.get("error") if not data.get("choices") else None
        status = error.get("code") if isinstance(error, dict) else None
        if isinstance(status, int) and 400 <= status < 600:
            raise fault_of_status(status, content)
        choice = data["choices"][0]
        message, finish = dict(choice["message"]), choice.get("finish_reason")
        calls = tuple(_call(call) for call in message.get("tool_calls") or ())
    except (ValueError, RecursionError, KeyError, IndexError, TypeError, AttributeError):
        raise ChatFault("malformed", "not a chat completion", blamed=True) from None
    usage = data.get("usage") if isinstance(data.get("usage"), dict) else {}
    read, written = _count(usage.get("prompt_tokens")), _count(usage.get("completion_tokens"))
    return ChatReply(
        text=_text(message.get("content")),
        thinking=_text(message.get("reasoning_content") or message.get("reasoning")),
        calls=calls,
        finish=_text(finish),
        refused=bool(message.get("refusal")) or finish == "content_filter",
        tokens_in=read,
        tokens_out=written,
        tokens=_count(usage.get("total_tokens")) or (read or 0) + (written or 0),
        message=message,
    )


def fault_of_status(status: int, said: str, wait_s: float = 0.0) -> ChatFault:
    """What a status other than 200 means."""
    code, busy = error_code(said), status in RETRIED_STATUS or status >= 500
    again = busy and code not in NO_CREDIT
    name, detail = f"http_{status}", f"HTTP {status}"
    return ChatFault(name, detail, again, busy, status=status, code=code, said=said, wait_s=wait_s)


def error_code(said: str) -> str:
    """The server's own short name of an error; never its message, which may echo a key or the prompt."""
    try:
        error = json.loads(said)["error"]
        names = [error.get("code"), error.get("type")]
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError):
        return ""
    return next((n for n in names if isinstance(n, str) and re.fullmatch(r"[a-z_]{3,40}", n)), "")


def retry_after(value: str | None, longest_s: float) -> float:
    """Seconds a Retry-After header asks for, at most `longest_s`; 0 where it says nothing readable."""
    try:
        seconds = float(value or 0)
    except ValueError:
        try:
            seconds = email.utils.parsedate_to_datetime(value or "").timestamp() - time.time()
        except (ValueError, TypeError, OverflowError):
            return 0.0
    return min(max(seconds, 0.0), longest_s) if seconds == seconds else 0.0


def _text(content: JSON) -> str:
    """Text, the text of parts, or nothing."""
    if isinstance(content, list):
        parts = [part.get("text") for part in content if isinstance(part, dict)]
        return "".join(part for part in parts if isinstance(part, str))
    return content if isinstance(content, str) else ""


def _call(call: JSON) -> TextCall:
    """What is missing or of another kind is empty, so that the reader of calls names what is wrong."""
    call = call if isinstance(call, dict) else {}
    function = call["function"] if isinstance(call.get("function"), dict) else {}
    arguments = function.get("arguments")
    written = arguments if isinstance(arguments, str) else json.dumps(arguments or {})
    name, id_ = _text(function.get("name")), _text(call.get("id"))
    return TextCall(id=id_, name=name, arguments=written if written.strip() else "{}")


def _count(value: JSON) -> int | None:
    whole = isinstance(value, int) and not isinstance(value, bool)
    return value if whole and 0 <= value <= MOST_TOKENS else None
