"""A pinned harness in an environment of its own, `<root>/<ref>/` with `venv/`, `source/` and `ready.json`.

Invariant: the folder of a `ref` is whole or absent: it is made as `<ref>.partial` and renamed. It is used
only while its lock and data are those it was made from. Once made, no network is needed.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path

from filelock import FileLock, Timeout

from envace.bench.harness import network, sources
from envace.bench.harness.spec import HarnessEnv, HarnessSpec, Say
from envace.errors import EnvironmentUnready, StageFailed
from envace.io import children
from envace.io.files import sha256, write_text
from envace.io.redact import Redactor
from envace.types import JSON

LOCKS = Path(__file__).resolve().parents[3] / "locks" / "harness"
READY = "ready.json"
INSTALL_S = 3600.0
IMPORT_S = 600.0  # importing litellm takes half a minute on a busy laptop
WAIT_S = 2.0  # between looks at a lock that another builder holds
# how uv says that it cannot reach an index
OFFLINE = (
    "error sending request",
    "could not connect",
    "dns error",
    "failed to fetch",
    "timed out",
    "connection refused",
)
IMPORTS = """
import importlib, json, sys
from importlib.metadata import distributions
for name in sys.argv[2:]:
    importlib.import_module(name)
with open(sys.argv[1], "w") as f:
    json.dump({d.metadata["Name"]: d.version for d in distributions() if d.metadata["Name"]}, f)
"""


def build(spec: HarnessSpec, root: Path, say: Say = print) -> HarnessEnv:
    """The built harness, made now if need be. Raises EnvironmentUnready, naming the fix."""
    if env := find(spec, root):
        return env
    root.mkdir(parents=True, exist_ok=True)
    lock = FileLock(root / f"{spec.ref}.lock")
    try:
        held = lock.acquire(timeout=0)
    except Timeout:
        say(f"{spec.name}: somebody else is building {spec.ref}; waiting")
        held = lock.acquire(poll_interval=WAIT_S)
    with held:
        return find(spec, root) or _make(spec, root.resolve(), say)


def find(spec: HarnessSpec, root: Path) -> HarnessEnv | None:
    """The harness when it is built and intact, else None. A spec of kind "none" needs no building."""
    env = HarnessEnv.at(spec, root.resolve() / spec.ref)
    if spec.kind == "none":
        return env
    try:
        made = ready(env)["lock"] == sha256(LOCKS / spec.lock)
    except (OSError, ValueError, KeyError):
        return None
    return env if made and env.python.exists() and not _wrong_data(env) else None


def ready(env: HarnessEnv) -> dict[str, JSON]:
    """What is known of a built environment: `lock`, `versions` (for ScoreRecord.versions) and `missing`,
    files that the pinned revision lists and its source lacked, none of which `spec.data` asks for.
    """
    if env.spec.kind == "none":
        return {"versions": {}, "missing": []}
    return json.loads((env.root / READY).read_text())


def _make(spec: HarnessSpec, root: Path, say: Say) -> HarnessEnv:
    """Everything into `<ref>.partial`, which takes its name when it is whole."""
    final, partial, scratch, log = (root / f"{spec.ref}{end}" for end in ("", ".partial", ".scratch", ".log"))
    lock, env, began, absent = LOCKS / spec.lock, HarnessEnv.at(spec, partial), time.monotonic(), []
    log.unlink(missing_ok=True)
    if not lock.is_file():
        raise EnvironmentUnready(
            f"locks/harness/{spec.lock} is missing, which {spec.name} is installed from: restore it"
        )
    if final.exists():
        say(f"{spec.name}: {final.name} is not intact or its lock changed; making it anew")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        partial.mkdir(parents=True)
        if spec.kind == "git":  # first: it needs the least time to fail
            absent = sources.checkout(spec, env.source, scratch, log, say)
            _check_data(env)
        _install(env, lock, log, say)
        _check_data(env)
        about = {
            "ref": spec.ref,
            "spec": asdict(spec) | {"uri": Redactor().text(spec.uri)},
            "lock": sha256(lock),
            "missing": absent,
            "versions": smoke(env, log, say),
            "seconds": round(time.monotonic() - began, 1),
        }
        write_text(partial / READY, json.dumps(about, indent=1))
        shutil.rmtree(final, ignore_errors=True)
        os.replace(partial, final)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
        shutil.rmtree(scratch, ignore_errors=True)
        if log.exists():
            write_text(log, Redactor().text(log.read_text(errors="replace")))
    say(f"{spec.name}: ready in {final.name} after {about['seconds']:.0f} s")
    return HarnessEnv.at(spec, final)


def _install(env: HarnessEnv, lock: Path, log: Path, say: Say) -> None:
    """The lock's packages, and a checkout importable. Raises EnvironmentUnready."""
    spec, uv, python = env.spec, str(find_uv()), str(find_python(env.spec.python))
    say(f"{spec.name}: installing locks/harness/{spec.lock} for Python {spec.python}")
    environ = {k: v for k, v in os.environ.items() if k not in ("VIRTUAL_ENV", "PYTHONPATH", "PYTHONHOME")}
    cache = Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")).absolute()
    there = next(p for p in (cache, *cache.parents) if os.path.exists(p))
    if not (there.is_dir() and os.access(there, os.W_OK)):
        environ.setdefault("UV_CACHE_DIR", str(env.root.with_suffix(".scratch") / "uv"))
    environ.setdefault("UV_FIND_LINKS", os.environ.get("PIP_FIND_LINKS", ""))
    # who wants wheels of a folder alone says so to pip; uv has no variable for it
    shelf = "--no-index" if environ.get("PIP_NO_INDEX", "").lower() in ("1", "true", "yes", "on") else ""
    venv = "venv --quiet --relocatable --no-config --python".split()
    # copies: a file linked with uv's cache would carry a change to every other environment
    install = f"pip install --quiet --no-config --no-deps --link-mode copy {shelf} --python".split()
    commands = [*venv, python, str(env.python.parents[1])], [*install, str(env.python), "-r", str(lock)]
    try:
        for argv in commands:
            how = {"log": log, "deadline_s": INSTALL_S, "say": say, "env": environ}
            children.call([uv, *argv], what=f"installation of {spec.name}", **how)
    except StageFailed as e:
        cause = f"locks/harness/{spec.lock} could not be installed: mend the lock, or look into the log"
        if any(sign in log.read_text(errors="replace").lower() for sign in OFFLINE):
            cause = (
                f"the package index could not be reached for {spec.name}: allow access to it (needed once "
                "only) and build again"
            )
        raise EnvironmentUnready(f"{cause} ({Redactor().text(str(e))})") from None
    if spec.kind == "git":  # on the environment's path, relative, so that it can move
        code = env.source / "src" if (env.source / "src").is_dir() else env.source
        (env.packages / "harness.pth").write_text(os.path.relpath(code, env.packages) + "\n")


