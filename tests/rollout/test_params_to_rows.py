"""Every value of every switch, from params.yaml through a scripted group to rows and advantages; and the
table of docs/fidelity.md, held against the code."""

import dataclasses
import re
import typing
from pathlib import Path

import pytest
from params_cases import LEARNING, WEIGHING
from params_cases_play import PLAYING
from params_kit import chat_server, learn

from envace.config.method import PRESETS, Method
from envace.errors import UserError
from envace.worlds import registry as worlds

CASES = {**LEARNING, **WEIGHING, **PLAYING}
EACH = [
    pytest.param(name, case, id=f"{name}={case.value}", marks=[pytest.mark.heavy] if case.heavy else [])
    for name, cases in CASES.items()
    for case in cases
]


@pytest.fixture(autouse=True)
def own_worlds(monkeypatch):
    monkeypatch.setattr(worlds, "_users", {})


@pytest.mark.parametrize("name, case", EACH)
def test_a_value_reaches_the_rows(name, case):
    advantages, seen = outcome(name, case.value, case)
    assert list(advantages) == list(case.advantages)
    for episode, (act, rehearse) in case.advantages.items():
        assert advantages[episode] == (pytest.approx(act), pytest.approx(rehearse)), episode
    assert seen == expected(case)


@pytest.mark.parametrize("name, case", [p for p in EACH if not p.marks])
def test_no_other_value_does_the_same(name, case):
    """Were a value ignored, or taken for its neighbour, its case would fail."""
    values = [c.value for c in CASES[name] if not c.heavy]
    other = values[(values.index(case.value) + 1) % len(values)]
    try:
        advantages, seen = outcome(name, other, case)
    except UserError:
        return  # the neighbour needs what this case does not have
    alike = all(
        advantages[episode] == (pytest.approx(act), pytest.approx(rehearse))
        for episode, (act, rehearse) in case.advantages.items()
    )
    assert not (alike and seen == expected(case))


def outcome(name, value, case):
    """(advantages, what is seen) of a case's inputs under a value of its switch."""
    with chat_server(case.served) as url:
        more = case.more(url) if callable(case.more) else case.more
        found = learn({name: value, **case.also}, **more)
    return found.advantages(), case.seen(found) if case.seen else None


def expected(case):
    return pytest.approx(case.expected) if _numbers(case.expected) else case.expected


def _numbers(value: object) -> bool:
    return isinstance(value, tuple) and all(isinstance(v, float) for v in value)


def values_of(name: str) -> list[str]:
    """The values of a switch as the table spells them; none for numbers."""
    hint = typing.get_type_hints(Method)[name]
    if hint is bool:
        return ["true", "false"]
    if typing.get_origin(hint) is tuple and typing.get_args(hint)[0] is not float:
        hint = typing.get_args(hint)[0]
    return list(typing.get_args(hint)) if typing.get_origin(hint) is typing.Literal else []


FIELDS = [f.name for f in dataclasses.fields(Method)]


def test_every_value_of_every_switch_has_a_case():
    assert sorted(CASES) == sorted(FIELDS)
    for name, cases in CASES.items():
        values = [case.value for case in cases]
        lists = [v if isinstance(v, list) else [v] for v in values]
        tried = {spelled(v) for value in lists for v in value}
        if known := values_of(name):
            assert tried == set(known), name
        assert len({str(v) for v in values}) == len(values) >= 2, name  # of a number, two at least


# --- docs/fidelity.md -----------------------------------------------------------------------------

PAGE = (Path(__file__).resolve().parents[2] / "docs/fidelity.md").read_text(encoding="utf-8")


def table(title: str) -> list[list[str]]:
    """The cells of a section's table, without its head."""
    section = PAGE.split(f"## {title}\n")[1].split("\n## ")[0]
    lines = [line.strip("|").split(" | ") for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line] for line in lines[2:]]


def code(cell: str) -> str:
    """What stands in the first backticks of a cell."""
    return re.match(r"`([^`]*)`", cell)[1]


def spelled(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return ", ".join(map(spelled, value))
    return f"{value:g}" if isinstance(value, float) else str(value)


def test_the_page_has_one_line_for_every_switch_with_the_presets_values():
    lines = table("The switches")
    assert [code(line[0]) for line in lines] == FIELDS
    for name, *cells in ([code(line[0]), *line[1:]] for line in lines):
        for preset, cell in zip(("paper", "authors", "envace"), cells):
            assert code(cell) == spelled(getattr(PRESETS[preset], name)), (name, preset)
        assert len(cells) == 4 and len(cells[3]) > 10, name
