"""Tokens a trainer reads an episode: one row a generation beside ACT generations merged into the stream they are.

Flows in: numbers of turns and tokens. Flows out: a table, and JSON where `--out` says.
Invariant: nothing is reported before both forms train the same tokens, each predicted from the same tokens before it;
that loss and gradient are then equal is what tests/learn/test_sequences.py holds to 1e-5.

One row a generation is how the authors' code and verl's own multi-turn data train; the prompt is read again each turn.
"""

from __future__ import annotations

import argparse
import hashlib
import statistics
import sys
from array import array
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from benchmarks import episodes
from benchmarks.table import alternate, write_json
from envace.config.method import Method
from envace.errors import boundary
from envace.learn.sequences import TrainingSequence, sequences_of
from envace.types import Episode, Role

PEER, OURS = "one row a generation", "merged"
HOW = {PEER: "generation", OURS: "merged"}


def streams(played: Iterable[Episode], how: str) -> list[TrainingSequence]:
    method = Method(rows=how)
    return [sequence for e in played for sequence in sequences_of(e, method)]


def predictions(found: Iterable[TrainingSequence]) -> Counter[bytes]:
    """Each trained token with the hash of all tokens before it."""
    seen: Counter[bytes] = Counter()
    for stream in found:
        digest = hashlib.sha256(array("q", stream.prompt_ids))
        for token, trained in zip(stream.response_ids, stream.loss_mask, strict=True):
            if trained:
                seen[digest.digest()[:12] + token.to_bytes(4, "big")] += 1
            digest.update(token.to_bytes(8, sys.byteorder))
    return seen


def tokens(found: Iterable[TrainingSequence], role: Role) -> int:
    return sum(len(s.prompt_ids) + len(s.response_ids) for s in found if s.rows[0].role is role)


def compare(turns: int, n: int, head: int, act: int, result: int, rounds: int) -> dict[str, Any]:
    """Raises ValueError when the two forms train different tokens."""
    played = episodes.make(n, (turns, turns), head=head, act=act, result=result)
    found = {name: streams(played, how) for name, how in HOW.items()}
    if predictions(found[PEER]) != predictions(found[OURS]):
        raise ValueError("the two forms train different tokens: nothing to report")
    spent = alternate({name: lambda how=how: streams(played, how) for name, how in HOW.items()}, rounds)
    read = {name: {role.value: tokens(s, role) / n for role in Role} for name, s in found.items()}
    times = {
        role.value: read[PEER][role.value] / read[OURS][role.value] for role in Role if read[OURS][role.value]
    }
    print(f"\n{turns} ACT generations an episode, {n} episodes, the same tokens trained")
    for name, of in read.items():
        cpu = 1e3 * statistics.median(spent[name]) / n
        print(
            f"  {name:22} {of['act']:9.0f} ACT tokens an episode, {of['rehearse']:7.0f} REHEARSE, "
            f"{len(found[name]) / n:5.1f} sequences, {cpu:6.2f} ms CPU"
        )
    print(f"  merged reads {times['act']:.1f}x fewer ACT tokens")
    return {
        "turns": turns, "episodes": n, "head": head, "act": act, "result": result, "tokens_an_episode": read,
        "act_tokens": {name: of["act"] for name, of in read.items()}, "times_fewer": times, "cpu_s": spent,
    }  # fmt: skip


def main() -> None:
    """Compare the tokens of merged and unmerged rows."""
    cli = argparse.ArgumentParser(prog="python -m benchmarks.merging", description=main.__doc__)
    cli.add_argument("--turns", type=int, nargs="+", default=[8, 20, 30])
    cli.add_argument("--episodes", type=int, default=8)
    cli.add_argument("--head", type=int, default=1500, help="tokens of system message and tools")
    cli.add_argument("--act", type=int, default=250)
    cli.add_argument("--result", type=int, default=150)
    cli.add_argument("--rounds", type=int, default=5)
    cli.add_argument("--out", type=Path, help="write the numbers as JSON")
    args = cli.parse_args()
    with boundary("benchmarks.merging"):
        found = [compare(t, args.episodes, args.head, args.act, args.result, args.rounds) for t in args.turns]
        if args.out:
            write_json(args.out, {"results": found}, (), {})


if __name__ == "__main__":
    sys.exit(main())
