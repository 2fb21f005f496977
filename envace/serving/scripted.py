"""A server that answers with fixed lines: the user (or judge) of a smoke run, where no model is at hand.

Flows in: lines. Flows out: the `Endpoint` of a loopback server while the context lasts.
Invariant: the n-th request of a conversation gets the n-th line, counted by the assistant messages it holds,
so that conversations may run beside each other; after the last line it is repeated. Scores of such runs name
the model "scripted".
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from envace.types import JSON, Endpoint

MODEL = "scripted"


@contextmanager
def scripted(lines: Sequence[str]) -> Iterator[Endpoint]:
    """Serve `lines` (at least one) on a free loopback port."""
    handler = type("Bound", (ScriptHandler,), {"lines": tuple(lines)})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, name=MODEL, daemon=True)
    thread.start()
    try:
        yield Endpoint(base_url=f"http://127.0.0.1:{server.server_address[1]}/v1", model=MODEL)
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class ScriptHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    lines: Sequence[str] = ()

    def do_GET(self) -> None:
        self._send({"object": "list", "data": [{"id": MODEL, "object": "model"}]})

    def do_POST(self) -> None:
        try:
            asked = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))))
            text = line_for(asked["messages"], self.lines)
        except (ValueError, KeyError, TypeError):
            self._send({"error": {"message": "no messages in the body"}}, 400)
            return
        self._send(completion(text))

    def _send(self, body: JSON, status: int = 200) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:
        """Texts of a run are logged by whoever asks."""


def line_for(messages: Sequence[JSON], lines: Sequence[str]) -> str:
    """The line of this point of the conversation."""
    said = sum(isinstance(m, dict) and m.get("role") == "assistant" for m in messages)
    return lines[min(said, len(lines) - 1)]


def completion(text: str) -> JSON:
    """A chat completion that says `text`."""
    message = {"role": "assistant", "content": text}
    return {
        "id": MODEL,
        "object": "chat.completion",
        "created": 0,
        "model": MODEL,
        "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
        "usage": dict.fromkeys(("prompt_tokens", "completion_tokens", "total_tokens"), 0),
    }
