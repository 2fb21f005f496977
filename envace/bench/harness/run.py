"""One job of a harness, from an empty folder to files that may be read.

Invariant: nothing the job started outlives `run_job`, however it ends; the job sees a minimal environment,
its own keys, a home and a temporary folder that are thrown away, and no network but its addresses where the
system allows that. What it left is scrubbed before anybody reads it, also when it was interrupted.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from envace.bench.harness import network
from envace.bench.harness.scrub import scrub_folder, sweep
from envace.bench.harness.spec import HarnessEnv, HarnessJob, RawRun, Say
from envace.errors import EnvironmentUnready
from envace.io.children import GRACE_S, Child, innermost_error, start_guarded
from envace.io.redact import ALWAYS, Secrets, Stream, address_secrets

PROXIES = [name for p in ("HTTP", "HTTPS", "ALL", "NO") for name in (f"{p}_PROXY", f"{p}_proxy".lower())]
CERTIFICATES = ["SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"]
SHORT = 60  # characters; a unix socket's path may have 107
INTERRUPTED = "interrupted"


def run_job(
    job: HarnessJob,
    env: HarnessEnv,
    out: Path,
    *,
    say: Say = print,
    heartbeat_s: float = 30.0,
    stop: threading.Event | None = None,
) -> RawRun:
    """Run a job in `out/<job.name>` until it ends, its deadline passes or `stop` is set, with a line to `say`
    every `heartbeat_s`. Raises EnvironmentUnready for a key that is not set, ValueError for names that lead
    out of the folder.
    """
    stop, folder = stop or threading.Event(), _within(out.resolve(), job.name)
    files = {_within(folder, name): name for name in job.files}
    (keys, hidden), log = _keys(job), folder / "log.txt"
    inside, began = network.inside(job), time.monotonic()
    if job.open_network:
        say(f"{job.name}: runs with the open network, as this subset needs it")
    elif not inside:
        say(
            f"{job.name}: NOT isolated, this system has no bubblewrap and allows no user and network "
            "namespaces; what the model writes is run with this machine's network"
        )
    folder.mkdir(parents=True, exist_ok=True)
    try:
        base = tempfile.gettempdir()
        short = base if len(base) < SHORT else "/tmp"
        with ExitStack() as stack:
            made = tempfile.TemporaryDirectory(prefix="ea-", dir=short, ignore_cleanup_errors=True)
            scratch = Path(stack.enter_context(made))
            wrap, ports, renamed = inside or ((), {}, job)
            relays = []
            if inside:
                sockets = stack.enter_context(network.relayed(job.reaches, scratch))
                relays = [(ports[target], path) for target, path in sockets.items()]
            for path, name in files.items():
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(renamed.files[name], encoding="utf-8")
            child = start_guarded(
                renamed.argv,
                env=_environ(env, scratch, inside is not None) | renamed.env | keys,
                output=subprocess.PIPE,
                cwd=folder,
                wrap=wrap,
                relays=relays,
                grace_s=GRACE_S,
            )
            stack.enter_context(child)
            stack.enter_context(_logged(child, log, Stream(hidden)))
            code = child.wait(began + job.deadline_s, _beating(job, folder, say, heartbeat_s, stop))
            child.end()
    finally:
        sweep(folder, allowed=(folder, env.root))
        scrub_folder(folder, hidden)
    seconds = time.monotonic() - began
    reason = f"exit status {code}: {innermost_error(log)}" if code else ""
    if code is None:
        reason = INTERRUPTED if stop.is_set() else f"stopped at its deadline of {job.deadline_s:g} s"
    say(f"{job.name}: {reason or 'ended'} after {seconds:.0f} s")
    isolated = inside is not None
    return RawRun(
        job=job, folder=folder, code=code, seconds=seconds, log=log, isolated=isolated, reason=reason
    )


def _beating(
    job: HarnessJob, folder: Path, say: Say, every_s: float, stop: threading.Event
) -> Callable[[], bool]:
    """Called often while a job runs: tells now and then how far it is, and whether it should stop."""
    began = told = time.monotonic()
    total, earlier = len(job.planned), _ended(job, folder)

    def tick() -> bool:
        nonlocal told
        if time.monotonic() - told >= every_s:
            told, done = time.monotonic(), _ended(job, folder)
            line = f"{job.name}: {told - began:.0f} of at most {job.deadline_s:g} s"
            line += f", {done} of {total} samples" if job.tally[0] else ""
            if done > earlier:
                line += f", about {(told - began) / (done - earlier) * (total - done):.0f} s left"
            say(line)
        return stop.is_set()

    return tick


def _ended(job: HarnessJob, folder: Path) -> int:
    """How many samples a running job has put into its files, as far as these can be read now."""
    files, text = job.tally
    found = 0
    for file in folder.glob(files) if files else ():
        with suppress(OSError):  # it may be replaced under our hands
            found += file.read_bytes().count(text.encode()) if file.is_file() else 0
    return min(found, len(job.planned))


def _within(folder: Path, name: str) -> Path:
    path = Path(os.path.normpath(folder / name))
    if path == folder or not path.is_relative_to(folder):
        raise ValueError(f"{name!r} leads out of {folder}")
    return path


def _keys(job: HarnessJob) -> tuple[dict[str, str], Secrets]:
    """Variable of the harness -> key, looked up now; and all that must not be left in a file: keys, also in
    addresses, passwords of these and of proxies, this process's own.
    """
    for holder in job.secrets.values():
        if not os.environ.get(holder):
            raise EnvironmentUnready(f"{job.name} needs a key: set the environment variable {holder}")
    keys = {name: os.environ[holder] for name, holder in job.secrets.items()}
    own = {os.environ.get(name, "") for name in ALWAYS}
    addresses = [*job.reaches, *(os.environ.get(name, "") for name in PROXIES)]
    return keys, Secrets({*keys.values(), *own, *(s for a in addresses for s in address_secrets(a))})


def _environ(env: HarnessEnv, scratch: Path, isolated: bool) -> dict[str, str]:
    """All a harness sees beside what its adapter gives it."""
    outward = () if isolated else (*PROXIES, *CERTIFICATES)
    for folder in ("home", "tmp"):
        (scratch / folder).mkdir()
    return {name: os.environ[name] for name in outward if name in os.environ} | {
        "PATH": os.pathsep.join((str(env.python.parent), os.defpath)),
        "VIRTUAL_ENV": str(env.python.parent.parent),
        "HOME": str(scratch / "home"),
        "TMPDIR": str(scratch / "tmp"),
        "LOGNAME": "harness",  # libraries that ask who runs them fail where the uid has no passwd entry
        "LANG": "C.UTF-8",
        "PYTHONUNBUFFERED": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONNOUSERSITE": "1",
    }


@contextmanager
def _logged(child: Child, log: Path, stream: Stream) -> Iterator[None]:
    """Copies what the child prints into its log, scrubbed on the way."""
    source = child.popen.stdout
    assert source is not None

    def copy() -> None:
        with source, log.open("ab") as sink:
            while piece := os.read(source.fileno(), 65536):
                sink.write(stream.feed(piece))
                sink.flush()
            sink.write(stream.flush())

    thread = threading.Thread(target=copy, daemon=True)
    thread.start()
    try:
        yield
    finally:
        child.end()  # closes the other end of the pipe
        thread.join(10)
