"""One job of a harness, from an empty folder to files that may be read.

Flows in: a job and a built harness. Flows out: `RawRun`, the job's folder with its log, both without keys.
Invariant: nothing the job started outlives `run_job`, however it ends; the job sees a minimal environment,
its own keys, a home and a temporary folder that are thrown away, and no network but its addresses where the
system allows that (`RawRun.isolated`). What it left is scrubbed before anybody reads it, also when it was
interrupted."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO

from envace.bench.harness import isolate
from envace.bench.harness.relay import Relay
from envace.bench.harness.scrub import scrub_folder, sweep
from envace.bench.harness.spec import HarnessEnv, HarnessJob, RawRun, Say
from envace.errors import EnvironmentUnready
from envace.io.children import GRACE_S, Child, innermost_error, start_guarded
from envace.io.redact import ALWAYS, Secrets, Stream, address_secrets

OUTWARD = (
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "ALL_PROXY",
    "NO_PROXY",
    "http_proxy",
    "https_proxy",
    "all_proxy",
    "no_proxy",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "REQUESTS_CA_BUNDLE",
    "CURL_CA_BUNDLE",
)  # to get out of this machine
SHORT = 60  # characters; a unix socket's path may have 107
INTERRUPTED = "interrupted"


def run_job(
    job: HarnessJob,
    env: HarnessEnv,
    out: Path,
    *,
    say: Say = print,
    heartbeat_s: float = 30.0,
    progress: Callable[[], int] | None = None,
    stop: threading.Event | None = None,
) -> RawRun:
    """Run a job in `out/<job.name>` until it ends, its deadline passes or `stop` is set.

    A line to `say` every `heartbeat_s`, with `progress()` samples done. Raises EnvironmentUnready for a key
    that is not set, ValueError for names that lead out of the folder."""
    folder = _within(out.resolve(), job.name)
    secrets = _secrets(job)
    inside = isolate.inside(job)
    _say_network(job, inside is not None, say)
    began, log = time.monotonic(), folder / "log.txt"
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with _scratch() as scratch, ExitStack() as stack:
            told = inside.job if inside else job
            for name, text in told.files.items():
                _within(folder, name).parent.mkdir(parents=True, exist_ok=True)
                _within(folder, name).write_text(text, encoding="utf-8")
            how = {}
            if inside:
                sockets = stack.enter_context(Relay(job.reaches, scratch))
                relays = [(inside.ports[target], path) for target, path in sockets.items()]
                how = {"wrap": inside.wrap, "relays": relays, "isolated": True}
            environ = _environ(env, scratch, inside is not None) | told.env | secrets
            child = stack.enter_context(
                start_guarded(
                    told.argv, env=environ, output=subprocess.PIPE, cwd=folder, grace_s=GRACE_S, **how
                )
            )
            stack.enter_context(_logged(child, log, Stream(Secrets(_all(job, secrets).values()))))
            beat = _Heartbeat(job, say, heartbeat_s, progress, stop)
            code = child.wait(began + job.deadline_s, beat)
            child.end()
    finally:
        sweep(folder, allowed=(folder, env.root))
        scrub_folder(folder, _all(job, secrets))
    seconds = time.monotonic() - began
    reason = _reason(job, code, log, stop)
    say(f"{job.name}: {reason or 'ended'} after {seconds:.0f} s")
    return RawRun(
        job=job,
        folder=folder,
        code=code,
        seconds=seconds,
        log=log,
        isolated=inside is not None,
        reason=reason,
    )


class _Heartbeat:
    """Called between looks at the process; true ends the job."""

    def __init__(
        self,
        job: HarnessJob,
        say: Say,
        every_s: float,
        progress: Callable[[], int] | None,
        stop: threading.Event | None,
    ):
        self._job, self._say, self._every_s, self._progress, self._stop = job, say, every_s, progress, stop
        self._began = self._told = time.monotonic()

    def __call__(self) -> bool:
        now = time.monotonic()
        if now - self._told >= self._every_s:
            self._told = now
            done = f"{self._progress()} of {len(self._job.planned)} samples, " if self._progress else ""
            self._say(
                f"{self._job.name}: {done}{now - self._began:.0f} of at most {self._job.deadline_s:g} s"
            )
        return self._stop is not None and self._stop.is_set()


def _reason(job: HarnessJob, code: int | None, log: Path, stop: threading.Event | None) -> str:
    if code is None:
        stopped = stop is not None and stop.is_set()
        return INTERRUPTED if stopped else f"stopped at its deadline of {job.deadline_s:g} s"
    return f"exit status {code}: {innermost_error(log)}" if code else ""


def _say_network(job: HarnessJob, isolated: bool, say: Say) -> None:
    if job.open_network:
        say(f"{job.name}: runs with the open network, as this subset needs it")
    elif not isolated:
        say(
            f"{job.name}: NOT isolated, this system allows no user and network namespaces; what the model "
            "writes "
            "is run with this machine's network"
        )


def _secrets(job: HarnessJob) -> dict[str, str]:
    """Variable of the harness -> key, looked up now."""
    for holder in job.secrets.values():
        if not os.environ.get(holder):
            raise EnvironmentUnready(f"{job.name} needs a key: set the environment variable {holder}")
    return {name: os.environ[holder] for name, holder in job.secrets.items()}


def _all(job: HarnessJob, secrets: dict[str, str]) -> dict[str, str]:
    """All that must not be left in a file: keys, also in addresses, passwords of these and of proxies, this
    process's own."""
    found = dict(secrets) | {name: os.environ[name] for name in ALWAYS if os.environ.get(name)}
    addresses = [
        *job.reaches,
        *(os.environ.get(name, "") for name in OUTWARD if name.lower().endswith("proxy")),
    ]
    for secret in (s for address in addresses for s in address_secrets(address)):
        found[f"of an address {len(found)}"] = secret
    return found


