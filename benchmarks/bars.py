"""What all benchmarks found, on one page: each ratio to a peer, and the bar it was to reach where one was set.

Flows in: the JSON files of one run. Flows out: lines, and a markdown table of them.
Invariant: a ratio is a peer's amount over ours, so that above 1 is ours for the better; of several results of one kind the
worst counts; what was not measured is neither met nor missed.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from envace.errors import DataError

OURS = "envace"
BEGIN, END = "<!-- ratios -->", "<!-- end -->"


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """`Line(name="ACT tokens", benchmark="merging", peer="one row a generation", where={"turns": 20}, bar=4.0)`"""

    name: str
    benchmark: str
    peer: str
    ours: str = OURS
    amounts: str = "median_ms"  # the key that holds both amounts
    unit: str = "ms"
    where: Mapping[str, Any] = field(default_factory=dict)  # what a result must say of itself
    bar: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """`Found(name="ACT tokens", peer="one row a generation", theirs=111719.0, ours=9425.0, ratio=11.9, bar=4.0, met=True, ...)`"""

    name: str
    benchmark: str
    peer: str
    unit: str
    theirs: float | None = None
    ours: float | None = None
    ratio: float | None = None
    bar: float | None = None
    met: bool | None = None


def _advantage(form: str, rows: int, name: str, **more: Any) -> Line:
    where = {"what": form, "rows": rows}
    return Line(name=name, benchmark="advantage", where=where, **{"peer": "verl loop", **more})


LOOP, READY = "verl loop", "envace, ids ready"
LINES = (
    _advantage("tokens", 10240, "advantages, 10,240 rows over 512 tokens", bar=3.0),
    _advantage("tokens", 10240, "advantages, 10,240 rows over 512 tokens", peer="verl vectorised"),
    _advantage("scalar", 10240, "advantages, 10,240 rows, a number each"),
    _advantage("scalar", 10240, "the same, ids as integers", ours=READY),
    _advantage("tokens", 102_400, "advantages, 102,400 rows over 512 tokens"),
    _advantage("scalar", 102_400, "the same, a number each, ids as integers", ours=READY),
    Line(name="rows, advantages and packing of 64 episodes", benchmark="batch", peer="verl's parts",
         where={"episodes": 64}),
    Line(name="prompts of 8 tool turns", benchmark="prompts", peer="render anew", where={"turns": 8}),
    Line(name="prompts of 30 tool turns", benchmark="prompts", peer="render anew", where={"turns": 30}, bar=20.0),
    Line(name="prompts of 30 tool turns", benchmark="prompts", peer="verl's builder", where={"turns": 30}, bar=1.0),
    Line(name="prompts of 30 tool turns", benchmark="prompts", peer="verl's builder, no tools", where={"turns": 30}),
    *(
        Line(name=f"tool calls of a message, {what}", benchmark="parser", peer="verl hermes", amounts="median_us",
             unit="us", where={"what": what})
        for what in ("ids, 40 words", "text, 40 words", "ids, 400 words", "text, 400 words")
    ),
    Line(name="ACT tokens of an episode of 20 turns", benchmark="merging", peer="one row a generation", ours="merged",
         amounts="act_tokens", unit="tokens", where={"turns": 20}, bar=4.0),
    Line(name="tokens computed for a batch, padding included", benchmark="packing", peer="pad to longest",
         amounts="computed", unit="tokens", where={"rows": 1280, "budget": 20_000}),
    Line(name="packing 1280 rows", benchmark="packing", peer="verl balanced", where={"rows": 1280, "budget": 20_000}),
    Line(name="64 episodes, simulated latency", benchmark="scheduling", peer="lock-step", amounts="median_s", unit="s",
         where={"groups": 16}, bar=2.0),
    Line(name="64 episodes, simulated latency", benchmark="scheduling", peer="verl's agent loops", amounts="median_s",
         unit="s", where={"groups": 16}, bar=0.99),
    Line(name="staging 1000 rows", benchmark="staging", peer="plain loop", amounts="rows_a_second", unit="rows/s",
         where={"what": "staging", "rows": 1000}),
    Line(name="a token sampled on the CPU", benchmark="sampling", peer="transformers generate", amounts="median_us",
         unit="us"),
)  # fmt: skip


def measured(out: Path, ended_well: Mapping[str, bool], lines: Iterable[Line] = LINES) -> list[Found]:
    """The lines of the benchmarks of one run; of those that did not end well nothing is read."""
    results = {name: _results(out / f"{name}.json") if well else [] for name, well in ended_well.items()}
    return [_find(line, results[line.benchmark]) for line in lines if line.benchmark in results]


def _results(path: Path) -> list[dict[str, Any]]:
    return json.loads(path.read_text(encoding="utf-8"))["results"]


def _find(line: Line, results: Iterable[dict[str, Any]]) -> Found:
    same = {
        "name": line.name,
        "benchmark": line.benchmark,
        "peer": line.peer,
        "unit": line.unit,
        "bar": line.bar,
    }
    fitting = [r[line.amounts] for r in results if all(r.get(k) == v for k, v in line.where.items())]
    pairs = [(of[line.peer], of[line.ours]) for of in fitting if line.peer in of]
    if not pairs:
        return Found(**same)
    theirs, ours = min(pairs, key=lambda pair: _ratio(line, *pair))
    ratio = _ratio(line, theirs, ours)
    return Found(
        **same, theirs=theirs, ours=ours, ratio=ratio, met=None if line.bar is None else ratio >= line.bar
    )


def _ratio(line: Line, theirs: float, ours: float) -> float:
    """Of what is spent, theirs over ours; of rates the other way round."""
    over, under = (ours, theirs) if line.unit.endswith("/s") else (theirs, ours)
    return over / under if under else float("inf")


def table(found: Iterable[Found]) -> str:
    """Markdown; a line without a bar that was not measured is left out."""
    heads = "| what | beside | theirs | envace | times | bar | |"
    lines = [heads, "|---|---|---|---|---|---|---|"]
    for f in found:
        bar = "" if f.bar is None else f"{f.bar:g}"
        met = {None: "", True: "met", False: "**missed**"}[f.met]
        if f.ratio is not None:
            amounts = f"{_show(f.theirs)} {f.unit} | {_show(f.ours)} {f.unit} | {_show(f.ratio)}"
            lines.append(f"| {f.name} | {f.peer} | {amounts} | {bar} | {met} |")
        elif f.bar is not None:
            lines.append(f"| {f.name} | {f.peer} | not measured | | | {bar} | |")
    return "\n".join(lines)


def into(page: Path, text: str) -> None:
    """Put `text` between the marks of a document. Raises DataError where there are none."""
    before, mark, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (mark and end):
        raise DataError(f"{page} has no place for the table: {BEGIN} and {END} on lines of their own")
    page.write_text(f"{before}{mark}\n{text}\n{end}{after}", encoding="utf-8")


def _show(amount: float) -> str:
    """Three digits that count."""
    return f"{amount:,.0f}" if amount >= 100 else f"{amount:.3g}"
