"""Fixtures of the view tests."""

from view_samples import params, report, run  # noqa: F401
