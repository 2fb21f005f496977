"""The interpreter an environment is made with, and the tool that makes it.

Flows in: a version ("3.12"). Flows out: paths of programs on this machine.
Invariant: an interpreter is asked for its version before it is named; none is downloaded.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from envace.errors import EnvironmentUnready


def find_python(version: str) -> Path:
    """An interpreter of that version ("3.12"): the variable PYTHON312, this one, PATH, pyenv, uv, in this
    order.

    Raises EnvironmentUnready when there is none. uv alone would not do: it stops at a shim of pyenv.
    """
    variable = f"PYTHON{version.replace('.', '')}"
    named = os.environ.get(variable)  # who names one does not want another
    for candidate in [named] if named else _pythons(version):
        if _says(candidate, "-c", "import sys; print('%d.%d' % sys.version_info[:2])") == version:
            return Path(candidate)
    raise EnvironmentUnready(
        f"no Python {version} found; install one (pyenv install {version}, uv python install {version}) "
        f"or name it by the environment variable {variable}"
    )


def _pythons(version: str) -> Iterator[str]:
    yield sys.executable
    yield f"python{version}"
    if root := _says("pyenv", "root"):
        yield from sorted(map(str, Path(root, "versions").glob(f"{version}*/bin/python")), reverse=True)
    yield _says(str(find_uv()), "python", "find", "--no-python-downloads", version)


def find_uv() -> Path:
    """uv of the running interpreter, else of PATH."""
    beside = Path(sys.executable).with_name("uv")
    found = beside if beside.is_file() else shutil.which("uv")
    if not found:
        raise EnvironmentUnready("uv is missing, which makes the environments of harnesses: make venv")
    return Path(found)


def _says(*argv: str) -> str:
    """What a short command prints; empty when it cannot be run or fails."""
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=30, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