def smoke(env: HarnessEnv, log: Path, say: Say) -> dict[str, str]:
    """Import the harness and return the version of all its environment holds.

    In a process of its own with an empty network where the system allows that, so that an import which needs
    the web fails here and not in an evaluation. Raises EnvironmentUnready naming what did not import.
    """
    name = env.spec.name
    say(f"{name}: importing it")
    with tempfile.TemporaryDirectory(prefix="ea-") as home:
        found = Path(home, "versions.json")
        environ = {"HOME": home, "TMPDIR": home, "PATH": os.defpath, "LOGNAME": "harness", "LANG": "C.UTF-8"}
        environ |= {"PYTHONNOUSERSITE": "1", "LITELLM_LOCAL_MODEL_COST_MAP": "True", "HF_HUB_OFFLINE": "1"}
        argv = [str(env.python), "-c", IMPORTS, str(found), *env.spec.imports]
        how = {"log": log, "deadline_s": IMPORT_S, "say": say, "env": environ, "cwd": Path(home)}
        try:
            children.call(argv, what=f"import of {name}", wrap=network.wrap() or (), **how)
        except StageFailed as e:
            raise EnvironmentUnready(f"{e}: the lock of {name} does not fit it") from None
        return json.loads(found.read_text())


def _check_data(env: HarnessEnv) -> None:
    """Raises EnvironmentUnready for data that is not what the spec pins."""
    if wrong := _wrong_data(env):
        why = "differs from its pinned sha256" if (env.source / wrong[0]).exists() else "is absent"
        more = f" (and {len(wrong) - 1} more files)" if wrong[1:] else ""
        raise EnvironmentUnready(
            f"{env.spec.name}'s {wrong[0]} {why}{more}: use a source that holds revision "
            f"{env.spec.version[:12]} whole"
        )


def _wrong_data(env: HarnessEnv) -> list[str]:
    files = {name: env.source / name for name in env.spec.data}
    return [name for name, f in files.items() if not f.is_file() or sha256(f) != env.spec.data[name]]


def find_python(version: str) -> Path:
    """An interpreter of that version ("3.12"): the one that the variable PYTHON312 names, else what uv finds
    where this one is, among pyenv's, on PATH and among its own. Raises EnvironmentUnready when there is none.
    """
    variable = f"PYTHON{version.replace('.', '')}"
    pyenv = Path(os.environ.get("PYENV_ROOT") or os.path.expanduser("~/.pyenv"), "versions")
    there = sorted(pyenv.glob(f"{version}*/bin"), reverse=True)  # before its shims, at which uv stops
    places = [str(Path(sys.executable).parent), *map(str, there), os.environ.get("PATH", os.defpath)]
    ask = [str(find_uv()), *"python find --no-cache --no-project --no-python-downloads".split(), version]
    found = os.environ.get(variable) or _says(ask, PATH=os.pathsep.join(places))
    if _says([found, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]) != version:
        raise EnvironmentUnready(
            f"no Python {version} found; install one (pyenv install {version}, uv python install {version}) "
            f"or name it by the environment variable {variable}"
        )
    return Path(found)


def find_uv() -> Path:
    """uv of the running interpreter, else of PATH."""
    beside = Path(sys.executable).with_name("uv")
    found = beside if beside.is_file() else shutil.which("uv")
    if not found:
        raise EnvironmentUnready("uv is missing, which makes the environments of harnesses: make venv")
    return Path(found)


def _says(argv: list[str], **environ: str) -> str:
    """What a short command prints; empty when it cannot be run or fails."""
    how = {"capture_output": True, "text": True, "timeout": 30, "stdin": subprocess.DEVNULL}
    try:
        done = subprocess.run(argv, env=os.environ | environ, **how)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
