"""A judge that asks a language model, and survives everything that model's servers can do.

Flows in: a task, the turn just answered and the transcript. Flows out: one `Verdict` an item.
Invariant: a verdict is yes or no only when a reply holds a JSON boolean, or exactly the word true, false, yes
or no, for that item. Anything else (silence, prose, a broken server) is unscored with a named reason; nothing
raises, nothing is guessed.

Reasons of unscored verdicts, each with a detail after ": ":
  judge_timeout      no complete reply within the deadline of one request
  judge_unreachable  no connection, or a server error (5xx, 408, 409, 425, 429)
  judge_malformed    a reply without a usable answer for the item
  judge_refused      the server or the model declined (other statuses, refusal, content filter); not retried
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from envace.judge.asking import chat_body, fenced, step_body, steps_of
from envace.judge.audit import Agreement, audited
from envace.judge.cache import Appended, Cache, content_key
from envace.judge.checklist import item_answer
from envace.judge.client import RETRIED_STATUS, Client
from envace.judge.endpoints import LONGEST_PAUSE_S, Patience
from envace.judge.options import Options, read_options
from envace.judge.verdicts import WORDS, Bill, Finding, JudgeFault, read_reply, read_single
from envace.params import JudgeParams
from envace.types import Answer, Item, Message, Task, Verdict

__all__ = ["LONGEST_PAUSE_S", "LLMJudge", "RETRIED_STATUS", "WORDS", "chat_body", "fenced"]
Write = Callable[[Sequence[Item], bool], bytes]  # the request for some items, with or without a schema
Read = Callable[[str, Sequence[Item]], list[Finding]]


class LLMJudge:
    """Asks OpenAI-compatible servers. Raises EnvironmentUnready at construction when its key is not set.

    `backoff_s` is the mean of the first pause after a fault; each next one doubles, with random spread.
    `bill` and `agreement` hold what all turns so far have cost and what the audited ones showed.
    """

    def __init__(self, params: JudgeParams | Options, *, backoff_s: float = 1.0):
        self.options = params if isinstance(params, Options) else read_options(params)
        self.options.key()
        self.client = Client(self.options, backoff_s)
        self.bill, self.audit_bill, self.agreement = Bill(), Bill(), Agreement()
        self.cached = 0  # questions that the cache has answered
        self.unkept = 0  # records that could not be written, as on a full disk; the verdicts stand
        folder = Path(self.options.cache) if self.options.cache else None
        self._cache = Cache(folder) if folder else None
        self._audits = Appended(folder / "audit.jsonl") if folder and self.options.audit else None

    async def judge_turn(self, task: Task, turn: int, messages: Sequence[Message]) -> list[Verdict]:
        """One verdict an item of `task.checklist[turn]`; the turn's cost is split over them."""
        items = task.checklist[turn]
        if not items:
            return []
        bill, started = Bill(), time.monotonic()
        try:
            found = await self._judge(self.options.mode, items, turn, messages, bill)
        finally:
            self.bill.add(bill)  # a turn whose episode is cancelled has cost too
        seconds = time.monotonic() - started
        await self._audit(task, turn, messages, found)
        return _verdicts(items, turn, found, bill.tokens, seconds)

    async def aclose(self) -> None:
        """Close the connections of the running loop."""
        await self.client.aclose()

    def cost(self) -> float:
        """What all requests so far have cost, audits too, at `price_in` and `price_out`."""
        o, bills = self.options, (self.bill, self.audit_bill)
        read, written = sum(b.tokens_in for b in bills), sum(b.tokens_out for b in bills)
        return (read * o.price_in + written * o.price_out) / 1e6

    async def _judge(
        self, mode: str, items: Sequence[Item], turn: int, messages: Sequence[Message], bill: Bill
    ) -> list[Finding]:
        if mode == "step_item":
            return await self._by_steps(items, turn, messages, bill)

        def write(asked: Sequence[Item], structured: bool) -> bytes:
            return chat_body(self.options, asked, turn, messages, structured=structured)

        return await self._settle(items, write, read_reply, bill)

    async def _by_steps(
        self, items: Sequence[Item], turn: int, messages: Sequence[Message], bill: Bill
    ) -> list[Finding]:
        """The paper's way: every step with every item. An item holds when it holds for any step; without a step
        it does not."""
        before, steps = steps_of(turn, messages)
        asked = [(item, now) for item in items for now in steps]
        results = await asyncio.gather(
            *(self._settle([i], partial(self._write_step, before, now), _read_one, bill) for i, now in asked)
        )
        found: dict[str, list[Verdict]] = {item.id: [] for item in items}
        for (item, _), [(answer, reason)] in zip(asked, results, strict=True):
            found[item.id].append(Verdict(item_id=item.id, turn=turn, answer=answer, reason=reason))
        return [_any_step(item, found[item.id]) for item in items]

    def _write_step(
        self, before: Sequence[Message], now: Sequence[Message], items: Sequence[Item], structured: bool
    ) -> bytes:
        return step_body(self.options, items[0], before, now, structured=structured)

    async def _settle(self, items: Sequence[Item], write: Write, read: Read, bill: Bill) -> list[Finding]:
        """The cache's answers, or attempts until every item is answered or they run out."""
        if self._cache is None:
            return await self._attempts(items, write, read, bill)
        key = content_key(write(items, True))
        found = self._cache.get(key, items)
        if found is not None:
            self.cached += 1
            return found
        found = await self._attempts(items, write, read, bill)
        self._keep(partial(self._cache.put, key, items, found))
        return found

    def _keep(self, write: Callable[[], None]) -> None:
        try:
            write()
        except OSError:
            self.unkept += 1

    async def _attempts(self, items: Sequence[Item], write: Write, read: Read, bill: Bill) -> list[Finding]:
        """Only items still open are asked again; an answer once given stays."""
        found: dict[str, Finding] = {}
        patience, left = Patience(self.options.attempts), list(items)
        for _ in range(self.options.attempts):
            again = True
            try:
                text = await self.client.ask(partial(write, left), patience, bill)
                new = read(text, left)
            except JudgeFault as fault:
                new, again = [(Answer.UNSCORED, str(fault))] * len(left), fault.again
            found.update((item.id, f) for item, f in zip(left, new, strict=True))
            left = [item for item in left if found[item.id][0] is Answer.UNSCORED]
            if not left or not again:
                break
        return [found[item.id] for item in items]

    async def _audit(
        self, task: Task, turn: int, messages: Sequence[Message], found: Sequence[Finding]
    ) -> None:
        """Judge a turn of the sample the other way too, and count how far the two agree."""
        o, items = self.options, task.checklist[turn]
        if not o.audit or not audited(
            o.audit_seed, o.audit, task.id, turn, chat_body(o, items, turn, messages)
        ):
            return
        other_mode = "turn" if o.mode == "step_item" else "step_item"
        other = await self._judge(other_mode, items, turn, messages, self.audit_bill)
        by_turn, by_steps = (other, found) if other_mode == "turn" else (found, other)
        self.agreement.count(by_turn, by_steps)
        if self._audits:
            answers = {"turn_answers": [a for a, _ in by_turn], "step_answers": [a for a, _ in by_steps]}
            record = {"task": task.id, "turn": turn, "items": [i.id for i in items], **answers}
            self._keep(partial(self._audits.append, record))


def _read_one(text: str, items: Sequence[Item]) -> list[Finding]:
    return [read_single(text, items[0])]


def _any_step(item: Item, verdicts: Sequence[Verdict]) -> Finding:
    if not verdicts:
        return Answer.NO, ""
    answer = item_answer(item, verdicts)
    reasons = (v.reason for v in verdicts if v.answer is Answer.UNSCORED)
    return answer, next(reasons, "") if answer is Answer.UNSCORED else ""


def _verdicts(
    items: Sequence[Item], turn: int, found: Sequence[Finding], tokens: int, seconds: float
) -> list[Verdict]:
    each, rest = divmod(tokens, len(items))
    return [
        Verdict(
            item_id=item.id,
            turn=turn,
            answer=answer,
            reason=reason,
            cost_tokens=each + (i < rest),
            seconds=seconds / len(items),
        )
        for i, (item, (answer, reason)) in enumerate(zip(items, found, strict=True))
    ]
