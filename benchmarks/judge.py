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
import importlib.util
import json
import multiprocessing
import platform
import statistics
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from envace.errors import boundary
from envace.judge.asking import chat_body
from envace.judge.bill import Bill
from envace.judge.endpoints import Patience
from envace.judge.llm import LLMJudge
from envace.judge.options import read_options
from envace.judge.verdicts import read_reply
from envace.params import JudgeParams
from envace.types import Item, Message, Task, ToolCall

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
USAGE = {"prompt_tokens": 3000, "completion_tokens": 90, "total_tokens": 3090}
CHOICE = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": ANSWER}}
REPLY = {
    "id": "c",
    "object": "chat.completion",
    "created": 1,
    "model": "m",
    "choices": [CHOICE],
    "usage": USAGE,
}
Call = Callable[[], Awaitable[str]]


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


def _serve(pipe: Any) -> None:
    """The server's process: reads each request whole, answers at once, keeps connections."""
    reply = json.dumps(REPLY).encode()
    head = (
        f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(reply)}\r\n\r\n".encode()
    )

    async def one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                lines = (await reader.readuntil(b"\r\n\r\n")).lower().split(b"\r\n")
                length = next(line for line in lines if line.startswith(b"content-length:"))
                await reader.readexactly(int(length.partition(b":")[2]))
                writer.write(head + reply)
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()  # the client is done

    async def run() -> None:
        server = await asyncio.start_server(one, "127.0.0.1", 0, backlog=1024)
        pipe.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    asyncio.run(run())


@contextmanager
def server() -> Iterator[str]:
    """Its address."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(theirs,), daemon=True)
    process.start()
    try:
        yield f"http://127.0.0.1:{ours.recv()}/v1"
    finally:
        process.terminate()
        process.join()


def clients(url: str, in_flight: int) -> dict[str, Callable[[], Any]]:
    """Name -> async context manager that gives the call to time."""
    from contextlib import asynccontextmanager

    options = read_options(
        JudgeParams(kind="llm", base_url=url, model="m", concurrency=in_flight, timeout_s=120.0)
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

    found = {"httpx": plain_httpx, "openai": openai, "envace client": client, "envace judge": whole}
    if importlib.util.find_spec("openai") is None:
        del found["openai"]
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


def measure(url: str, calls: int, in_flight: int, rounds: int) -> dict[str, dict[str, list[float]]]:
    entries = clients(url, in_flight)
    found: dict[str, dict[str, list[float]]] = {name: {"cpu_ms": [], "calls_s": []} for name in entries}
    for make in entries.values():
        asyncio.run(check(make))
    for k in range(rounds):
        for name in list(entries)[:: 1 if k % 2 == 0 else -1]:
            cpu, rate = asyncio.run(timed(entries[name], calls, in_flight))
            found[name]["cpu_ms"].append(cpu)
            found[name]["calls_s"].append(rate)
    return found


def show(in_flight: int, found: dict[str, dict[str, list[float]]]) -> None:
    base = statistics.median(found["httpx"]["cpu_ms"])
    print(f"{in_flight} in flight")
    for name, of in found.items():
        cpu, rate = statistics.median(of["cpu_ms"]), statistics.median(of["calls_s"])
        spread = f"[{min(of['cpu_ms']):.2f}, {max(of['cpu_ms']):.2f}]"
        print(
            f"  {name:14} {cpu:6.2f} ms CPU a call {spread:14} {cpu / base:5.2f}x {rate:7.0f} calls a second"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--calls", type=int, default=600)
    parser.add_argument("--in-flight", type=int, nargs="+", default=[16, 256])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    with boundary("benchmarks.judge"), server() as url:
        results = {}
        for in_flight in args.in_flight:
            results[str(in_flight)] = measure(url, args.calls, in_flight, args.rounds)
            show(in_flight, results[str(in_flight)])
        if args.out:
            versions = {"python": platform.python_version(), "machine": platform.machine()}
            text = json.dumps({"in_flight": results, "calls": args.calls, "versions": versions}, indent=2)
            args.out.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
