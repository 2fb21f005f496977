"""Executable worlds: the registry of their kinds, and the two that come with the project."""
