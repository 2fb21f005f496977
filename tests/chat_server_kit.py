"""A real OpenAI-compatible server on loopback that is good, slow, dead, rude or lying."""

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

Reply = tuple  # (status, body, seconds of delay) and, where wanted, headers
Answering = Callable[[int], Reply]


class Server:
    """Replies with what `answer(n)` gives for the n-th request; keeps what it was asked."""

    def __init__(self, answer: Answering):
        self.bodies: list[dict] = []
        self.headers: list[dict] = []
        self.raw: list[bytes] = []
        self.connections: set[tuple[str, int]] = set()
        self.in_flight = self.most_in_flight = 0
        lock, outer = threading.Lock(), self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                raw = self.rfile.read(int(self.headers["Content-Length"]))
                with lock:
                    outer.raw.append(raw)
                    outer.bodies.append(json.loads(raw))
                    outer.headers.append({k.lower(): v for k, v in self.headers.items()})
                    outer.connections.add(self.client_address)
                    n = len(outer.bodies)
                    outer.in_flight += 1
                    outer.most_in_flight = max(outer.most_in_flight, outer.in_flight)
                status, body, delay, *more = answer(n)
                time.sleep(delay)
                with lock:
                    outer.in_flight -= 1
                self.reply(status, body.encode(), more[0] if more else {})

            def reply(self, status: int, body: bytes, headers: dict[str, str]):
                try:
                    self.send_response(status)
                    for name, value in headers.items():
                        self.send_header(name, value)
                    self.send_header("Content-Length", str(len(body)))
                    self.end_headers()
                    self.wfile.write(body)
                except OSError:
                    pass  # the client has given up, as the slow tests want

            def log_message(self, *args):
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.http.daemon_threads = True

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.http.server_port}"

    def asked(self, n: int = 0) -> str:
        """The user message of a request."""
        return self.bodies[n]["messages"][1]["content"]


@contextmanager
def serving(answer: Answering) -> Iterator[Server]:
    server = Server(answer)
    thread = threading.Thread(target=server.http.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.http.shutdown()
        server.http.server_close()
        thread.join()


@contextmanager
def raw_server(behave: Callable[[socket.socket], None]) -> Iterator[str]:
    """Its address. Every connection is given to `behave`, then closed: for servers that break HTTP itself."""
    listener = socket.create_server(("127.0.0.1", 0))

    def one(connection: socket.socket) -> None:
        with connection:
            try:
                behave(connection)
            except OSError:
                pass  # the client has given up

    def accept() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return  # the test is over
            threading.Thread(target=one, args=(connection,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()


def dead_url() -> str:
    """An address on which nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as s:
        return f"http://127.0.0.1:{s.getsockname()[1]}"


def completion(content: object, tokens: int = 101, usage: object = None, **choice: object) -> str:
    text = content if isinstance(content, str) or content is None else json.dumps(content)
    message = {"role": "assistant", "content": text, **choice.pop("message", {})}
    usage = {"total_tokens": tokens} if usage is None else usage
    return json.dumps({"choices": [{"message": message, **choice}], "usage": usage})


def says(content: object, delay: float = 0.0, **choice: object) -> Answering:
    return lambda n: (200, completion(content, **dict(choice)), delay)
