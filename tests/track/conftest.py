"""Fixtures that several modules here share."""

from trace_kit import log, store

__all__ = ["log", "store"]
