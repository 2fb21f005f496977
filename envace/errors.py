"""Failure classes a user may meet, and the one boundary that turns them into an exit.

Flows in: exceptions. Flows out: one sentence with the innermost cause, a log path where there is one, and a
non-zero exit status.
Invariant: a `UserError` is the user's to fix and prints one message without a traceback; anything else is a
bug and keeps its traceback.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class UserError(Exception):
    """Something the user can fix: the message names what is wrong and how to put it right."""

    exit_code = 2


class ParamsError(UserError):
    """params.yaml holds a key or value that cannot be used."""


class DataError(UserError):
    """Rows are missing, corrupt or do not fit the schema."""


class EnvironmentUnready(UserError):
    """A server, port, folder or interpreter the stage needs is not usable."""

    exit_code = 3


class StageFailed(UserError):
    """A subprocess of a stage ended badly; carries the path of its log."""

    exit_code = 4

    def __init__(self, message: str, log: Path | None = None):
        super().__init__(f"{message} (log: {log})" if log else message)
        self.log = log


def innermost(error: BaseException) -> BaseException:
    """The first cause of a chain of exceptions."""
    seen = set()
    while id(error) not in seen:
        seen.add(id(error))
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__) or error
    return error


def describe(error: BaseException) -> str:
    """One line for people: the message, and the innermost cause where it says more."""
    cause = innermost(error)
    text = str(error).strip() or type(error).__name__
    if not isinstance(error, UserError):
        text = f"{type(error).__name__}: {text}"
    if cause is not error and str(cause).strip() and str(cause) not in text:
        text += f" (cause: {type(cause).__name__}: {cause})"
    return text


@contextmanager
def boundary(what: str) -> Iterator[None]:
    """The outermost frame of every command: prints one message and exits non-zero.

    A bug's traceback goes to stderr once; a user's mistake gets a sentence only.
    """
    try:
        yield
    except UserError as e:
        print(f"{what}: {describe(e)}", file=sys.stderr, flush=True)
        raise SystemExit(e.exit_code) from None
    except KeyboardInterrupt:
        print(f"{what}: interrupted", file=sys.stderr, flush=True)
        raise SystemExit(130) from None
    except BrokenPipeError:  # the reader of our output went away, as in `... | head`
        sys.stderr.close()
        raise SystemExit(0) from None
    except Exception as e:
        traceback.print_exc()
        print(f"{what}: {describe(e)}", file=sys.stderr, flush=True)
        raise SystemExit(1) from None
