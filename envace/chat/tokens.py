"""One role's stream as tokens: exact ids in, exact ids out.

Sampled ids stay as sampled, whatever text they decode to; a prompt is what a full render of the chat would
give, but for those ids. A prompt begins with all ids before it, prompt and output; where the template cannot
continue them, it is written anew and says why (`Restart`). The training sequences of an episode end exactly
there.

With `keep_thoughts` no prompt is written anew for thoughts, nor for the empty thought a prompt ended with:
what was shown stays. A generation that history cannot hold as sampled is then written behind what was shown
before it.

Only new messages are rendered and tokenised. The whole chat is rendered when a prompt is written anew, and
not even then when the ids before differ by a known cut (OPENING_DROPPED, FOREIGN_END).
"""

from __future__ import annotations

from collections.abc import Sequence

from envace.chat.append_only import OF_THOUGHTS, Fit, Restart, Shape, shape_of, spelled, suffix
from envace.chat.calls import parse_assistant
from envace.chat.renderer import Renderer
from envace.types import JSON, Message, replace

HIDDEN = (Restart.CONTROL_SAMPLED, Restart.IDS_HIDDEN)  # a generation that history cannot hold as sampled


class TokenLog:
    """Append-only. In turns `prompt_ids`, `add_sampled` and `add_results` or `add_user`."""

    def __init__(
        self,
        renderer: Renderer,
        messages: Sequence[Message],
        tools: Sequence[dict[str, JSON]] = (),
        keep_thoughts: bool = False,
    ):
        """The first prompt is the full render of `messages`."""
        self._renderer, self._tools, self._keep = renderer, tuple(tools), keep_thoughts
        self._shape: Shape = shape_of(renderer)
        self._marks = [tuple(renderer.encode(mark)) for mark in ("<think>", "</think>")]
        self._chat: list[Message | tuple[int, ...]] = [*messages]
        """Ids stand for what is read only when needed."""
        self._ids: list[int] = []
        self._restart: Restart | None = None
        self._sampled = False  # whether a token was sampled since the ids were written anew
        self._sampled_at = 0  # ids before the newest sampled generation
        self._row_end = 0  # ids up to and with it, where the ids were not written anew since
        self._said_at = 0  # ids before the newest generation, sampled or told without ids
        self._thought = False  # a thought stands in the ids
        self._broken: Restart | None = None  # what the newest generation does to the next prompt
        self._awaits_sample = False
        self._render(None)

    def prompt_ids(self) -> tuple[int, ...]:
        """The ids of the next prompt. Raises ValueError between a generation and what answers it."""
        if not self._awaits_sample:
            raise ValueError("the newest generation has no answer yet, so there is no next prompt")
        return tuple(self._ids)

    @property
    def restart(self) -> Restart | None:
        """Why the next prompt was written anew; None where it continues the ids before it, or is the
        first."""
        return None if self._sampled else self._restart

    def add_sampled(self, ids: Sequence[int], said: Message | None = None) -> None:
        """One generation, exactly as sampled, its end token included where the policy wrote it.

        said: the message read from it; read from the ids when missing. Raises ValueError: out of turn, or
        neither ids nor message.
        """
        if not self._awaits_sample:
            raise ValueError("a generation must follow a prompt")
        if not ids and said is None:
            raise ValueError("a generation without ids needs the message that was read from it")
        self._said_at = len(self._ids)
        if ids:
            self._sampled, self._sampled_at = True, len(self._ids)
            self._ids += ids
            self._row_end = len(self._ids)
        marked = any(_holds(ids, mark) for mark in self._marks)
        if marked and said is None:
            said = self._read(tuple(ids))
        self._thought |= marked or bool(said and said.thinking)
        self._broken = self._fault(ids, said, marked)
        self._awaits_sample = False
        self._chat.append(said or tuple(ids))

    def add_results(self, messages: Sequence[Message]) -> None:
        """The results of a message's calls, all of them, in call order."""
        if not messages or any(m.role != "tool" for m in messages):
            raise ValueError("results must be one tool message or more")
        self._add("tool", messages)

    def add_user(self, message: Message) -> None:
        """A later user turn."""
        if message.role != "user":
            raise ValueError(f"a user turn cannot have the role {message.role!r}")
        self._add("user", [message])

    def _add(self, kind: str, new: Sequence[Message]) -> None:
        """Continue the ids where the template and the generation allow it, else write the prompt anew."""
        if self._awaits_sample:
            raise ValueError("messages must follow a generation")
        self._chat += new
        fit, reason, cut = self._fit(kind), self._broken, 0
        if reason in (None, Restart.FOREIGN_END) and fit.reason:
            reason, cut = fit.reason, fit.trim or 0
        end, ids = self._renderer.end_id, self._ids
        if reason is None:
            ids += [*([] if ids[-1] == end else [end]), *suffix(self._renderer, self._shape.ends, new)]
        elif reason is Restart.FOREIGN_END or (reason is Restart.OPENING_DROPPED and cut):
            ids = ids[: self._sampled_at - cut] + ids[self._sampled_at :]
            if ids[-1] in self._renderer.end_ids:
                ids.pop()
            self._begin(reason, [*ids, end, *suffix(self._renderer, self._shape.ends, new)])
        elif not (self._keep and reason in HIDDEN and self._respell(reason, new)):
            self._render(reason)
        self._awaits_sample = True

    def _fit(self, kind: str) -> Fit:
        """What the template does to a step; where thoughts are kept, only what has nothing to do with
        them."""
        if not self._keep:
            return self._shape.fits[kind, self._thought]
        fits = (self._shape.fits[kind, thought] for thought in {False, self._thought})
        return next((fit for fit in fits if fit.reason and fit.reason not in OF_THOUGHTS), Fit())

    def _respell(self, reason: Restart, new: Sequence[Message]) -> bool:
        """Write anew what was shown, then the newest generation in the template's words. False where it has
        none.

        A template that ends its prompts with an empty thought has no place for another: this one thought is
        left out, so that the earlier ones stay.
        """
        renderer, ends = self._renderer, self._shape.ends
        said = self._read(self._chat[-1 - len(new)])
        body = spelled(renderer, ends, said)
        if body is None:
            body = spelled(renderer, ends, replace(said, thinking=""))
        if body is not None:
            shown = self._ids[: self._said_at]
            self._begin(reason, [*shown, *body, renderer.end_id, *suffix(renderer, ends, new)])
        return body is not None

    def _render(self, reason: Restart | None) -> None:
        """Write the prompt anew as a full render of the chat."""
        chat = [self._read(entry) for entry in self._chat]
        self._chat = [*chat]
        self._thought = any(m.thinking for m in chat)
        self._begin(reason, self._renderer.render(chat, self._tools))
        self._awaits_sample = True

    def _begin(self, reason: Restart | None, ids: list[int]) -> None:
        """Other ids, unless they turn out to continue those before: what a template may do it need not do.

        A prompt whose generation told no ids is in no row, so what follows need not continue it."""
        before = self._ids[: self._row_end or None]
        if not before or ids[: len(before)] != before:
            self._restart, self._sampled, self._row_end = reason, False, 0
        self._ids = ids

    def _fault(self, ids: Sequence[int], said: Message | None, marked: bool) -> Restart | None:
        """Why history cannot show the generation as it was sampled, whatever the template."""
        if not ids:
            return Restart.IDS_HIDDEN
        closed = ids[-1] in self._renderer.end_ids
        if not self._shape.control_ids.isdisjoint(ids[:-1] if closed else ids):
            return Restart.CONTROL_SAMPLED
        if said is not None and not said.thinking and marked and not self._keep:
            return Restart.THOUGHTS_DROPPED  # an empty thought: no message can hold it
        return Restart.FOREIGN_END if closed and ids[-1] != self._renderer.end_id else None

    def _read(self, entry: Message | tuple[int, ...]) -> Message:
        if isinstance(entry, Message):
            return entry
        reply = parse_assistant(self._renderer.decode(entry))
        return Message(role="assistant", content=reply.content, thinking=reply.thinking, calls=reply.calls)


def _holds(ids: Sequence[int], part: tuple[int, ...]) -> bool:
    """Whether `part` stands in `ids` as one run."""
    if len(part) == 1:
        return part[0] in ids
    return any(ids[i] == part[0] and tuple(ids[i : i + len(part)]) == part for i in range(len(ids)))
