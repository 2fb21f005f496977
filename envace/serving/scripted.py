"""A server that answers with fixed lines: the user (or judge) of a smoke run, where no model is at hand.

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

from envace.serving.replies import WrittenText, completion, error
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
    """Counts the assistant messages of a request, and answers with the line of that number."""

    protocol_version = "HTTP/1.1"
    lines: Sequence[str] = ()

    def do_GET(self) -> None:
        self._send({"object": "list", "data": [{"id": MODEL, "object": "model"}]})

    def do_POST(self) -> None:
        try:
            asked = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))))
            said = sum(isinstance(m, dict) and m.get("role") == "assistant" for m in asked["messages"])
        except (ValueError, KeyError, TypeError):
            self._send(error("no messages in the body", 400, "BadRequestError"), 400)
            return
        text = self.lines[min(said, len(self.lines) - 1)]
        reply = completion([WrittenText(text=text, finish="stop", prompt_tokens=0, tokens=0)], MODEL)
        message = {"role": "assistant", "content": text}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        self._send(reply | {"id": MODEL, "object": "chat.completion", "created": 0, "choices": [choice]})

    def _send(self, body: JSON, status: int = 200) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: str) -> None:
        """Texts of a run are logged by whoever asks."""
