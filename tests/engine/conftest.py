"""Fixtures that several modules here share."""

from engine_kit import engine, one_rank, start
from step_kit import step_of, trainer

__all__ = ["engine", "one_rank", "start", "step_of", "trainer"]
