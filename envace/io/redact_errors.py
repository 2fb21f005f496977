"""Secrets out of exceptions, which others print.

Flows in: an exception, and what takes the secrets out of a text. Flows out: the same exception, or one in its
place. Invariant: neither it nor a cause, a context or a member of a group prints a secret, notes included;
what hangs together still does. An exception is changed where it stands and keeps its class, so a `UserError`
stays one. Only one whose words cannot be set (a library's own object) becomes a `Redacted` with its class in
the text, and a group with such a member a new group. What an exception holds without printing it is left as
it is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NoReturn

Clean = Callable[[str], str]
OF_THE_SYSTEM = ("strerror", "filename", "filename2")  # of an OSError, which vars() lacks


class Redacted(Exception):
    """Stands for an exception whose own words could not be set: `ValidationError: 1 error ... [redacted]`."""


def cleaned(error: BaseException, clean: Clean) -> BaseException:
    """`error` without secrets, itself where that can be."""
    found = list(_reached(error))
    for one in found:
        _set_words(one, clean)
    stands: dict[int, BaseException] = {}
    for one in found:
        _stand_in(one, clean, stands)
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


def _set_words(error: BaseException, clean: Clean) -> None:
    """Take the secrets out where the words of most exceptions stand."""
    for name in (*vars(error), *(OF_THE_SYSTEM if isinstance(error, OSError) else ())):
        value = getattr(error, name, None)
        if isinstance(value, str):  # where nothing is set, None would be printed
            setattr(error, name, clean(value))
        elif name == "__notes__" and isinstance(value, (list, tuple)):
            error.__notes__ = [clean(note if isinstance(note, str) else repr(note)) for note in value]
    args = tuple(clean(a) if isinstance(a, str) else a for a in error.args)
    if args != error.args:
        error.args = args
    if not _is_clean(error, clean) and not _members(error):
        error.args = (clean(_said(error)),)  # one of them is an object that prints a secret


def _stand_in(error: BaseException, clean: Clean, stands: dict[int, BaseException]) -> BaseException:
    """What to print in its place: itself where it is clean. A group's members cannot be set, nor its own
    words."""
    if id(error) not in stands:
        old = _members(error)
        members = [_stand_in(member, clean, stands) for member in old]
        if _is_clean(error, clean) and all(a is b for a, b in zip(old, members)):
            stands[id(error)] = error
        elif isinstance(error, BaseExceptionGroup):
            stands[id(error)] = BaseExceptionGroup(clean(error.message), members)
        else:
            stands[id(error)] = Redacted(f"{type(error).__name__}: {clean(_said(error))}")
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
    except Exception:  # one whose words need what it no longer has; a traceback prints nothing of it either
        return ""


def _is_clean(error: BaseException, clean: Clean) -> bool:
    said = _said(error)
    return clean(said) == said
