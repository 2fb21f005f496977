"""A pinned harness in an environment of its own, made once.

Flows in: a `HarnessSpec`, `locks/harness/<lock>`, a package index and a git source on first use. Flows out:
`<root>/<ref>/` with `venv/`, `source/` (git) and `ready.json`. Invariant: the folder of a `ref` is whole or
absent: it is made as `<ref>.partial` and renamed. It is used only while its lock and data are those it was
made from. Two versions are two folders. Once made, no network is needed."""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from filelock import FileLock, Timeout

from envace.bench.harness import interpreters, sources
from envace.bench.harness.smoke import smoke
from envace.bench.harness.spec import HarnessEnv, HarnessSpec, Say
from envace.errors import EnvironmentUnready, StageFailed
from envace.io import children
from envace.io.files import sha256, write_text
from envace.io.redact import Redactor

LOCKS = Path(__file__).resolve().parents[3] / "locks" / "harness"
READY = "ready.json"
INSTALL_S = 3600.0
WAIT_S = 2.0  # between looks at a lock that another builder holds


def build(spec: HarnessSpec, root: Path, say: Say = print) -> HarnessEnv:
    """The built harness, made now if need be. Raises EnvironmentUnready with one sentence that names the
    fix."""
    if env := find(spec, root):
        return env
    root.mkdir(parents=True, exist_ok=True)
    with _alone(root / f"{spec.ref}.lock", spec, say):
        if env := find(spec, root):  # somebody else has just made it
            return env
        return _make(spec, root.resolve(), say)


def find(spec: HarnessSpec, root: Path) -> HarnessEnv | None:
    """The harness when it is built and intact, else None. A spec of kind "none" needs no building."""
    env = _env(spec, root.resolve())
    if spec.kind == "none":
        return env
    try:
        said = json.loads((env.root / READY).read_text())
    except (OSError, ValueError):
        return None
    lock = LOCKS / spec.lock
    intact = (
        env.python.exists()
        and lock.is_file()
        and said.get("lock") == sha256(lock)
        and not _wrong_data(spec, env)
    )
    return env if intact else None


def missing(env: HarnessEnv) -> list[str]:
    """Files that the pinned revision lists and its source lacked, none of which `spec.data` asks for."""
    return json.loads((env.root / READY).read_text())["missing"] if env.spec.kind == "git" else []


def versions(env: HarnessEnv) -> dict[str, str]:
    """What the environment holds, for ScoreRecord.versions."""
    return json.loads((env.root / READY).read_text())["versions"] if env.spec.kind != "none" else {}


def _env(spec: HarnessSpec, root: Path) -> HarnessEnv:
    folder = root / spec.ref
    if spec.kind == "none":
        return HarnessEnv(spec=spec, root=folder, python=Path(sys.executable), source=folder)
    packages = folder / "venv" / "lib" / f"python{spec.python}" / "site-packages"
    source = folder / "source" if spec.kind == "git" else packages
    return HarnessEnv(spec=spec, root=folder, python=folder / "venv" / "bin" / "python", source=source)


@contextmanager
def _alone(path: Path, spec: HarnessSpec, say: Say) -> Iterator[None]:
    lock = FileLock(path)
    try:
        held = lock.acquire(timeout=0)
    except Timeout:
        say(f"{spec.name}: somebody else is building {spec.ref}; waiting")
        held = lock.acquire(poll_interval=WAIT_S)
    with held:
        yield


def _make(spec: HarnessSpec, root: Path, say: Say) -> HarnessEnv:
    began, final, partial = time.monotonic(), root / spec.ref, root / f"{spec.ref}.partial"
    log = root / f"{spec.ref}.log"
    log.unlink(missing_ok=True)
    if not (LOCKS / spec.lock).is_file():
        raise EnvironmentUnready(
            f"locks/harness/{spec.lock} is missing, which {spec.name} is installed from: restore it"
        )
    if final.exists():
        say(f"{spec.name}: {final.name} is not intact or its lock changed; making it anew")
    shutil.rmtree(partial, ignore_errors=True)
    scratch = root / f"{spec.ref}.scratch"
    try:
        made = _fill(spec, partial, scratch, log, say)
        made["seconds"] = round(time.monotonic() - began, 1)
        write_text(partial / READY, json.dumps(made, indent=1))
        shutil.rmtree(final, ignore_errors=True)
        os.replace(partial, final)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
        shutil.rmtree(scratch, ignore_errors=True)
        _redact(log)
    say(f"{spec.name}: ready in {final.name} after {made['seconds']:.0f} s")
    return _env(spec, root)


