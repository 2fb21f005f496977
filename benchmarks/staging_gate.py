"""What staging must reach at size, and whether it does.

Flows in: stagings of growing size (benchmarks/staging_scale.py), and the comparison with plain loops
(benchmarks/staging.py). Flows out: one line a bar, as records and as a markdown table.
Invariant: a bar is met or missed by the numbers beside it; nothing is rounded before it is compared.

The fair peer is the loop with schemas remembered: most rows offer tools that others offer too, and whoever writes such a
loop soon notices that jsonschema's own check of a schema is nearly all it does. Time is CPU seconds: a busy machine
stretches the others.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

SIZES = (10_000, 20_000, 50_000)
MEMORY_MIB = 1536
GROWTH = (
    1.1  # peak memory of the largest over that of the smallest; what stays of a row is its id and digests
)
SLOPE = 1.1
ROW_BYTES = 12_000
FASTER = 1.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """`Bar(what="slope of CPU seconds over rows, log-log", found=1.01, bar="at most 1.1", met=True)`"""

    what: str
    found: float
    bar: str
    met: bool


def slope(points: Sequence[tuple[float, float]]) -> float:
    """Of the least-squares line through (log x, log y): 1 where y grows as x does."""
    xs, ys = [math.log(x) for x, _ in points], [math.log(y) for _, y in points]
    x0, y0 = sum(xs) / len(xs), sum(ys) / len(ys)
    return sum((x - x0) * (y - y0) for x, y in zip(xs, ys)) / sum((x - x0) ** 2 for x in xs)


def bars(scaled: Sequence[Mapping[str, Any]], peers: Iterable[Mapping[str, Any]], ours: str) -> list[Bar]:
    """Every bar with what was found."""
    ordered = sorted(scaled, key=lambda s: s["rows"])
    peak = max(s["peak_mib"] for s in ordered)
    grown = ordered[-1]["peak_mib"] / ordered[0]["peak_mib"]
    cpu = slope([(s["rows"], s["cpu_seconds"]) for s in ordered])
    size, wrong = min(s["row_bytes"] for s in ordered), sum(not s["exact"] for s in ordered)
    return [
        Bar(what="stagings with a wrong count of a reason", found=wrong, bar="0", met=wrong == 0),
        Bar(what="bytes of a row, mean", found=size, bar=f"at least {ROW_BYTES:,}", met=size >= ROW_BYTES),
        Bar(what="peak memory, MiB", found=peak, bar=f"at most {MEMORY_MIB:,}", met=peak <= MEMORY_MIB),
        Bar(what=f"peak memory, {ordered[-1]['rows']:,} rows over {ordered[0]['rows']:,}", found=grown,
            bar=f"at most {GROWTH}", met=grown <= GROWTH),
        Bar(what="slope of CPU seconds over rows, log-log", found=cpu, bar=f"at most {SLOPE}", met=cpu <= SLOPE),
        *(_faster(peer["what"], name, peer["rows_a_second"], ours) for peer in peers for name in peer["rows_a_second"]
          if name != ours),
    ]  # fmt: skip


def _faster(what: str, peer: str, rates: Mapping[str, float], ours: str) -> Bar:
    ratio = rates[ours] / rates[peer]
    return Bar(
        what=f"{what}, rows a CPU second over: {peer}",
        found=ratio,
        bar=f"at least {FASTER}",
        met=ratio >= FASTER,
    )


def sizes(scaled: Iterable[Mapping[str, Any]]) -> str:
    """Markdown: a line a staging."""
    lines = [
        f"| {s['rows']:,} | {s['workers']} | {s['seconds']:.1f} | {s['cpu_seconds']:.1f} | {s['peak_mib']:.0f} |"
        for s in scaled
    ]
    return "\n".join(
        ["| rows | processes | seconds | CPU seconds | peak MiB |", "|---|---|---|---|---|", *lines]
    )


def table(found: Iterable[Bar]) -> str:
    """Markdown: a line a bar."""
    lines = [f"| {b.what} | {_show(b.found)} | {b.bar} | {'met' if b.met else '**missed**'} |" for b in found]
    return "\n".join(["| what | found | bar | |", "|---|---|---|---|", *lines])


def _show(number: float) -> str:
    return f"{number:,.0f}" if number >= 100 or number == int(number) else f"{number:.3g}"
