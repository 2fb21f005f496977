"""Which split each file of a source belongs to.

Flows in: `data.splits`, a file pattern a split; the names of the source's files. Flows out: file -> split.
Invariant: where splits are named by files, every file is in exactly one and no pattern is idle.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase

from envace.data.source_files import listing
from envace.errors import DataError, ParamsError

NEEDED = ("train", "held")


def read_splits(given: Mapping[str, str], source: str) -> None:
    """Raises ParamsError unless both splits are named, or none."""
    if given and source == "desk":
        raise ParamsError(
            "data.splits deals files to splits, but data.source 'desk' has none: leave it empty"
        )
    if given and set(given) != set(NEEDED):
        raise ParamsError(
            f"data.splits names {', '.join(sorted(given))}; it must name the files of {' and '.join(NEEDED)}, or nothing"
        )


def split_of_files(given: Mapping[str, str], names: Sequence[str]) -> dict[str, str]:
    """The split of each file; empty where none are named. `*` crosses slashes, as in data.patterns.

    Raises DataError naming the files that no pattern or more than one names, or the pattern that names none.
    """
    found = {n: [s for s, pattern in given.items() if fnmatchcase(n, pattern)] for n in names}
    for words, wrong in (
        ("no pattern of data.splits names", [n for n in found if given and not found[n]]),
        ("more than one pattern of data.splits names", [n for n in found if len(found[n]) > 1]),
    ):
        if wrong:
            raise DataError(
                f"{words} {listing(wrong)}; leave files out with data.patterns, or correct data.splits"
            )
    if idle := [s for s in given if not any(s in splits for splits in found.values())]:
        raise DataError(
            f"data.splits.{idle[0]} is {given[idle[0]]!r}, which names no file of the source ({listing(names)})"
        )
    return {n: splits[0] for n, splits in found.items() if splits}
