"""One role's stream as tokens: exact ids in, exact ids out.

Flows in: the messages of a chat as they happen, and the ids the policy sampled. Flows out: the ids of every next
prompt, and rows of ids, mask, log-probabilities and writers.
Invariant: the columns of a row have one length; sampled ids stay as sampled, whatever text they decode to; a prompt
is what a full render of the chat would give, but for those ids. A row goes on exactly while each prompt begins with
all ids before it; where the template cannot continue them, a new row begins and says why (`Restart`).

With `keep_thoughts` no row begins for thoughts, nor for the empty thought a prompt ended with: what was shown stays. A
generation that history cannot hold as sampled is then written behind what was shown before it, and the row begins anew.

Only new messages are rendered and tokenised. The whole chat is rendered when a row begins, and not even then when the
ids before differ by a known cut (OPENING_DROPPED, FOREIGN_END).
"""

from __future__ import annotations

from collections.abc import Sequence

from envace.chat.append_only import OF_THOUGHTS, Fit, Restart, Shape, shape_of, spelled, suffix
from envace.chat.calls import parse_assistant
from envace.chat.columns import Columns, LogRow
from envace.chat.renderer import Renderer
from envace.types import JSON, Message, Role, replace

HIDDEN = (Restart.CONTROL_SAMPLED, Restart.IDS_HIDDEN)  # a generation that history cannot hold as sampled


