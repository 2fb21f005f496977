"""Files that are either whole or absent.

Flows in: a target path and bytes. Flows out: the file, put in place by one rename.
Invariant: nobody ever reads a half-written file under the target's name.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from envace.errors import EnvironmentUnready


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary path beside `path`; on a clean exit it takes the place of `path`, else it is removed.

    Raises EnvironmentUnready when the folder cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".part", dir=path.parent)
    except OSError as e:
        raise EnvironmentUnready(f"cannot write {path}: {e.strerror or e}") from e
    os.close(handle)
    part = Path(name)
    try:
        yield part
        part.chmod(0o644)
        os.replace(part, path)
    except OSError as e:
        raise EnvironmentUnready(f"cannot write {path}: {e.strerror or e}") from e
    finally:
        part.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Put a UTF-8 text file in place."""
    with replacing(path) as part:
        part.write_text(text, encoding="utf-8")


def sha256(path: Path) -> str:
    """Hex digest of a file's bytes."""
    with path.open("rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()
