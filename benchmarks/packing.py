"""Rows into micro-batches where padding cannot be removed: ours beside padding to the longest and verl's balancing.

Flows in: log-normal row lengths and a budget of padded tokens. Flows out: a table, and JSON where `--out` says.
Invariant: nothing is timed before every packing holds every row once; the order alternates from round to round; one thread,
CPU seconds of this process.

`useful` is the share of computed tokens that are no padding, `steps` the number of forward passes, the last number the
padded tokens of the largest one as a share of the budget.
  pad to longest   all rows as long as the longest, as many at once as the budget holds
  verl balanced    `get_seqlen_balanced_partitions` of verl over as many parts as the tokens without padding need, as verl
                   calls it: on a GPU it removes the padding, and then balance is what counts
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.table import alternate, times, write_json
from envace.errors import EnvironmentUnready, boundary

PADDED, PEER, OURS = "pad to longest", "verl balanced", "envace"
Parts = list[list[int]]


def lengths(n: int, mean: int, most: int, seed: int = 0) -> list[int]:
    rng = random.Random(seed)
    return [max(16, min(most, int(rng.lognormvariate(0, 0.7) * mean / 1.28))) for _ in range(n)]


def padded(found: Sequence[int], budget: int) -> Parts:
    at_once = max(1, budget // max(found))
    return [list(range(k, min(k + at_once, len(found)))) for k in range(0, len(found), at_once)]


def balanced(partition: Any, found: Sequence[int], budget: int) -> Parts:
    return partition(list(found), max(1, -(-sum(found) // budget)), equal_size=False)


def cost(found: Sequence[int], part: Sequence[int]) -> int:
    """Tokens computed for a micro-batch, padding included."""
    return len(part) * max(found[i] for i in part)


def check(name: str, found: Sequence[int], parts: Parts) -> None:
    """Raises ValueError unless each row is in exactly one part."""
    if sorted(i for part in parts for i in part) != list(range(len(found))):
        raise ValueError(f"{name} loses or repeats rows: nothing to time")


def compare(n: int, mean: int, most: int, budget: int, rounds: int) -> dict[str, Any]:
    try:
        import verl.utils.seqlen_balancing as verls

        from envace.engine.microbatches import by_length
    except ImportError as e:
        raise EnvironmentUnready(f"the peer is not installed: {e}") from None
    found = lengths(n, mean, most)
    entries: dict[str, Callable[[], Parts]] = {
        PADDED: lambda: padded(found, budget),
        PEER: lambda: balanced(verls.get_seqlen_balanced_partitions, found, budget),
        OURS: lambda: by_length(found, range(n), budget),
    }
    parts = {name: run() for name, run in entries.items()}
    for name, made in parts.items():
        check(name, found, made)
    spent = alternate(entries, rounds)
    computed = {
        name: [len(part) * max(found) if name == PADDED else cost(found, part) for part in made]
        for name, made in parts.items()
    }
    median = {name: 1e3 * statistics.median(seconds) for name, seconds in spent.items()}
    useful = {name: sum(found) / sum(tokens) for name, tokens in computed.items()}
    print(
        f"\n{n} rows, {sum(found) / n:.0f} tokens on average, longest {max(found)}, budget {budget}, {rounds} rounds"
    )
    for name, made in parts.items():
        ms, largest = median[name], max(computed[name]) / budget
        print(
            f"  {name:16} {useful[name]:7.1%} useful, {len(made):5} steps, the largest {largest:5.2f} of the budget,"
            f" {ms:8.2f} ms CPU"
        )
    return {
        "rows": n, "mean": mean, "budget": budget, "rounds": rounds, "useful": useful,
        "steps": {name: len(made) for name, made in parts.items()}, "cpu_s": spent,
        "largest": {name: max(tokens) / budget for name, tokens in computed.items()}, "median_ms": median,
        "times": times(median, OURS),
        "computed": {name: sum(tokens) for name, tokens in computed.items()},
    }  # fmt: skip


def main() -> None:
    """Compare packing with padding to the longest row and verl's balancing."""
    cli = argparse.ArgumentParser(prog="python -m benchmarks.packing", description=main.__doc__)
    cli.add_argument("--rows", type=int, nargs="+", default=[1280])
    cli.add_argument("--mean", type=int, default=5200)
    cli.add_argument("--most", type=int, default=20_000)
    cli.add_argument("--budget", type=int, nargs="+", default=[20_000, 80_000])
    cli.add_argument("--rounds", type=int, default=5)
    cli.add_argument("--out", type=Path, help="write the numbers as JSON")
    args = cli.parse_args()
    with boundary("benchmarks.packing"):
        found = [compare(n, args.mean, args.most, b, args.rounds) for n in args.rows for b in args.budget]
        if args.out:
            write_json(args.out, {"results": found}, ("verl",), {})


if __name__ == "__main__":
    sys.exit(main())
