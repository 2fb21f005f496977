"""A chat-completions server for the judge's clients: a process of its own, so that its CPU is not theirs.

Flows in: the text of every answer. Flows out: an address.
Invariant: each request is read whole and answered at once with the same bytes; connections are kept.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

USAGE = {"prompt_tokens": 3000, "completion_tokens": 90, "total_tokens": 3090}


def reply(text: str) -> bytes:
    choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": text}}
    head = {"id": "c", "object": "chat.completion", "created": 1, "model": "m"}
    return json.dumps({**head, "choices": [choice], "usage": USAGE}).encode()


def _serve(pipe: Any, body: bytes) -> None:
    """The server's process: reads each request whole, answers at once, keeps connections."""
    head = (
        f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    )

    async def one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                lines = (await reader.readuntil(b"\r\n\r\n")).lower().split(b"\r\n")
                length = next(line for line in lines if line.startswith(b"content-length:"))
                await reader.readexactly(int(length.partition(b":")[2]))
                writer.write(head + body)
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()  # the client is done

    async def run() -> None:
        server = await asyncio.start_server(one, "127.0.0.1", 0, backlog=1024)
        pipe.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    asyncio.run(run())


@contextmanager
def server(text: str) -> Iterator[str]:
    """Its address."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(theirs, reply(text)), daemon=True)
    process.start()
    try:
        yield f"http://127.0.0.1:{ours.recv()}/v1"
    finally:
        process.terminate()
        process.join()
