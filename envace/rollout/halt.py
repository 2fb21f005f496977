"""The one boundary at which a foreign failure becomes a named stop reason.

Flows in: whatever a policy, an observation source or a judge raises. Flows out: `Halt` with a stop reason and a
sentence; the episode turns it into its last field.
Invariant: cancellation and exits pass untouched, and the first reason given is the one that is kept.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from envace.errors import describe
from envace.types import StopReason


class Halt(Exception):
    """Ends an episode for a named reason."""

    def __init__(self, stop: StopReason, detail: str = ""):
        super().__init__(detail or stop.value)
        self.stop, self.detail = stop, detail


@contextmanager
def halting(stop: StopReason) -> Iterator[None]:
    """Turn any exception of foreign code into `Halt(stop)`: the documented boundary of the rollout.

    Policies, worlds and judges are plug-ins; one that breaks costs its episode, not the run. CancelledError is
    no `Exception` and passes.
    """
    try:
        yield
    except Halt:
        raise
    except Exception as e:
        raise Halt(stop, describe(e)) from e
