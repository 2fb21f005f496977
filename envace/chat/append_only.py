"""Whether a chat template only ever appends, and what new messages add to a chat.

A kind of step is called appending only when, in every probe dialogue, the full render of the longer chat
begins with the render of the shorter one and ends with the suffix; every other kind has a named reason.

Qwen3's template drops the thoughts of earlier turns as soon as the user speaks again, and with thinking
switched off its history leaves out the empty thought that its prompts end with.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import takewhile
from weakref import WeakKeyDictionary

from jinja2 import TemplateError

from envace.chat.probes import TOOL, probe_dialogues, prompts_in
from envace.chat.renderer import Renderer
from envace.types import Message, ToolCall


class Restart(StrEnum):
    """Why the next prompt does not continue the ids before it, so that a new row begins."""

    THOUGHTS_DROPPED = "thoughts_dropped"  # the template leaves thoughts of the row out of history
    OPENING_DROPPED = "opening_dropped"  # history leaves out words the prompt ended with (an empty thought)
    HISTORY_REWRITTEN = "history_rewritten"  # the template changes something else of what came before
    UNPROBED = "unprobed"  # the template refuses a probe dialogue, so nothing is known about it
    FOREIGN_END = "foreign_end"  # the turn was closed by another token than the template writes
    CONTROL_SAMPLED = "control_sampled"  # a control token inside the generation; history shows it as text
    IDS_HIDDEN = "ids_hidden"  # the policy told no ids


OF_THOUGHTS = (Restart.THOUGHTS_DROPPED, Restart.OPENING_DROPPED)  # what `old_thoughts: keep` does not follow
STEPS = {
    ("tool", False): "tool results",
    ("tool", True): "tool results after a thought",
    ("user", False): "a user turn",
    ("user", True): "a user turn after a thought",
}
"""(role of the new messages, whether a thought stands in the row so far) -> its name."""


@dataclass(frozen=True, slots=True)
class Fit:
    """What the template does to one kind of step."""

    reason: Restart | None = None
    """None when it appends."""
    trim: int | None = None
    """With OPENING_DROPPED, how many ids at the end of a prompt history leaves out; None when cutting them is
    not enough."""


@dataclass(frozen=True, slots=True)
class Shape:
    """What the probes found."""

    fits: dict[tuple[str, bool], Fit]
    """By the keys of `STEPS`."""
    ends: int
    """End tokens up to and with the assistant message that `suffix` builds on."""
    control_ids: frozenset[int]
    """Ids that no text of a message can become."""


def described(shape: Shape, old_thoughts: str) -> str:
    """What an episode's prompts will do, in one line for a log; `old_thoughts` is the method's switch."""
    found: dict[str, list[str]] = {}
    for step, fit in shape.fits.items():
        found.setdefault(f"new row ({fit.reason})" if fit.reason else "appends", []).append(STEPS[step])
    whole = "; ".join(f"{what}: {', '.join(named)}" for what, named in found.items())
    kept = old_thoughts == "keep" and any(fit.reason in OF_THOUGHTS for fit in shape.fits.values())
    return f"chat template: {whole}" + ("; old_thoughts keep appends all the same" if kept else "")


_ASK = Message(role="user", content="a")
_found: WeakKeyDictionary[Renderer, dict[tuple[str, bool | None], Shape]] = WeakKeyDictionary()


def suffix(renderer: Renderer, ends: int, new: Sequence[Message]) -> list[int]:
    """Ids behind the end token of an assistant message when `new` follows it, up to the next generation
    prompt.

    Only `new` and a stub of a few tokens are rendered; `ends` is `Shape.ends`. No token reaches across a
    control token, so cutting there gives the ids a full render has.
    """
    ids = renderer.render([_ASK, _stub(new), *new])
    return ids[_end_at(renderer, ids, ends) + 1 :]


def spelled(renderer: Renderer, ends: int, message: Message) -> list[int] | None:
    """An assistant message as the template writes it while it is the newest, up to but without its end token;
    thoughts stand in it. None where the template does not write it behind the words a prompt ends with."""
    opened, whole = renderer.render([_ASK]), renderer.render([_ASK, message])
    written = whole[len(opened) : _end_at(renderer, whole, ends)]
    return written if whole[: len(opened)] == opened else None


def shape_of(renderer: Renderer) -> Shape:
    """The shape of a renderer's template, found once for a tokenizer, template and thinking switch (tenths of
    a second)."""
    tokenizer = getattr(renderer, "tokenizer", renderer)
    key = (str(getattr(tokenizer, "chat_template", "")), getattr(renderer, "enable_thinking", None))
    known = _found.setdefault(tokenizer, {})
    if key not in known:
        ends = renderer.render([_ASK, _stub(())]).count(renderer.end_id)
        try:
            fits = _fits(renderer, ends)
        except (TemplateError, TypeError):
            fits = dict.fromkeys(STEPS, Fit(Restart.UNPROBED))
        known[key] = Shape(fits, ends, _control_ids(renderer))
    return known[key]


def _fits(renderer: Renderer, ends: int) -> dict[tuple[str, bool], Fit]:
    """One fit for all probed steps of a kind: the first that does not append; a trim only when all agree."""
    probed: dict[tuple[str, bool], list[Fit]] = {step: [] for step in STEPS}
    for chat in probe_dialogues():
        prompts = prompts_in(chat)
        for n, m in zip(prompts, prompts[1:]):
            thought = any(message.thinking for message in chat[:m])
            probed[chat[n + 1].role, thought].append(_fit(renderer, ends, chat[:m], n))
    fits = {}
    for step, found in probed.items():
        broken = next((fit for fit in found if fit.reason), Fit())
        fits[step] = broken if len(set(found)) == 1 else Fit(broken.reason)
    return fits


def _fit(renderer: Renderer, ends: int, chat: Sequence[Message], n: int) -> Fit:
    """How the prompt of `chat` continues the prompt of chat[:n]; chat[n] is the assistant message between."""
    before, after = renderer.render(chat[:n], [TOOL]), renderer.render(chat, [TOOL])
    text_before, text_after = renderer.decode(before), renderer.decode(after)
    *old, newest = (message.thinking for message in chat[: n + 1])
    if newest not in text_after or any(t in text_before and t not in text_after for t in old):
        return Fit(Restart.THOUGHTS_DROPPED)
    tail = [renderer.end_id, *suffix(renderer, ends, chat[n + 1 :])]
    same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(before, after)))
    said = after[same : len(after) - len(tail)]
    if after[-len(tail) :] != tail or renderer.end_id in (*before[same:], *said):
        return Fit(Restart.HISTORY_REWRITTEN)
    if same == len(before):
        return Fit()
    # A thought that history still opens, in other words, is more than the cut can undo.
    whole = "</think>" not in renderer.decode(said)
    return Fit(Restart.OPENING_DROPPED, len(before) - same if whole else None)


def _end_at(renderer: Renderer, ids: Sequence[int], n: int) -> int:
    """Index of the n-th end token; -1 for none, of a template without one."""
    return [-1, *(at for at, token in enumerate(ids) if token == renderer.end_id)][n]


def _stub(new: Sequence[Message]) -> Message:
    """The assistant message before `new`: one call for each result."""
    calls = tuple(ToolCall(name=m.name or "look", arguments={}) for m in new if m.role == "tool")
    return Message(role="assistant", content="" if calls else "b", calls=calls)


def _control_ids(renderer: Renderer) -> frozenset[int]:
    """End tokens, and special tokens that a message's text does not become however it spells them."""
    tokenizer = getattr(renderer, "tokenizer", None)
    if tokenizer is None:  # such a renderer opens every prompt with its one other control id
        return renderer.end_ids | {renderer.render([])[0]}
    special = {i: t.content for i, t in tokenizer.added_tokens_decoder.items() if t.special}
    usual = renderer.render([_ASK])
    written = {i: renderer.render([Message(role="user", content=text)]) for i, text in special.items()}
    return renderer.end_ids | {i for i, ids in written.items() if ids.count(i) <= usual.count(i)}
