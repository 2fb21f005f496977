"""Runs one command and ends everything it started. A program of its own, without any import of ours.

Flows in: one line of JSON on stdin {argv, relays, grace_s}. Flows out: the command's exit status.
Invariant: when stdin ends, or the command does, nothing it started is left: asked to end first, ended after
`grace_s`. With `relays` it runs inside a fresh network namespace, brings up loopback there and passes every
connection to 127.0.0.1:<port> of theirs on to a unix socket, the only way out.
"""

import ctypes
import fcntl
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from contextlib import suppress

import psutil

SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER
UP, GET_FLAGS, SET_FLAGS = 0x1, 0x8913, 0x8914  # IFF_UP, SIOCGIFFLAGS, SIOCSIFFLAGS


def loopback_up() -> None:
    """What `ip link set lo up` does, where there is no ip. bwrap has done it, and allows it no more."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        request = struct.pack("16sH14x", b"lo", 0)
        flags = struct.unpack("16sH14x", fcntl.ioctl(s, GET_FLAGS, request))[1]
        if not flags & UP:
            fcntl.ioctl(s, SET_FLAGS, struct.pack("16sH14x", b"lo", flags | UP))


def relay(server: socket.socket, path: str) -> None:
    """Pass every connection of a listening socket on to a unix socket."""
    while True:
        inside, _ = server.accept()
        threading.Thread(target=carry, args=(inside, path), daemon=True).start()


def carry(inside: socket.socket, path: str) -> None:
    """One connection, both ways; it ends where nobody is there."""
    outside = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with inside, outside, suppress(OSError):
        outside.connect(path)
        back = threading.Thread(target=pump, args=(outside, inside), daemon=True)
        back.start()
        pump(inside, outside)
        back.join()


def pump(source: socket.socket, sink: socket.socket) -> None:
    """Copy one way until either side goes away."""
    with suppress(OSError):
        while data := source.recv(65536):
            sink.sendall(data)
    for side, how in ((sink, socket.SHUT_WR), (source, socket.SHUT_RD)):
        with suppress(OSError):  # already closed
            side.shutdown(how)


def adopt_orphans() -> None:
    """What a child leaves running becomes our child, so that we can find it. Linux only."""
    with suppress(
        OSError, AttributeError
    ):  # elsewhere the process group still holds all that did not leave it
        ctypes.CDLL(None).prctl(SUBREAPER, 1, 0, 0, 0)


def descendants() -> list[psutil.Process]:
    """Living processes below this one."""
    found = []
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            if process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def reap() -> tuple[int, int] | None:
    """Take the status of one ended child. Returns (pid, status), or None when none has ended."""
    try:
        pid, status = os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        return None
    return (pid, status) if pid else None


def end_all(grace_s: float) -> None:
    """Ask all that is below us to end, and end it after `grace_s`."""
    deadline = time.monotonic() + grace_s
    for process in descendants():
        with suppress(psutil.NoSuchProcess):
            process.terminate()
    os.killpg(0, signal.SIGTERM)  # we ignore it ourselves
    while left := descendants():
        for process in left if time.monotonic() >= deadline else ():
            with suppress(psutil.NoSuchProcess):
                process.kill()
        if not reap():
            time.sleep(0.02)


def wait_for_end(gone: threading.Event) -> None:
    """Set when whoever holds our stdin lets go of it."""
    sys.stdin.buffer.read()
    gone.set()


def main() -> None:
    order = json.loads(sys.stdin.buffer.readline())
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: None)  # ended by the end of stdin, in order
    adopt_orphans()
    if order["relays"]:
        loopback_up()
    servers = [
        (socket.create_server(("127.0.0.1", port), backlog=512), path) for port, path in order["relays"]
    ]
    try:
        child = subprocess.Popen(order["argv"], stdin=subprocess.DEVNULL)
    except OSError as e:
        print(f"cannot start {order['argv'][0]}: {e.strerror}", file=sys.stderr)
        sys.exit(127)
    for server, path in servers:
        threading.Thread(target=relay, args=(server, path), daemon=True).start()
    gone = threading.Event()
    threading.Thread(target=wait_for_end, args=(gone,), daemon=True).start()
    status = None
    while status is None and not gone.is_set():
        ended = reap()
        if ended and ended[0] == child.pid:
            status = os.waitstatus_to_exitcode(ended[1])
        elif not ended:
            gone.wait(0.05)
    end_all(order["grace_s"])
    sys.stdout.flush()
    os._exit(143 if status is None else status if status >= 0 else 128 - status)  # no thread holds us up


if __name__ == "__main__":
    main()
