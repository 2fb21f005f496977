"""Runs one command and ends everything it started. A program of its own: standard library only, no import of ours.

Flows in: one line of JSON on stdin {argv, relays, isolated, grace_s}. Flows out: the command's exit status.
Invariant: when stdin ends, or the command does, nothing it started is left: asked to end first, ended after
`grace_s`. With `isolated` it runs inside a fresh network namespace, brings up loopback there and passes every
connection to 127.0.0.1:<port> of `relays` on to a unix socket, the only way out.
"""

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

SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER
UP, GET_FLAGS, SET_FLAGS = 0x1, 0x8913, 0x8914  # IFF_UP, SIOCGIFFLAGS, SIOCSIFFLAGS


def loopback_up() -> None:
    """What `ip link set lo up` does, where there is no ip."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        request = struct.pack("16sH14x", b"lo", 0)
        flags = struct.unpack("16sH14x", fcntl.ioctl(s, GET_FLAGS, request))[1]
        fcntl.ioctl(s, SET_FLAGS, struct.pack("16sH14x", b"lo", flags | UP))


def listen(port: int) -> socket.socket:
    server = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    server.bind(("127.0.0.1", port))
    server.listen(512)
    return server


def pump(source: socket.socket, sink: socket.socket) -> None:
    try:
        while data := source.recv(65536):
            sink.sendall(data)
    except OSError:
        pass  # the other side went away; so do we
    for side, how in ((sink, socket.SHUT_WR), (source, socket.SHUT_RD)):
        try:
            side.shutdown(how)
        except OSError:
            pass  # already closed


def serve(server: socket.socket, path: str) -> None:
    while True:
        inside, _ = server.accept()
        threading.Thread(target=carry, args=(inside, path), daemon=True).start()


def carry(inside: socket.socket, path: str) -> None:
    outside = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with inside, outside:
        try:
            outside.connect(path)
        except OSError:
            return  # nobody there: the connection ends, as it would without us
        back = threading.Thread(target=pump, args=(outside, inside), daemon=True)
        back.start()
        pump(inside, outside)
        back.join()


def adopt_orphans() -> None:
    """What a child leaves running becomes our child, so that we can find it. Linux only."""
    try:
        import ctypes

        ctypes.CDLL(None).prctl(SUBREAPER, 1, 0, 0, 0)
    except (ImportError, OSError, AttributeError):
        pass  # the process group still holds all that did not leave it


def below() -> set[int]:
    """Pids of all our descendants, as /proc tells; empty without one."""
    parents = {}
    for name in os.listdir("/proc") if os.path.isdir("/proc/self") else ():
        try:
            with open(f"/proc/{name}/stat") as f:
                pid, rest = f.read().split(" ", 1)
            state, parent = rest.rpartition(")")[2].split()[:2]
            if state != "Z":
                parents[int(pid)] = int(parent)
        except (OSError, ValueError):
            continue  # no process, or gone
    ours = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in ours} - ours:
        ours |= more
    return ours - {os.getpid()}


def signal_all(number: int) -> None:
    for pid in below():
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            pass  # gone meanwhile
    if number != signal.SIGKILL:
        os.killpg(0, number)  # we ignore it ourselves


def reap() -> tuple[int, int] | None:
    """Take the status of one ended child. Returns (pid, status), or None when none has ended."""
    try:
        pid, status = os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        return None
    return (pid, status) if pid else None


def end_all(grace_s: float) -> None:
    signal_all(signal.SIGTERM)
    deadline = time.monotonic() + grace_s
    while below() and time.monotonic() < deadline:
        reap() or time.sleep(0.02)
    while below():
        signal_all(signal.SIGKILL)
        reap() or time.sleep(0.02)


def main() -> None:
    order = json.loads(sys.stdin.buffer.readline())
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: None)  # ended by the end of stdin, in order
    adopt_orphans()
    if order["isolated"]:
        loopback_up()
    servers = [(listen(port), path) for port, path in order["relays"]]
    try:
        child = subprocess.Popen(order["argv"], stdin=subprocess.DEVNULL)
    except OSError as e:
        print(f"cannot start {order['argv'][0]}: {e.strerror}", file=sys.stderr)
        sys.exit(127)
    for server, path in servers:
        threading.Thread(target=serve, args=(server, path), daemon=True).start()
    gone = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.buffer.read(), gone.set()), daemon=True).start()
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
