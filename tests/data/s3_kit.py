"""moto's S3 on loopback behind a TCP relay that can break or hold an answer at a chosen byte."""

import re
import socket
import struct
import threading
import urllib.request
from contextlib import contextmanager
from dataclasses import dataclass, field

import boto3
from moto.server import ThreadedMotoServer

BUCKET = "rows"


@dataclass
class Relay:
    """`breaks`: bytes of answers after which the connection is cut, one entry a cut. `holds`: then nothing
    passes."""

    to: tuple[str, int]
    breaks: list[int] = field(default_factory=list)
    resets: bool = False  # cut by a reset instead of an orderly end
    holds: int = 0
    passed: int = 0
    sent: bytearray = field(default_factory=bytearray)  # what clients said

    def __post_init__(self):
        self.released, self.dying = threading.Event(), set()
        self.door = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.door.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def ranges(self):
        """First bytes of the ranges clients asked for."""
        return [int(m) for m in re.findall(rb"(?i)\r\nrange: bytes=(\d+)-", bytes(self.sent))]

    def forget(self):
        self.passed, self.sent = 0, bytearray()

    def close(self):
        self.released.set()
        self.door.close()

    def _accept(self):
        while True:
            try:
                client, _ = self.door.accept()
            except OSError:
                return
            server = socket.create_connection(self.to)
            for take, give, back in ((client, server, False), (server, client, True)):
                threading.Thread(target=self._pump, args=(take, give, back), daemon=True).start()

    def _pump(self, take, give, back):
        cut = False
        try:
            while data := take.recv(1 << 16):
                if not back:
                    self.sent += data
                elif cut := not self._let(data):
                    break
                give.sendall(data)
        except OSError:
            pass
        for s in (give, take):
            self._end(s, cut and self.resets)

    def _end(self, s, reset):
        try:
            if reset:
                self.dying.add(s)
                s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                s.shutdown(socket.SHUT_RD)  # wakes the other direction and sends nothing
                s.close()
            elif s not in self.dying:
                s.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass

    def _let(self, data):
        self.passed += len(data)
        if self.holds and self.passed > self.holds:
            self.released.wait()
        if self.breaks and self.passed > self.breaks[0]:
            self.breaks.pop(0)
            self.passed = 0
            return False
        return True


@contextmanager
def served(setenv):
    """(client that goes round the relay, relay); `setenv(name, value)` gets what a user would set."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    relay = Relay((host, port))
    for name, value in {
        "AWS_ENDPOINT_URL": relay.url,
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "us-east-1",
    }.items():
        setenv(name, value)
    tell(f"http://{host}:{port}", "reset")
    client = boto3.client("s3", endpoint_url=f"http://{host}:{port}")
    client.create_bucket(Bucket=BUCKET)
    try:
        yield client, relay
    finally:
        relay.close()
        server.stop()


@contextmanager
def guarded(relay):
    """Credentials and rights count, as on a real store; yields the keys of an account without any right."""
    iam = boto3.client("iam", endpoint_url=relay.url)
    iam.create_user(UserName="nobody")
    key = iam.create_access_key(UserName="nobody")["AccessKey"]
    tell(relay.url, "reset-auth", b"0")
    try:
        yield {"AWS_ACCESS_KEY_ID": key["AccessKeyId"], "AWS_SECRET_ACCESS_KEY": key["SecretAccessKey"]}
    finally:
        tell(relay.url, "reset-auth", b"inf")


def tell(url, what, body=b""):
    request = urllib.request.Request(f"{url}/moto-api/{what}", body, {"Content-Type": "text/plain"})
    urllib.request.urlopen(request).read()