class TokenLog:
    """Append-only. `open`, then in turns `prompt_ids`, `add_sampled` and `add_results` or `add_user`."""

    def __init__(
        self, renderer: Renderer, tools: Sequence[dict[str, JSON]], shape: Shape, role: Role, keep: bool
    ):
        self._renderer, self._tools, self._shape, self.role = renderer, tuple(tools), shape, role
        self._keep = keep
        self._chat: list[Message | tuple[int, ...]] = []  # ids stand for what is read only when needed
        self._rows: list[Columns] = []
        self._thought = False  # a thought stands in the current row
        self._broken: Restart | None = None  # what the newest generation does to the next prompt
        self._awaits_sample = False
        self._said_at = 0  # ids of the row before the newest generation
        self._marks = [tuple(renderer.encode(mark)) for mark in ("<think>", "</think>")]

    @classmethod
    def open(
        cls,
        renderer: Renderer,
        messages: Sequence[Message],
        tools: Sequence[dict[str, JSON]] = (),
        role: Role = Role.ACT,
        keep_thoughts: bool = False,
    ) -> TokenLog:
        """A log whose first prompt is the full render of `messages`."""
        log = cls(renderer, tools, shape_of(renderer), role, keep_thoughts)
        log._chat += messages
        log._render(None)
        return log

    def prompt_ids(self) -> tuple[int, ...]:
        """The ids of the next prompt. Raises ValueError between a generation and what answers it."""
        if not self._awaits_sample:
            raise ValueError("the newest generation has no answer yet, so there is no next prompt")
        return tuple(self._rows[-1].ids)

    @property
    def restart(self) -> Restart | None:
        """Why the next prompt begins a new row; None where it continues the ids before it, or is the first."""
        return self._rows[-1].restart if self._rows[-1].prompt < 0 else None

    def rows(self) -> list[LogRow]:
        """Every row with a sampled token, in order. A prompt the policy never answered is none."""
        return [row.frozen() for row in self._rows if row.prompt >= 0]

    def add_sampled(
        self, ids: Sequence[int], logprobs: Sequence[float] = (), said: Message | None = None
    ) -> None:
        """One generation, exactly as sampled, its end token included where the policy wrote it.

        logprobs: one a token, or none when unknown. said: the message read from it; read from the ids when missing.
        Raises ValueError: lengths differ, out of turn, or neither ids nor message.
        """
        if not self._awaits_sample:
            raise ValueError("a generation must follow a prompt")
        if not ids and said is None:
            raise ValueError("a generation without ids needs the message that was read from it")
        self._said_at = len(self._rows[-1].ids)
        if ids:
            self._rows[-1].grow(ids, logprobs, self.role)
        said = self._note_thought(ids, said)
        self._broken, self._awaits_sample = self._fault(ids, said), False
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

    # --- steps --------------------------------------------------------------------------------------------

    def _add(self, kind: str, new: Sequence[Message]) -> None:
        if self._awaits_sample:
            raise ValueError("messages must follow a generation")
        self._chat += new
        fit, reason, cut = self._fit(kind), self._broken, 0
        if reason in (None, Restart.FOREIGN_END) and fit.reason:
            reason, cut = fit.reason, fit.trim
        if reason is None:
            self._rows[-1].grow([*self._closing(), *self._suffix(new)])
            self._awaits_sample = True
        elif reason is Restart.FOREIGN_END or (reason is Restart.OPENING_DROPPED and cut):
            self._carry(reason, cut or 0, self._suffix(new))
        elif not (self._keep and reason in HIDDEN and self._respell(reason, new)):
            self._render(reason)

    def _fit(self, kind: str) -> Fit:
        """What the template does to a step; where thoughts are kept, only what has nothing to do with them."""
        if not self._keep:
            return self._shape.fit(kind, self._thought)
        fits = (self._shape.fit(kind, thought) for thought in {False, self._thought})
        return next((fit for fit in fits if fit.reason and fit.reason not in OF_THOUGHTS), Fit())

    def _respell(self, reason: Restart, new: Sequence[Message]) -> bool:
        """Begin a row with what was shown, then the newest generation in the template's words. False where it has none.

        A template that ends its prompts with an empty thought has no place for another: this one thought is left out,
        so that the earlier ones stay.
        """
        said = self._read(self._chat[-1 - len(new)])
        tries = (spelled(self._renderer, self._shape.ends, m) for m in (said, replace(said, thinking="")))
        body = next((ids for ids in tries if ids is not None), None)
        if body is not None:
            shown = self._rows[-1].ids[: self._said_at]
            self._begin(reason, [*shown, *body, self._renderer.end_id, *self._suffix(new)])
        return body is not None

    def _suffix(self, new: Sequence[Message]) -> list[int]:
        return suffix(self._renderer, self._shape.ends, new)

    def _closing(self) -> list[int]:
        """The end token, where the policy did not write it."""
        return [] if self._rows[-1].ids[-1] == self._renderer.end_id else [self._renderer.end_id]

    def _carry(self, reason: Restart, cut: int, added: Sequence[int]) -> None:
        """Begin a row with the ids of the one before, less `cut` ids before the newest generation."""
        last = self._rows[-1]
        ids = last.ids[: last.sampled_at - cut] + last.ids[last.sampled_at :]
        if ids[-1] in self._renderer.end_ids:
            ids.pop()
        self._begin(reason, [*ids, self._renderer.end_id, *added])

    def _render(self, reason: Restart | None) -> None:
        """Begin a row with a full render of the chat."""
        self._chat = [self._read(entry) for entry in self._chat]
        self._thought = any(m.thinking for m in self._chat)
        self._begin(reason, self._renderer.render(self._chat, self._tools))

    def _begin(self, reason: Restart | None, ids: Sequence[int]) -> None:
        """A new row, unless the ids turn out to continue the one before: what a template may do it need not do."""
        known = self._rows[-1].ids if self._rows else []
        if not known or list(ids[: len(known)]) != known:
            self._rows.append(Columns(reason))
            known = []
        self._rows[-1].grow(ids[len(known) :])
        self._awaits_sample = True

    # --- generations --------------------------------------------------------------------------------------

    def _note_thought(self, ids: Sequence[int], said: Message | None) -> Message | None:
        """Remember that the row holds a thought; the message is read when that alone can tell."""
        marked = self._marked(ids)
        if marked and said is None:
            said = self._read(tuple(ids))
        self._thought |= marked or bool(said and said.thinking)
        return said

    def _marked(self, ids: Sequence[int]) -> bool:
        return any(_holds(ids, mark) for mark in self._marks)

    def _fault(self, ids: Sequence[int], said: Message | None) -> Restart | None:
        """Why history cannot show the generation as it was sampled, whatever the template."""
        if not ids:
            return Restart.IDS_HIDDEN
        closed = ids[-1] in self._renderer.end_ids
        if not self._shape.control_ids.isdisjoint(ids[:-1] if closed else ids):
            return Restart.CONTROL_SAMPLED
        if said is not None and not said.thinking and self._marked(ids) and not self._keep:
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