def _fill(spec: HarnessSpec, partial: Path, scratch: Path, log: Path, say: Say) -> dict[str, object]:
    """Everything but the last rename; returns what ready.json says."""
    partial.mkdir(parents=True)
    env, lock = _moved(spec, partial), LOCKS / spec.lock
    absent = []
    if spec.kind == "git":  # first: it needs the least time to fail
        env.source.mkdir()
        absent = sources.checkout(spec, env.source, scratch, log, say)
        if absent:
            say(f"{spec.name}: {len(absent)} files of the revision are not in its source, e.g. {absent[0]}")
        _demand(spec, env)
    python = interpreters.find_python(spec.python)
    say(f"{spec.name}: installing locks/harness/{spec.lock} for Python {spec.python}")
    _install(spec, env, python, lock, log, say)
    _demand(spec, env)
    if spec.kind == "git":
        _importable(env)
    say(f"{spec.name}: importing it")
    held = smoke(env.python, spec.imports, log, say, spec.name)
    return {
        "ref": spec.ref,
        "spec": asdict(spec) | {"uri": Redactor().text(spec.uri)},
        "lock": sha256(lock),
        "missing": absent,
        "versions": held,
    }


def _moved(spec: HarnessSpec, folder: Path) -> HarnessEnv:
    """The environment as it stands before the rename."""
    env = _env(spec, folder.parent)
    at = {name: folder / getattr(env, name).relative_to(env.root) for name in ("python", "source")}
    return HarnessEnv(spec=spec, root=folder, **at)


def _install(spec: HarnessSpec, env: HarnessEnv, python: Path, lock: Path, log: Path, say: Say) -> None:
    uv = str(interpreters.find_uv())
    environ = {k: v for k, v in os.environ.items() if k not in ("VIRTUAL_ENV", "PYTHONPATH", "PYTHONHOME")}
    environ.setdefault("UV_FIND_LINKS", os.environ.get("PIP_FIND_LINKS", ""))
    more = {
        "env": environ,
        "log": log,
        "deadline_s": INSTALL_S,
        "say": say,
        "what": f"installation of {spec.name}",
    }
    venv = env.python.parent.parent
    try:
        children.call(
            [uv, "venv", "--quiet", "--relocatable", "--no-config", "--python", str(python), str(venv)],
            **more,
        )
        # Copies: a file linked with uv's cache would carry a change to every other environment.
        options = "--quiet --no-config --no-deps --link-mode copy --python".split()
        shelf = ["--no-index"] if _shelf_only(environ) else []
        install = [uv, "pip", "install", *options, str(env.python), *shelf]
        children.call([*install, "-r", str(lock)], **more)
    except StageFailed as e:
        raise EnvironmentUnready(f"{_cause(spec, log)} ({Redactor().text(str(e))})") from None


def _shelf_only(environ: Mapping[str, str]) -> bool:
    """Whether the user wants wheels of a folder alone. uv has no variable for it, pip's is PIP_NO_INDEX."""
    return environ.get("PIP_NO_INDEX", "").lower() in ("1", "true", "yes", "on")


OFFLINE = (
    "error sending request",
    "could not connect",
    "dns error",
    "failed to fetch",
    "timed out",
    "connection refused",
)


def _cause(spec: HarnessSpec, log: Path) -> str:
    text = log.read_text(errors="replace").lower() if log.exists() else ""
    if any(sign in text for sign in OFFLINE):
        return (
            f"the package index could not be reached for {spec.name}: allow access to it (needed once only) "
            "and build again"
        )
    return f"locks/harness/{spec.lock} could not be installed: mend the lock, or look into the log"


def _demand(spec: HarnessSpec, env: HarnessEnv) -> None:
    """Raises EnvironmentUnready for data that is not what the spec pins."""
    if wrong := _wrong_data(spec, env):
        raise EnvironmentUnready(
            f"{spec.name}'s {wrong[0]} "
            f"{'differs from its pinned sha256' if (env.source / wrong[0]).exists() else 'is absent'}"
            f"{f' (and {len(wrong) - 1} more files)' if wrong[1:] else ''}: use a source that holds revision "
            f"{spec.version[:12]} whole"
        )


def _wrong_data(spec: HarnessSpec, env: HarnessEnv) -> list[str]:
    return [
        name
        for name, wanted in spec.data.items()
        if not (env.source / name).is_file() or sha256(env.source / name) != wanted
    ]


def _importable(env: HarnessEnv) -> None:
    """Put the checkout (its src folder where there is one) on the environment's path, relative, so that it
    can move."""
    packages = env.root / "venv" / "lib" / f"python{env.spec.python}" / "site-packages"
    code = env.source / "src" if (env.source / "src").is_dir() else env.source
    (packages / "harness.pth").write_text(os.path.relpath(code, packages) + "\n")


def _redact(log: Path) -> None:
    if log.exists():
        write_text(log, Redactor().text(log.read_text(errors="replace")))
