"""`python -m envace.data.worker`: a process that works on chunks for `envace.data.pool`.

Flows in: pickles on standard input, first (function, worlds), then one a chunk. Flows out: pickles on standard
output, (True, result) or (False, exception) a chunk.
Invariant: answers come in the order of the chunks; it ends with its input, so with its parent. Nothing else is
written to standard output: what the work prints goes to standard error.
"""

from __future__ import annotations

import gc
import os
import pickle
import signal
import sys
import traceback
from typing import Any, BinaryIO

from envace.data.pool import RARE
from envace.worlds import registry as worlds


def serve(asked: BinaryIO, told: BinaryIO) -> None:
    """Answer until the input ends."""
    work, kinds = pickle.load(asked)
    worlds.load(kinds)
    while True:
        try:
            part = pickle.load(asked)
        except EOFError:
            return
        told.write(_answer(work, part))
        told.flush()


def _answer(work: Any, part: Any) -> bytes:
    try:
        return pickle.dumps((True, work(part)), pickle.HIGHEST_PROTOCOL)
    except Exception as e:
        e.add_note(traceback.format_exc())  # the parent's traceback ends where it reads the answer
        return _failure(e)


def _failure(error: Exception) -> bytes:
    try:
        text = pickle.dumps((False, error))
        pickle.loads(text)  # some exceptions can be written but not read
        return text
    except Exception:
        return pickle.dumps((False, RuntimeError("".join(traceback.format_exception(error)))))


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the parent, which ends this process
    gc.set_threshold(RARE)
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    serve(sys.stdin.buffer, answers)
