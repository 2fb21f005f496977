"""A hub on loopback: the requests huggingface_hub makes for a data set, gates, limits and cut connections
included."""

import hashlib
import json
import socket
import struct
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

from envace.config import parse

REVISION = "0123456789abcdef0123456789abcdef01234567"
ID = "acme/rows"


def params(**data):
    """Parameters with these values in `data`."""
    given = {"source": "hub", "uri": ID, "revision": REVISION} | data
    return parse({"data": {k: list(v) if isinstance(v, tuple) else v for k, v in given.items()}})


@dataclass
class Hub:
    """What the server holds and how it behaves; `log` has every request as (method, path, headers)."""

    files: dict[str, bytes] = field(default_factory=dict)
    large: set[str] = field(default_factory=set)  # kept beside git and served by another server
    licence: str | None = "cc-by-4.0"
    lies: dict[str, bytes] = field(default_factory=dict)  # other bytes than were listed
    sizes: dict[str, int] = field(default_factory=dict)  # listed instead of the true ones
    ignores_ranges: bool = False
    gated: bool = False
    token: str = ""  # without it the data set is not there
    waits: int = 0  # so many requests for bytes are told to come back
    fails: int = 0  # this status to every request
    cuts: list[int] = field(default_factory=list)  # bytes after which the next transfers break
    resets: bool = False  # they break by a reset instead of an orderly end
    pause_s: float = 0.0  # after each block sent
    log: list = field(default_factory=list)
    url: str = ""
    cdn: str = ""

    def asked(self, name):
        """The requests for a file's bytes, whoever answered them."""
        return [
            h
            for method, path, h in self.log
            if method == "GET"
            and path.endswith(f"/{name}")
            and (name in path.partition("/bytes/")[2] or not self.is_large(name))
        ]

    def is_large(self, name):
        return any(n.endswith(name) for n in self.large)

    def listed(self, name):
        body = self.files[name]
        entry = {"type": "file", "path": name, "size": self.sizes.get(name, len(body)), "oid": git_id(body)}
        if name in self.large:
            entry["lfs"] = {"oid": hashlib.sha256(body).hexdigest(), "size": len(body), "pointerSize": 130}
        return entry


def git_id(body):
    return hashlib.sha1(b"blob %d\0" % len(body) + body).hexdigest()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: Hub

    def log_message(self, *args):
        pass

    def do_GET(self):
        path = unquote(urlsplit(self.path).path)
        self.hub.log.append((self.command, path, dict(self.headers)))
        if self.hub.fails:
            return self.answer(self.hub.fails, b"{}", {"Retry-After": "0"} if self.hub.fails == 429 else {})
        if path.startswith("/bytes/"):
            return self.send_file(path.removeprefix("/bytes/"))
        if self.hub.token and self.headers.get("Authorization") != f"Bearer {self.hub.token}":
            return self.refuse(401, "RepoNotFound")
        if f"/{ID}" not in path:
            return self.refuse(404, "RepoNotFound")
        if path == f"/api/models/{ID}/revision/main":
            return self.describe(path)
        if REVISION not in path:
            return self.refuse(404, "RevisionNotFound")
        if path.startswith("/api/"):
            return self.describe(path)
        if self.hub.gated:
            return self.refuse(403, "GatedRepo")
        name = path.partition(f"/resolve/{REVISION}/")[2]
        return self.redirect(name) if name in self.hub.large else self.send_file(name)

    do_HEAD = do_GET

    def describe(self, path):
        if "/tree/" in path:
            data = [{"type": "directory", "path": "data", "oid": "0" * 40, "size": 0}]
            data += [self.hub.listed(n) for n in self.hub.files]
        else:
            data = {
                "id": ID,
                "sha": REVISION,
                "cardData": {"license": self.hub.licence} if self.hub.licence else None,
            }
        self.answer(200, json.dumps(data).encode(), {"Content-Type": "application/json"})

    def redirect(self, name):
        body = self.hub.lies.get(name, self.hub.files[name])
        linked = {
            "X-Linked-Etag": f'"{hashlib.sha256(self.hub.files[name]).hexdigest()}"',
            "X-Linked-Size": str(len(body)),
        }
        self.answer(
            302, b"", {"Location": f"{self.hub.cdn}/bytes/{name}", "X-Repo-Commit": REVISION} | linked
        )

    def send_file(self, name):
        if self.hub.waits and self.command == "GET":
            self.hub.waits -= 1
            return self.answer(429, b"", {"Retry-After": "0"})
        body = self.hub.lies.get(name, self.hub.files[name])
        asked = "" if self.hub.ignores_ranges else self.headers.get("Range", "")
        start = int(asked.removeprefix("bytes=").partition("-")[0] or 0)
        self.send_response(206 if asked else 200)
        self.send_header("Content-Length", str(len(body) - start))
        self.send_header("X-Repo-Commit", REVISION)
        self.send_header("ETag", f'"{git_id(body)}"')
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(body) - 1}/{len(body)}")
        self.end_headers()
        if self.command == "HEAD":
            return
        stop = len(body)
        if self.hub.cuts:
            stop = min(stop, start + self.hub.cuts.pop(0))
        try:
            for k in range(start, stop, 1 << 16):
                self.wfile.write(body[k : min(stop, k + (1 << 16))])
                time.sleep(self.hub.pause_s)
        except OSError:
            pass  # the client was killed
        self.close_connection = stop < len(body)
        if self.close_connection and self.hub.resets:
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    def refuse(self, status, code):
        self.answer(status, b"", {"X-Error-Code": code, "X-Error-Message": code})

    def answer(self, status, body, headers):
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


@contextmanager
def served(hub):
    """The hub and its second server, for large files; both share the log."""
    servers = [
        ThreadingHTTPServer(("127.0.0.1", 0), type("Bound", (Handler,), {"hub": hub})) for _ in range(2)
    ]
    hub.url, hub.cdn = (f"http://127.0.0.1:{s.server_address[1]}" for s in servers)
    for s in servers:
        s.daemon_threads = True
        threading.Thread(target=s.serve_forever, args=(0.05,), daemon=True).start()
    try:
        yield hub
    finally:
        for s in servers:
            s.shutdown()
            s.server_close()
