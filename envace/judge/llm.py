"""A judge that asks a language model.

A verdict is yes or no only where a reply says so. Anything else, silence, prose, a broken server, is unscored
with a named reason and a detail after ": "; nothing raises, nothing is guessed.

  judge_timeout      no complete reply within the deadline of one request
  judge_unreachable  no connection, or a server error (5xx, 408, 409, 425, 429)
  judge_malformed    a reply without a usable answer for the item
  judge_refused      the server or the model declined (other statuses, refusal, content filter); not retried
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from envace.config import JudgeParams
from envace.errors import ParamsError
from envace.io.addresses import shown
from envace.io.chat_client import ChatBill, ChatClient, ChatFault, ChatOptions, ChatReply
from envace.io.chat_reply import RETRIED_STATUS
from envace.judge.cache import AnswerCache, SharedLines, content_key
from envace.judge.checklist import item_answer
from envace.judge.llm_requests import read_step, read_turn, step_request, steps_of, turn_request
from envace.types import JSON, Answer, Audit, Item, Message, Task, Verdict, replace

Request = Callable[[Sequence[Item]], dict[str, JSON]]
"""The request for the items that are still open."""
Read = Callable[[str, Sequence[Item]], dict[str, Answer]]
ITEM_OPEN = "item_open"
"""The reason of a fault: a reply that answers some of its items, or none."""
REASONS = {
    "timeout": "judge_timeout",
    "unreachable": "judge_unreachable",
    "malformed": "judge_malformed",
    "too_large": "judge_malformed",
    ITEM_OPEN: "judge_malformed",
    "refused_by_model": "judge_refused",
}


def judge_reason(reason: str) -> str:
    """The judge's name for the reason of a client's fault."""
    if reason in REASONS:
        return REASONS[reason]
    status = int(reason.removeprefix("http_"))
    return "judge_unreachable" if status in RETRIED_STATUS or status >= 500 else "judge_refused"


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What a question brought: of each item its answer and, where it is unscored, the reason."""

    answers: dict[str, tuple[Answer, str]]
    bill: ChatBill
    cached: bool = False


