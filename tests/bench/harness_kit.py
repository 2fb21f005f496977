"""What the harness tests share: a tiny wheel, an endpoint on loopback, a fake harness and its adapter."""

from __future__ import annotations

import base64
import hashlib
import json
import ssl
import threading
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import product
from pathlib import Path

from envace.bench.harness.answers import read_rows
from envace.bench.harness.spec import EvalRequest, EvalRoles, HarnessJob, HarnessSpec
from envace.bench.summary import summarise
from envace.types import Endpoint, SampleRecord, SampleStatus

SCORED = SampleStatus.SCORED
FAKE = """
import json, os, sys, time, urllib.request, base64
order = json.load(open("order.json"))
print("environment", dict(os.environ))
key = os.environ.get("FAKE_KEY", "")
if key:  # everything a careless program does with a key
    print("Authorization: Bearer", key, file=sys.stderr)
    url = "http://h/v1?api_key=" + urllib.request.quote(key, safe="")
    json.dump({"headers": {"Authorization": "Bearer " + key}, "url": url}, open("info.json", "w"))
    for pad in ("", "x", "xy"):
        open("b64.txt", "a").write(base64.b64encode((pad + key + " tail").encode()).decode() + "\\n")
    open("exc-" + urllib.request.quote(key, safe="") + ".txt", "w").write(repr(ValueError("bad key " + key)))
for task in order["tasks"]:
    how = order["faults"].get(task, "ok")
    if how == "missing" or (how == "once" and not os.path.exists(order["marker"])):
        open(order["marker"], "w").close()
        continue
    if how == "hang":
        os.system("sleep 300 &")  # leaves a child behind
        time.sleep(300)
    url, body = os.environ["FAKE_URL"] + "/chat/completions", json.dumps({"task": task}).encode()
    request = urllib.request.Request(url, body, {"Authorization": "Bearer " + key})
    try:
        said = json.load(urllib.request.urlopen(request, timeout=20))["said"]
    except OSError as e:
        said = "down"
    open("results.jsonl", "a").write(json.dumps({"task": task, "how": how, "said": said}) + "\\n")
sys.exit(order["code"])
"""


def wheel(folder: Path, name: str, version: str, files: dict[str, str]) -> Path:
    """A pure wheel made by hand."""
    info = f"{name}-{version}.dist-info"
    files = files | {
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: kit\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{n},sha256={_digest(t)},{len(t.encode())}\n" for n, t in files.items())
    path = folder / f"{name}-{version}-py3-none-any.whl"
    folder.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as archive:
        for member, text in (files | {f"{info}/RECORD": f"{record}{info}/RECORD,,\n"}).items():
            archive.writestr(member, text)
    return path


def _digest(text: str) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).decode().rstrip("=")


@contextmanager
def server(model: str = "m", key: str = "", tls: Path | None = None) -> Iterator[tuple[str, list[dict]]]:
    """An endpoint on loopback: its base address, and the requests it saw."""
    seen: list[dict] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _say(self, status: int, data: object) -> None:
            body = json.dumps(data).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_GET(self) -> None:
            if key and self.headers.get("Authorization") != f"Bearer {key}":
                return self._say(401, {"error": "no"})
            known = self.path.partition("?")[0] == "/v1/models"
            self._say(*(200, {"data": [{"id": model}]}) if known else (404, {"error": "not here"}))

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            who = {"host": self.headers["Host"], "auth": self.headers.get("Authorization")}
            seen.append({"path": self.path, "body": body, **who})
            self._say(200, {"said": "hello"})

        def log_message(self, *_: object) -> None:
            pass

    httpd = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    if tls:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(tls)
        httpd.socket = context.wrap_socket(httpd.socket, server_side=True)
    threading.Thread(target=httpd.serve_forever, args=(0.05,), daemon=True).start()
    try:
        yield f"{'https://localhost' if tls else 'http://127.0.0.1'}:{httpd.server_port}/v1", seen
    finally:
        httpd.shutdown()
        httpd.server_close()


def certificate(path: Path) -> Path:
    """A key and a certificate for localhost that only who is given the file trusts."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.now(UTC)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    made = (
        x509.CertificateBuilder(
            name, name, key.public_key(), x509.random_serial_number(), now - timedelta(1), now + timedelta(1)
        )
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    path.write_bytes(key.private_bytes(pem, form, serialization.NoEncryption()) + made.public_bytes(pem))
    return path


class FakeBench:
    """Two subsets of three tasks; `options`: faults {task: how}, code (exit status), goes_on."""

    name, asks = "fake", ("user", "judge")
    subsets = default = ("a", "b")

    def spec(self, options):
        return HarnessSpec(name="fake", version="1", kind="none", lock="none.lock")

    def plan(self, env, request):
        agent, options, jobs = request.roles.agent, request.options, []
        for subset, trial in product(request.subsets, range(request.trials)):
            tasks = [f"{subset}/{i}" for i in range(3)]
            order = {"tasks": tasks, "faults": options.get("faults", {}), "code": options.get("code", 0)}
            order |= {"marker": str(request.out / f"{subset}.marker"), "threads": request.concurrency}
            job = HarnessJob(
                name=f"{subset}-{trial}",
                argv=(str(env.python), "-c", FAKE),
                env={"FAKE_URL": agent.base_url},
                secrets={"FAKE_KEY": agent.key_env} if agent.key_env else {},
                files={"order.json": json.dumps(order)},
                planned=tuple((task, trial) for task in tasks),
                reaches=tuple(e.base_url for e in request.roles.filled().values()),
                tally=("results.jsonl", "\n"),
                deadline_s=request.deadline_s,
            )
            jobs.append(job)
        return jobs

    def parse(self, env, request, runs):
        return [sample_of(row, run) for run in runs for row in read_rows(run.folder / "results.jsonl")]

    def summarise(self, env, request, samples, **identity):
        identity |= {"benchmark": "fake", "metrics": ["reward"], "harness": env.identity}
        return summarise(samples, [(s.task, s.trial) for s in samples], **identity)


def sample_of(row, run) -> SampleRecord:
    how = "infra" if row["said"] == "down" else row["how"]
    status = {"infra": SampleStatus.INFRA_FAILURE, "agent": SampleStatus.AGENT_FAILURE}.get(how, SCORED)
    won = {"reward": 1.0, "metrics": {"reward": 1.0}} if status is SCORED else {}
    known = {"task": row["task"], "trial": run.job.planned[0][1], "seed": 0, "status": status}
    return SampleRecord(**known, **won, error="" if won else f"{row['how']} {row['said']}")


def request(url: str, out: Path, **more) -> EvalRequest:
    agent = Endpoint(base_url=url, model="m", key_env=more.pop("key_env", ""))
    base = {
        "subsets": ("a", "b"),
        "trials": 1,
        "seed": 0,
        "deadline_s": 600.0,
        "roles": EvalRoles(agent=agent),
    }
    return EvalRequest(out=out, **(base | more))
