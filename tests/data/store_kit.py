"""A store of files as a process of its own, for killing: `store_kit.py hub|s3 PORT FOLDER BYTES_A_SECOND`.

It serves the files of FOLDER on the port it is told, slowly, and holds the same ones when it is started again.
"""

import os
import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from http.server import ThreadingHTTPServer
from pathlib import Path

HERE = Path(__file__).parent
BLOCK = 1 << 16


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as free:
        return free.getsockname()[1]


class Store:
    """`with stopped_at_last(Store("s3", folder)) as store: store.start()`; `kill` is SIGKILL."""

    def __init__(self, kind, folder):
        self.kind, self.folder, self.port, self.process = kind, folder, free_port(), None
        self.url = f"http://127.0.0.1:{self.port}"

    def start(self, bytes_a_second=0):
        command = [sys.executable, __file__, self.kind, str(self.port), str(self.folder), str(bytes_a_second)]
        self.process = subprocess.Popen(
            command, cwd=HERE.parents[1], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=clean()
        )
        stop = time.monotonic() + 90
        while not self._answers():
            assert self.process.poll() is None and time.monotonic() < stop
            time.sleep(0.05)

    def _answers(self):
        try:
            socket.create_connection(("127.0.0.1", self.port)).close()
            return True
        except ConnectionRefusedError:
            return False

    def kill(self):
        self.process.kill()
        self.process.wait()


@contextmanager
def stopped_at_last(store):
    try:
        yield store
    finally:
        if store.process is not None:
            store.kill()


def clean():
    """The server talks to itself: no endpoint of a user."""
    return {k: v for k, v in os.environ.items() if not k.startswith(("AWS_", "HF_"))}


def serve_hub(port, files, pause_s):
    import hub_kit

    hub = hub_kit.Hub(files, large=set(files), pause_s=pause_s)
    hub.url = hub.cdn = f"http://127.0.0.1:{port}"
    ThreadingHTTPServer(("127.0.0.1", port), type("Bound", (hub_kit.Handler,), {"hub": hub})).serve_forever()


def serve_s3(port, files, pause_s):
    """moto keeps all in this process's memory: filled through one port, served on another."""
    import boto3
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
    from moto.server import ThreadedMotoServer
    from s3_kit import BUCKET
    from werkzeug.serving import run_simple

    filling = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    filling.start()
    where = "http://{}:{}".format(*filling.get_host_and_port())
    keys = {"aws_access_key_id": "test", "aws_secret_access_key": "test", "region_name": "us-east-1"}
    client = boto3.client("s3", endpoint_url=where, **keys)
    client.create_bucket(Bucket=BUCKET)
    for name, body in files.items():
        client.put_object(Bucket=BUCKET, Key=f"cm2/{name}", Body=body)
    app = DomainDispatcherApplication(create_backend_app)

    def slow(environ, start_response):
        for part in app(environ, start_response):
            for k in range(0, len(part), BLOCK):
                yield part[k : k + BLOCK]
                time.sleep(pause_s if len(part) > BLOCK else 0)

    run_simple("127.0.0.1", port, slow, threaded=True)


if __name__ == "__main__":
    sys.path[:0] = [str(HERE), str(HERE.parents[1])]
    kind, port, folder, rate = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]), float(sys.argv[4])
    held = {
        p.relative_to(folder).as_posix(): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()
    }
    {"hub": serve_hub, "s3": serve_s3}[kind](port, held, BLOCK / rate if rate else 0.0)