def _environ(env: HarnessEnv, scratch: Path, isolated: bool) -> dict[str, str]:
    """All a harness sees beside what its adapter gives it."""
    outward = {} if isolated else {name: os.environ[name] for name in OUTWARD if name in os.environ}
    home, tmp = scratch / "home", scratch / "tmp"
    home.mkdir()
    tmp.mkdir()
    return outward | {
        "PATH": os.pathsep.join((str(env.python.parent), os.defpath)),
        "VIRTUAL_ENV": str(env.python.parent.parent),
        "HOME": str(home),
        "TMPDIR": str(tmp),
        "LANG": "C.UTF-8",
        "PYTHONUNBUFFERED": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONNOUSERSITE": "1",
    }


@contextmanager
def _scratch() -> Iterator[Path]:
    """A folder with a short path, gone afterwards."""
    base = tempfile.gettempdir()
    folder = Path(tempfile.mkdtemp(prefix="ea-", dir=base if len(base) < SHORT else "/tmp"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _logged(child: Child, log: Path, stream: Stream) -> Iterator[None]:
    """Copies what the child prints into its log, scrubbed on the way."""
    thread = threading.Thread(target=_copy, args=(child.popen.stdout, log, stream), daemon=True)
    thread.start()
    try:
        yield
    finally:
        child.end()  # closes the other end of the pipe
        thread.join(10)


def _copy(source: IO[bytes], log: Path, stream: Stream) -> None:
    with source, log.open("ab") as sink:
        while piece := os.read(source.fileno(), 65536):
            sink.write(stream.feed(piece))
            sink.flush()
        sink.write(stream.flush())


def _within(folder: Path, name: str) -> Path:
    path = Path(os.path.normpath(folder / name))
    if path == folder or not path.is_relative_to(folder):
        raise ValueError(f"{name!r} leads out of {folder}")
    return path
