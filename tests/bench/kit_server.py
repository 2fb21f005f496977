"""A chat-completions server on loopback, as every harness's tests ask it; it keeps requests as they came."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Server:
    """A chat-completions server on a free port of the loopback; `answer` gets the body, returns (status,
    reply)."""

    answer: Callable[[dict[str, Any]], tuple[int, Any]]
    model: str
    seen: list[tuple[dict[str, str], bytes]] = field(default_factory=list)

    def __enter__(self) -> Server:
        self.http = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self.http.daemon_threads = True
        threading.Thread(target=self.http.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *_: Any) -> None:
        self.http.shutdown()
        self.http.server_close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.http.server_address[1]}/v1"


def _handler(server: Server) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._send(200, {"object": "list", "data": [{"id": server.model, "object": "model"}]})

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            server.seen.append((dict(self.headers), body))
            status, reply = server.answer(json.loads(body))
            if status == 0:  # as a server that dies
                self.close_connection = True
                self.connection.close()
                return
            self._send(status, reply)

        def _send(self, status: int, reply: Any) -> None:
            data = json.dumps(reply).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: Any) -> None:
            pass

    return Handler


def said(content: str | None = None, calls: list[tuple[str, Any]] | None = None) -> tuple[int, Any]:
    functions = [{"name": n, "arguments": a if isinstance(a, str) else json.dumps(a)} for n, a in calls or ()]
    made = [
        {"id": f"c{time.monotonic_ns()}-{i}", "type": "function", "function": function}
        for i, function in enumerate(functions)
    ]
    return completion({"role": "assistant", "content": content} | ({"tool_calls": made} if made else {}))


def completion(message: dict[str, Any], model: str = "m") -> tuple[int, Any]:
    """A good answer that holds this message."""
    ends = "tool_calls" if message.get("tool_calls") else "stop"
    usage = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
    reply = {"id": "x", "object": "chat.completion", "created": 1, "model": model, "usage": usage}
    return 200, reply | {"choices": [{"index": 0, "message": message, "finish_reason": ends}]}
