"""Secrets out of exceptions, which others print.

Flows in: an exception, and what takes the secrets out of a text. Flows out: the same exception, or one in its place.
Invariant: neither it nor a cause, a context or a member of a group prints a secret, notes included; what hangs
together still does. An exception is changed where it stands and keeps its class, so a `UserError` stays one. Only one
whose words lie where they cannot be set (a library's own object) becomes a `Redacted` with its class in the text, and a
group with such a member a new group. What an exception holds without printing it (other objects, the variables of its
frames) is left as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NoReturn

Text = Callable[[str], str]
OF_THE_SYSTEM = ("strerror", "filename", "filename2")  # of an OSError, which vars() lacks


class Redacted(Exception):
    """Stands for an exception whose own words could not be set: `ValidationError: 1 error ... [redacted]`."""


def cleaned(error: BaseException, text: Text) -> BaseException:
    """`error` without secrets, itself where that can be."""
    found = list(_reached(error))
    stands: dict[int, BaseException] = {}
    for one in found:
        _set_words(one, text)
    for one in found:
        _stand_in(one, text, stands)
    for one in found:
        _link(one, stands)
    return stands[id(error)]


def raise_as_it_is(error: BaseException) -> NoReturn:
    """Raise, but leave the context alone: Python would put what is being handled there."""
    context = error.__context__
    try:
        raise error
    finally:
        error.__context__ = context


def _reached(error: BaseException) -> Iterator[BaseException]:
    """The exception and all that hang on it, each once."""
    seen, todo = set(), [error]
    while todo:
        if id(one := todo.pop()) not in seen:
            seen.add(id(one))
            yield one
            todo += [e for e in (one.__cause__, one.__context__, *_members(one)) if e is not None]


def _members(error: BaseException) -> tuple[BaseException, ...]:
    return error.exceptions if isinstance(error, BaseExceptionGroup) else ()


def _set_words(error: BaseException, text: Text) -> None:
    """Take the secrets out where the words of most exceptions stand."""

    def words(value: Any) -> Any:
        return text(value) if isinstance(value, str) else value

    for name in OF_THE_SYSTEM if isinstance(error, OSError) else ():
        if isinstance(
            value := getattr(error, name, None), str
        ):  # where nothing is set, None would be printed
            setattr(error, name, words(value))
    vars(error).update({k: words(v) for k, v in vars(error).items()})
    if isinstance(notes := getattr(error, "__notes__", None), (list, tuple)):
        error.__notes__ = [words(note) if isinstance(note, str) else words(repr(note)) for note in notes]
    if (clean := tuple(map(words, error.args))) != error.args:
        error.args = clean
    if not _is_clean(error, text) and not isinstance(error, BaseExceptionGroup):
        error.args = (text(_said(error)),)  # one of them is an object that prints a secret


def _stand_in(error: BaseException, text: Text, stands: dict[int, BaseException]) -> BaseException:
    """What to print in its place: itself where it is clean. A group's members cannot be set, nor its own words."""
    if id(error) in stands:
        return stands[id(error)]
    old = _members(error)
    members = [_stand_in(member, text, stands) for member in old]
    if _is_clean(error, text) and all(a is b for a, b in zip(old, members)):
        stands[id(error)] = error
    elif isinstance(error, BaseExceptionGroup):
        stands[id(error)] = BaseExceptionGroup(text(error.message), members)
    else:
        stands[id(error)] = Redacted(f"{type(error).__name__}: {text(_said(error))}")
    return stands[id(error)]


def _link(error: BaseException, stands: dict[int, BaseException]) -> None:
    """Let what stands for an exception have its causes, its place and its notes."""
    new, hidden = stands[id(error)], error.__suppress_context__
    new.__traceback__ = error.__traceback__
    if new is not error and hasattr(error, "__notes__"):
        new.__notes__ = error.__notes__
    new.__cause__ = stands[id(error.__cause__)] if error.__cause__ is not None else None
    new.__context__ = stands[id(error.__context__)] if error.__context__ is not None else None
    new.__suppress_context__ = hidden  # a cause that is set sets it


def _said(error: BaseException) -> str:
    try:
        return str(error)
    except (
        Exception
    ):  # as one whose words need what it no longer has; a traceback prints nothing of it either
        return ""


def _is_clean(error: BaseException, text: Text) -> bool:
    return text(said := _said(error)) == said
