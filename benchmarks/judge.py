"""CPU of a judge call: our client beside plain httpx and the openai client, on one loopback server.

Flows in: how many calls, how many at once. Flows out: a table, and JSON where `--out` says.
Invariant: all send the same 12 kB question and read the same answer, checked once before any timing; the server is a
process of its own and is not counted; the order alternates from round to round.

`envace client` writes the request as JSON, sends it, and reads the answer, as the peers do, with endpoint choice, deadline and
fault handling on top. `envace judge` is the whole of a turn: transcript and items rendered, verdicts parsed and billed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks.loopback import server
from benchmarks.table import times, write_json
from envace.config import JudgeParams
from envace.errors import boundary
from envace.judge.asking import chat_body
from envace.judge.bill import Bill
from envace.judge.endpoints import Patience
from envace.judge.llm import LLMJudge
from envace.judge.options import read_options
from envace.judge.verdicts import read_reply
from envace.types import Item, Message, Task, ToolCall

HTTPX, OPENAI, OURS, WHOLE = "httpx", "openai", "envace client", "envace judge"
PROMPT_BYTES = 12_000
ITEMS = tuple(
    Item(
        id=f"C{i}",
        question=f"Was order {i} looked up?",
        pass_condition="get_order was called",
        focus_on="assistant.tool_calls",
        weight=0.2,
    )
    for i in range(5)
)
ANSWER = json.dumps({item.id: {"why": "The call is there.", "answer": True} for item in ITEMS})


def _dialogue() -> tuple[Message, ...]:
    """One turn of calls and responses, as long as a judge's prompt usually is."""
    messages = [Message(role="user", content="Where are my orders?")]
    while sum(len(m.content) for m in messages) < PROMPT_BYTES - 4000:
        call = ToolCall(name="get_order", arguments={"order_id": f"#{len(messages)}"})
        messages.append(Message(role="assistant", content="", thinking="I look it up.", calls=(call,)))
        messages.append(
            Message(role="tool", name="get_order", content=json.dumps({"status": "sent", "note": "x" * 500}))
        )
    return (*messages, Message(role="assistant", content="All were sent."))


MESSAGES = _dialogue()
TASK = Task(id="b", prefix=MESSAGES[:1], tools=(), checklist=(ITEMS,), source="benchmark")


def clients(url: str, in_flight: int) -> dict[str, Callable[[], Any]]:
    """Name -> async context manager that gives the call to time."""
    from contextlib import asynccontextmanager

    options = read_options(
        JudgeParams(kind="llm", base_url=url, model="m", concurrency=in_flight, timeout_s=120.0, audit=0.0)
    )
    body = json.loads(chat_body(options, ITEMS, 0, MESSAGES))

    @asynccontextmanager
    async def plain_httpx():
        import httpx

        limits = httpx.Limits(max_connections=in_flight)
        async with httpx.AsyncClient(timeout=120.0, limits=limits) as http:

            async def call() -> str:
                response = await http.post(f"{url}/chat/completions", json=body)
                return response.raise_for_status().json()["choices"][0]["message"]["content"]

            yield call

    @asynccontextmanager
    async def openai():
        from openai import AsyncOpenAI

        async with AsyncOpenAI(base_url=url, api_key="none", timeout=120.0) as api:

            async def call() -> str:
                return (await api.chat.completions.create(**body)).choices[0].message.content

            yield call

    @asynccontextmanager
    async def client():
        judge, bill = LLMJudge(options), Bill()

        async def call() -> str:
            return await judge.client.ask(lambda _: json.dumps(body).encode("ascii"), Patience(5), bill)

        yield call
        await judge.aclose()

    @asynccontextmanager
    async def whole():
        judge = LLMJudge(options)

        async def call() -> str:
            verdicts = await judge.judge_turn(TASK, 0, MESSAGES)
            return json.dumps({v.item_id: v.answer for v in verdicts})

        yield call
        await judge.aclose()

    found = {HTTPX: plain_httpx, OPENAI: openai, OURS: client, WHOLE: whole}
    if find_spec("openai") is None:
        del found[OPENAI]
    return found


async def timed(make: Callable[[], Any], calls: int, in_flight: int) -> tuple[float, float]:
    """CPU milliseconds a call of this process, and calls a second. The first calls open the connections."""
    gate = asyncio.Semaphore(in_flight)
    async with make() as call:

        async def one() -> None:
            async with gate:
                read_reply(await call(), ITEMS)

        await asyncio.gather(*(one() for _ in range(in_flight)))
        cpu, wall = time.process_time(), time.perf_counter()
        await asyncio.gather(*(one() for _ in range(calls)))
        return (time.process_time() - cpu) * 1e3 / calls, calls / (time.perf_counter() - wall)


async def check(make: Callable[[], Any]) -> None:
    async with make() as call:
        if {answer.value for answer, _ in read_reply(await call(), ITEMS)} != {"yes"}:
            raise AssertionError("a client reads another answer than the others")


def measure(url: str, calls: int, in_flight: int, rounds: int) -> dict[str, Any]:
    entries = clients(url, in_flight)
    cpu_ms: dict[str, list[float]] = {name: [] for name in entries}
    calls_s: dict[str, list[float]] = {name: [] for name in entries}
    for make in entries.values():
        asyncio.run(check(make))
    for k in range(rounds):
        for name in list(entries)[:: 1 if k % 2 == 0 else -1]:
            cpu, rate = asyncio.run(timed(entries[name], calls, in_flight))
            cpu_ms[name].append(cpu)
            calls_s[name].append(rate)
    median = {name: statistics.median(values) for name, values in cpu_ms.items()}
    return {
        "in_flight": in_flight, "calls": calls, "rounds": rounds, "cpu_ms": cpu_ms, "calls_s": calls_s,
        "median_ms": median, "times": times(median, OURS), "times_whole": times(median, WHOLE),
    }  # fmt: skip


def show(found: dict[str, Any]) -> None:
    median = found["median_ms"]
    print(f"{found['in_flight']} in flight")
    for name, cpu in found["cpu_ms"].items():
        spread, rate = f"[{min(cpu):.2f}, {max(cpu):.2f}]", statistics.median(found["calls_s"][name])
        print(
            f"  {name:14} {median[name]:6.2f} ms CPU a call {spread:14} {median[name] / median[HTTPX]:5.2f}x"
            f" {rate:7.0f} calls a second"
        )


def main() -> None:
    """Compare the CPU of judge calls with that of httpx and of the openai client."""
    cli = argparse.ArgumentParser(prog="python -m benchmarks.judge", description=main.__doc__)
    cli.add_argument("--calls", type=int, default=600)
    cli.add_argument("--in-flight", type=int, nargs="+", default=[16, 256])
    cli.add_argument("--rounds", type=int, default=3)
    cli.add_argument("--out", type=Path, help="write the numbers as JSON")
    args = cli.parse_args()
    with boundary("benchmarks.judge"), server(ANSWER) as url:
        if find_spec("openai") is None:
            print("skipped the openai client: it is not installed (the extra peers brings it)")
        results = []
        for in_flight in args.in_flight:
            results.append(measure(url, args.calls, in_flight, args.rounds))
            show(results[-1])
        if args.out:
            write_json(args.out, {"results": results}, ("httpx", "openai", "aiohttp"), {})


if __name__ == "__main__":
    sys.exit(main())
