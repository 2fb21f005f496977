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
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from envace.config import JudgeParams
from envace.judge.asking import chat_body, fenced, step_body, steps_of
from envace.judge.audit import Agreement, audited, said
from envace.judge.bill import Bill
from envace.judge.cache import Appended, Cache, content_key
from envace.judge.checklist import item_answer
from envace.judge.client import RETRIED_STATUS, Client
from envace.judge.endpoints import LONGEST_PAUSE_S, Patience
from envace.judge.options import Options, read_options
from envace.judge.verdicts import WORDS, Finding, JudgeFault, read_reply, read_single
from envace.types import Answer, Audit, Item, Message, Task, Verdict, replace

__all__ = ["LONGEST_PAUSE_S", "LLMJudge", "RETRIED_STATUS", "WORDS", "chat_body", "fenced"]
Write = Callable[[Sequence[Item], bool], bytes]  # the request for some items, with or without a schema
Read = Callable[[str, Sequence[Item]], list[Finding]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ruling:
    """What was found of one item, and its share of the cost."""

    finding: Finding
    bill: Bill
    cached: bool
    step: int | None = None  # the first for which it held
    failed: str = ""  # why another could not be judged


class LLMJudge:
    """Asks OpenAI-compatible servers. Raises EnvironmentUnready at construction when its key is not set.

    `mode` is the method's `judge_mode`; `Options` name their own. `backoff_s` is the mean of the first pause after a fault; each next one doubles, with random spread.
    `bill` and `agreement` hold what all turns so far have cost and what the audited ones showed.
    """

    def __init__(self, params: JudgeParams | Options, mode: str = "turn", *, backoff_s: float = 1.0):
        self.options = params if isinstance(params, Options) else read_options(params, mode)
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
        started = time.monotonic()
        found = await self._judge(self.options.mode, items, turn, messages, self.bill)
        seconds = time.monotonic() - started
        verdicts = [self._verdict(i, turn, ruling, seconds / len(items)) for i, ruling in zip(items, found)]
        audit = await self._audit(task, turn, messages, [ruling.finding for ruling in found])
        return [replace(v, audit=a) for v, a in zip(verdicts, audit, strict=True)] if audit else verdicts

    async def aclose(self) -> None:
        """Close the connections of the running loop."""
        await self.client.aclose()

    def cost(self) -> float:
        """What all requests so far have cost, audits too, at `price_in` and `price_out`."""
        return self._price(self.bill) + self._price(self.audit_bill)

    def _price(self, bill: Bill) -> float:
        return bill.price(self.options.price_in, self.options.price_out)

    async def _judge(
        self, mode: str, items: Sequence[Item], turn: int, messages: Sequence[Message], bill: Bill
    ) -> list[Ruling]:
        if mode == "step_item":
            return await self._by_steps(items, turn, messages, bill)

        def write(asked: Sequence[Item], structured: bool) -> bytes:
            return chat_body(self.options, asked, turn, messages, structured=structured)

        found, own, cached = await self._settle(items, write, read_reply, bill)
        return [Ruling(finding=f, bill=b, cached=cached) for f, b in zip(found, own.split(len(items)))]

    async def _by_steps(
        self, items: Sequence[Item], turn: int, messages: Sequence[Message], bill: Bill
    ) -> list[Ruling]:
        """The paper's way: every step with every item. An item holds when it holds for any step; without a step
        it does not."""
        before, steps = steps_of(turn, messages)
        writes = [partial(self._write_step, before, now) for now in steps]
        results = await asyncio.gather(
            *(self._settle([item], write, _read_one, bill) for item in items for write in writes)
        )
        n = len(steps)
        return [_any_step(item, turn, results[k * n : (k + 1) * n]) for k, item in enumerate(items)]

    def _write_step(
        self, before: Sequence[Message], now: Sequence[Message], items: Sequence[Item], structured: bool
    ) -> bytes:
        return step_body(self.options, items[0], before, now, structured=structured)

    async def _settle(self, items: Sequence[Item], write: Write, read: Read, bill: Bill) -> Settled:
        """The cache's answers, or attempts until every item is answered or they run out."""
        if self._cache is None:
            return await self._ask(items, write, read, bill)
        key = content_key(write(items, True))
        found = self._cache.get(key, items)
        if found is not None:
            self.cached += 1
            return found, Bill(), True
        settled = await self._ask(items, write, read, bill)
        self._keep(partial(self._cache.put, key, items, settled[0]))
        return settled

    def _keep(self, write: Callable[[], None]) -> None:
        try:
            write()
        except OSError:
            self.unkept += 1

    async def _ask(self, items: Sequence[Item], write: Write, read: Read, bill: Bill) -> Settled:
        own = Bill()
        try:
            return await self._attempts(items, write, read, own), own, False
        finally:
            bill.add(own)  # a question whose episode is cancelled has cost too

    async def _attempts(self, items: Sequence[Item], write: Write, read: Read, bill: Bill) -> list[Finding]:
        """Only items still open are asked again; an answer once given stays."""
        found: dict[str, Finding] = {}
        patience, left = Patience(self.options.attempts), list(items)
        for nth in range(self.options.attempts):
            again, before, reason = True, bill.requests, "judge_malformed"
            try:
                text = await self.client.ask(partial(write, left), patience, bill)
                new = read(text, left)
            except JudgeFault as fault:
                new, again = [(Answer.UNSCORED, str(fault))] * len(left), fault.again
                reason = fault.reason
            bill.retries += nth > 0 and bill.requests > before
            found.update((item.id, f) for item, f in zip(left, new, strict=True))
            left = [item for item in left if found[item.id][0] is Answer.UNSCORED]
            bill.faults.update([reason] if left else [])
            if not left or not again:
                break
        return [found[item.id] for item in items]

    async def _audit(
        self, task: Task, turn: int, messages: Sequence[Message], found: Sequence[Finding]
    ) -> list[Audit]:
        """Judge a turn of the sample the other way too, and count how far the two agree. Empty for other turns."""
        o, items = self.options, task.checklist[turn]
        if not o.audit or not audited(o.audit_seed, o.audit, task.id, turn, said(messages)):
            return []
        other_mode = "turn" if o.mode == "step_item" else "step_item"
        rulings = await self._judge(other_mode, items, turn, messages, self.audit_bill)
        other = [ruling.finding for ruling in rulings]
        by_turn, by_steps = (other, found) if other_mode == "turn" else (found, other)
        self.agreement.count(by_turn, by_steps)
        if self._audits:
            answers = {"turn_answers": [a for a, _ in by_turn], "step_answers": [a for a, _ in by_steps]}
            record = {"task": task.id, "turn": turn, "items": [i.id for i in items], **answers}
            self._keep(partial(self._audits.append, record))
        return [
            Audit(answer=r.finding[0], cost_tokens=r.bill.tokens, cost=self._price(r.bill)) for r in rulings
        ]

    def _verdict(self, item: Item, turn: int, ruling: Ruling, seconds: float) -> Verdict:
        answer, reason = ruling.finding
        bill = ruling.bill
        return Verdict(
            item_id=item.id, turn=turn, answer=answer, reason=reason, cost_tokens=bill.tokens, seconds=seconds,
            cost=self._price(bill), cached=ruling.cached, step=ruling.step, failed=ruling.failed,
            endpoint=bill.endpoint, requests=bill.requests, retries=bill.retries, faults=dict(bill.faults),
        )  # fmt: skip


Settled = tuple[list[Finding], Bill, bool]  # what was found, what it has cost, whether the cache knew it


def _read_one(text: str, items: Sequence[Item]) -> list[Finding]:
    return [read_single(text, items[0])]


def _any_step(item: Item, turn: int, settled: Sequence[Settled]) -> Ruling:
    """An item's steps as one ruling."""
    bill = Bill()
    for _, own, _ in settled:
        bill.add(own)
    found = [finding for [finding], _, _ in settled]
    step = next((k for k, (answer, _) in enumerate(found) if answer is Answer.YES), None)
    cached = bool(settled) and all(cached for _, _, cached in settled)
    failed = "" if step is None else _why_unscored(found)
    return Ruling(finding=_one_of(item, turn, found), bill=bill, cached=cached, step=step, failed=failed)


def _one_of(item: Item, turn: int, found: Sequence[Finding]) -> Finding:
    """Yes when any step is; without a step no."""
    if not found:
        return Answer.NO, ""
    answer = item_answer(item, [Verdict(item_id=item.id, turn=turn, answer=a) for a, _ in found])
    return answer, _why_unscored(found) if answer is Answer.UNSCORED else ""


def _why_unscored(found: Sequence[Finding]) -> str:
    return next((reason for answer, reason in found if answer is Answer.UNSCORED), "")