class LLMJudge:
    """Asks OpenAI-compatible servers. Raises EnvironmentUnready at construction when its key is not set.

    `mode` is the method's `judge_mode`; `backoff_s` the mean of the first pause after a fault of a server.
    `bill` and `audit_bill` hold what all turns so far and their audits have cost.
    """

    def __init__(self, params: JudgeParams, mode: str = "turn", *, backoff_s: float = 1.0):
        for url, weight in params.endpoints.items():
            if not 0 < weight < 1e6:
                raise ParamsError(f"judge.endpoints.{shown(url)} is {weight!r}, must be a weight above 0")
        own = {params.base_url: 1.0} if params.base_url or not params.endpoints else {}
        options = ChatOptions(
            model=params.model,
            servers={**own, **params.endpoints},
            key_env=params.key_env,
            timeout_s=params.timeout_s,
            attempts=params.attempts,
            concurrency=params.concurrency,
            backoff_s=backoff_s,
            what="the judge",
        )
        self.params, self.mode, self.client = params, mode, ChatClient(options)
        self.bill, self.audit_bill = ChatBill(), ChatBill()
        self.cached = 0
        """Questions that the cache has answered."""
        self.unkept = 0
        """Records that could not be written, as on a full disk; the verdicts stand."""
        folder = Path(params.cache) if params.cache else None
        self._cache = AnswerCache(folder) if folder else None
        self._audits = SharedLines(folder / "audit.jsonl") if folder and params.audit else None

    async def judge_turn(self, task: Task, turn: int, messages: Sequence[Message]) -> list[Verdict]:
        """One verdict an item of `task.checklist[turn]`; the turn's cost is split over them."""
        items = task.checklist[turn]
        if not items:
            return []
        started = time.monotonic()
        verdicts = await self._judge(self.mode, items, turn, messages, self.bill)
        seconds = (time.monotonic() - started) / len(items)
        audits = await self._audit(task, turn, messages, verdicts)
        return [replace(v, seconds=seconds, audit=audit) for v, audit in zip(verdicts, audits, strict=True)]

    async def aclose(self) -> None:
        """Close the connections of the running loop."""
        await self.client.aclose()

    async def _judge(
        self, mode: str, items: Sequence[Item], turn: int, messages: Sequence[Message], bill: ChatBill
    ) -> list[Verdict]:
        """One request for the turn, or (`step_item`) one for each step and item: an item then holds when it
        holds for any step, and without a step it does not."""
        if mode == "turn":
            request = partial(turn_request, self.params, turn=turn, messages=messages)
            found = await self._find(items, request, read_turn, bill)
            shares = zip(items, found.bill.split(len(items)))
            return [
                self._verdict(i, turn, *found.answers[i.id], bill=share, cached=found.cached)
                for i, share in shares
            ]
        before, steps = steps_of(turn, messages)

        async def ask(item: Item, now: Sequence[Message]) -> Found:
            return await self._find(
                [item], lambda _: step_request(self.params, item, before, now), read_step, bill
            )

        by_step = await asyncio.gather(*(ask(item, now) for item in items for now in steps))
        n = len(steps)
        return [self._any_step(item, turn, by_step[k * n : (k + 1) * n]) for k, item in enumerate(items)]

    def _any_step(self, item: Item, turn: int, found: Sequence[Found]) -> Verdict:
        """An item's steps as one verdict, with the first step that held and why another one is unknown."""
        bill = ChatBill()
        for of_step in found:
            bill.add(of_step.bill)
        by_step = [of_step.answers[item.id] for of_step in found]
        answer = item_answer(item, [Verdict(item_id=item.id, turn=turn, answer=a) for a, _ in by_step])
        answer = answer if by_step else Answer.NO
        step = next((k for k, (a, _) in enumerate(by_step) if a is Answer.YES), None)
        why = next((reason for a, reason in by_step if a is Answer.UNSCORED), "")
        reason, failed = (why, "") if step is None else ("", why)
        cached = bool(found) and all(of_step.cached for of_step in found)
        verdict = self._verdict(item, turn, answer, reason, bill=bill, cached=cached)
        return replace(verdict, step=step, failed=failed)

    async def _find(self, items: Sequence[Item], request: Request, read: Read, bill: ChatBill) -> Found:
        """The cache's answers, or those of the model, which are kept where all items are answered.

        Only items still open are asked again; an answer once given stays.
        """
        key = content_key(request(items)) if self._cache else ""
        if self._cache and (known := self._cache.get(key, items)) is not None:
            self.cached += 1
            answers = {id_: (answer, "") for id_, answer in known.items()}
            return Found(answers=answers, bill=ChatBill(), cached=True)
        answers, left, own = {}, list(items), ChatBill()

        def check(reply: ChatReply) -> None:
            answers.update({id_: (answer, "") for id_, answer in read(reply.text, left).items()})
            left[:] = [item for item in left if item.id not in answers]
            if left:
                raise ChatFault(ITEM_OPEN)

        try:
            await self.client.ask(lambda: request(left), check, own)
        except ChatFault as fault:
            reason = judge_reason(fault.reason)
            for item in left:
                detail = f"no true or false for {item.id}" if fault.reason == ITEM_OPEN else fault.detail
                answers[item.id] = Answer.UNSCORED, f"{reason}: {detail}"
        finally:
            bill.add(own)  # a question whose episode is cancelled has cost too
        if self._cache:
            self._keep(partial(self._cache.put, key, {id_: answer for id_, (answer, _) in answers.items()}))
        return Found(answers=answers, bill=own)

    async def _audit(
        self, task: Task, turn: int, messages: Sequence[Message], verdicts: Sequence[Verdict]
    ) -> list[Audit | None]:
        """A turn of the sample judged the other way too; None for other turns."""
        p, items = self.params, task.checklist[turn]
        if not p.audit or not audited(p.audit_seed, p.audit, task.id, turn, messages):
            return [None] * len(verdicts)
        other_mode = "turn" if self.mode == "step_item" else "step_item"
        others = await self._judge(other_mode, items, turn, messages, self.audit_bill)
        by_turn, by_steps = (others, verdicts) if other_mode == "turn" else (verdicts, others)
        answers = {"turn_answers": [v.answer for v in by_turn], "step_answers": [v.answer for v in by_steps]}
        if self._audits:
            record = {"task": task.id, "turn": turn, "items": [i.id for i in items], **answers}
            self._keep(partial(self._audits.append, record))
        return [Audit(answer=v.answer, cost_tokens=v.cost_tokens, cost=v.cost) for v in others]

    def _keep(self, write: Callable[[], None]) -> None:
        try:
            write()
        except OSError:
            self.unkept += 1

    def _verdict(
        self, item: Item, turn: int, answer: Answer, reason: str, *, bill: ChatBill, cached: bool
    ) -> Verdict:
        faults: Counter[str] = Counter()
        for name, n in bill.faults.items():
            faults[judge_reason(name)] += n
        return Verdict(
            item_id=item.id,
            turn=turn,
            answer=answer,
            reason=reason,
            cost_tokens=bill.tokens,
            cost=bill.price(self.params.price_in, self.params.price_out),
            cached=cached,
            endpoint=bill.server,
            requests=bill.requests,
            retries=bill.retries,
            faults=dict(faults),
        )


def audited(seed: int, share: float, task_id: str, turn: int, messages: Sequence[Message]) -> bool:
    """Whether a turn is judged both ways: a hash of who said what, read as a number in [0, 1), is below
    `share`. Neither time nor order decides."""
    calls = ([(c.name, c.arguments) for c in m.calls] for m in messages)
    parts = (f"{m.role}\0{m.turn}\0{m.thinking}\0{m.content}\0{c}" for m, c in zip(messages, calls))
    drawn_by = f"{seed}\0{task_id}\0{turn}\0" + "\1".join(parts)
    digest = hashlib.sha256(drawn_by.encode("utf-8", "replace")).digest()
    return int.from_bytes(digest[:7], "big") / 2**56 < share
