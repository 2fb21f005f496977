"""Calls to the annotating model, on the project's chat client.

A call brings a completion or a named fault; a server that no further call can mend raises EnvironmentUnready
once. Faults: timeout, unreachable, http_<status>, no_completion, too_large, refused_by_model,
refused_<status>[_<code>]; `refused*` are final, the others may pass."""

from __future__ import annotations

import asyncio
import time
from types import TracebackType

from envace.data.annotate.arguments import AnnotateOptions
from envace.data.annotate.journal import CallRecord
from envace.data.annotate.questions import Question
from envace.errors import EnvironmentUnready
from envace.io.chat_client import ChatBill, ChatClient, ChatFault, ChatOptions
from envace.io.chat_reply import NO_CREDIT
from envace.types import JSON

NO_ACCESS = {
    401: "takes no calls with this key",
    403: "does not allow these calls",
    402: "wants to be paid first",
}
ECHO = 2000
"""Characters; what is longer than a message of an error repeats the request."""
LONGEST_WAIT_S = 900.0
"""That a server may ask for: a batch has more patience than a judge."""


class Stopped(Exception):
    """The run was told to stop while a call was waiting for its turn."""


class AnnotateClient:
    """`async with AnnotateClient(options, stop) as client: await client.ask(question)`

    `stop` ends waits between requests, never a request.
    """

    def __init__(self, options: AnnotateOptions, stop: asyncio.Event, *, backoff_s: float = 1.0):
        self.options, self._stop, self._silent = options, stop, 0
        self.answered = False
        """Whether any call has brought a completion."""
        asked = ChatOptions(
            model=options.model,
            servers={options.base_url: 1.0},
            key_env=options.key_env,
            timeout_s=options.timeout,
            attempts=options.attempts,
            concurrency=options.concurrency,
            backoff_s=backoff_s,
            longest_wait_s=LONGEST_WAIT_S,
            what="the annotating model",
        )
        self._chat = ChatClient(asked, sleep=self._sleep)

    async def __aenter__(self) -> AnnotateClient:
        return self

    async def __aexit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        await self._chat.aclose()

    async def ask(self, question: Question) -> CallRecord:
        """One call, as far as the journal's record is the client's to fill. Raises Stopped, and
        EnvironmentUnready where no further call can succeed."""
        o, bill, began = self.options, ChatBill(), time.monotonic()
        body: dict[str, JSON] = {"messages": list(question.messages), "max_tokens": o.max_tokens}
        if o.temperature is not None:
            body["temperature"] = o.temperature
        if question.effort != "none":
            body["reasoning_effort"] = question.effort
        if not o.plain:
            body["response_format"] = {"type": "json_schema", "json_schema": question.schema}
        reply, fault = None, ""
        try:
            reply = await self._chat.ask(body, bill=bill)
        except ChatFault as e:
            fault = self._fault_name(e, question)
        self._count_silence(fault)
        return {
            "reply": reply.text if reply else None,
            "finish": reply.finish if reply else "",
            "fault": fault,
            "read": reply.tokens_in if reply else None,
            "written": reply.tokens_out if reply else None,
            "requests": bill.requests,
            "seconds": round(time.monotonic() - began, 3),
            "structured": not o.plain and not self._chat.leaves_out("response_format"),
        }

    def _fault_name(self, fault: ChatFault, question: Question) -> str:
        """The fault's name in the journal. Raises EnvironmentUnready where it holds for every call."""
        status, code, said, at = fault.status, fault.code, fault.said, self.options.base_url
        flagged = status == 403 and self.answered  # this one text, not the account
        if (status in NO_ACCESS and not flagged) or code in NO_CREDIT:
            why = NO_ACCESS.get(status, NO_ACCESS[402])
            raise EnvironmentUnready(
                f"{at} {why} (HTTP {status}); check the account and the variable named by --key-env"
            )
        if status == 404:
            raise EnvironmentUnready(
                f"{at} or its model {self.options.model!r} does not exist (HTTP 404); check --base-url and "
                "--model"
            )
        if not status or fault.again:
            return "no_completion" if fault.reason == "malformed" else fault.reason
        if question.effort != "none" and "reasoning_effort" in said and len(said) < ECHO:
            raise EnvironmentUnready(
                f"{at} takes no reasoning_effort (HTTP {status}); use --passes none,none and --label-effort "
                "none"
            )
        limit = "max_tokens" if "max_tokens" in said or "max_completion_tokens" in said else ""
        return "_".join(filter(None, ("refused", str(status), code or limit)))

    def _count_silence(self, fault: str) -> None:
        """Count calls in a row without a reply. Raises EnvironmentUnready when the server seems gone."""
        if not fault or (fault.startswith("refused") and self.answered):
            self._silent, self.answered = 0, self.answered or not fault
            return
        self._silent += 1
        if self._silent >= max(8, 2 * self.options.concurrency):
            raise EnvironmentUnready(
                f"{self._silent} calls in a row to {self.options.base_url} came to nothing (last: {fault}); "
                "see to the server (or --max-tokens, where it refuses) and run again, which goes on where "
                "this stopped"
            )

    async def _sleep(self, seconds: float) -> None:
        """Until the pause is over. Raises Stopped."""
        try:
            await asyncio.wait_for(self._stop.wait(), seconds)
        except TimeoutError:
            return
        raise Stopped
