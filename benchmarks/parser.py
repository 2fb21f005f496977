"""Reading tool calls: ours beside verl's Hermes parser.

Flows in: synthetic messages, and the published case table. Flows out: a table, and JSON where `--out` says.
Invariant: nothing is timed before both find the same calls in every message; the order alternates from round to
round; one thread, CPU seconds of this process.

Messages are such that both parsers understand them: blocks of one object each with `name` and `arguments`, none inside
a thought. Two quantities, because verl's parser takes token ids and hands decoding to a thread:
  ids   token ids -> calls, with Qwen3's tokenizer where it is at hand: what an agent loop pays.
  text  the same from decoded text; verl has no such entry, so its tokenizer is replaced by one that knows the text.
The cases show where the two differ when a message is not so plain: in which verl's parser finds other calls than the
table says. That it drops a broken call, where ours names a reason to ACT, does not count as a difference.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import random
import statistics
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks import qwen3
from benchmarks.table import alternate, quartiles, times, write_json
from envace.chat.calls import parse_assistant, render_calls
from envace.errors import EnvironmentUnready, boundary
from envace.types import ToolCall

PEER, OURS = "verl hermes", "envace"
CASES = Path(__file__).parents[1] / "tests/chat/cases_calls.json"
WORDS = (
    "order account booking ship cancel refund total city date please note check before limit credit".split()
)
Calls = list[list[Any]]  # [name, arguments] each


def make_messages(n: int, words: int, seed: int = 0) -> list[str]:
    """`n` messages of about `words` words around 0 to 3 calls; two thirds think first."""
    rng = random.Random(seed)

    def prose(k: int) -> str:
        return " ".join(rng.choices(WORDS, k=k))

    def call() -> ToolCall:
        arguments = {
            rng.choice(WORDS): rng.choice([prose(3), rng.randrange(1000), [prose(1)]]) for _ in range(3)
        }
        return ToolCall(name=f"get_{rng.choice(WORDS)}", arguments=arguments)

    return [
        (f"<think>\n{prose(words)}\n</think>\n\n" if rng.random() < 2 / 3 else "")
        + f"{prose(words // 8)}\n{render_calls(call() for _ in range(k % 4))}"
        for k in range(n)
    ]


class Known:
    """Stands for a tokenizer where the text is at hand: its ids are the text."""

    def decode(self, text: str) -> str:
        return text


def peer(parser: Any, messages: Sequence[Any]) -> Callable[[], list[Calls]]:
    """All messages in one event loop, the state an agent loop finds."""

    async def read() -> list[Calls]:
        found = [(await parser.extract_tool_calls(message))[1] for message in messages]
        return [[[c.name, json.loads(c.arguments)] for c in calls] for calls in found]

    return lambda: asyncio.run(read())


def ours(decode: Callable[[Any], str], messages: Sequence[Any]) -> Callable[[], list[Calls]]:
    return lambda: [[[c.name, c.arguments] for c in parse_assistant(decode(m)).calls] for m in messages]


def check_equal(entries: dict[str, Callable[[], list[Calls]]]) -> int:
    """How many calls there are. Raises ValueError when the parsers differ on a message."""
    found = [run() for run in entries.values()]
    for k, calls in enumerate(zip(*found, strict=True)):
        if any(c != calls[0] for c in calls):
            raise ValueError(f"message {k} is read differently: nothing to time")
    return sum(map(len, found[0]))


def measure(entries: dict[str, Callable[[], Any]], rounds: int) -> dict[str, list[float]]:
    """CPU milliseconds of each round."""
    return {name: [1e3 * s for s in spent] for name, spent in alternate(entries, rounds).items()}


def report(what: str, messages: int, entries: dict[str, Callable[[], Any]], rounds: int) -> dict[str, Any]:
    calls = check_equal(entries)
    spent = measure(entries, rounds)
    each = {name: [1e3 * value / messages for value in values] for name, values in spent.items()}
    median = {name: statistics.median(values) for name, values in each.items()}
    print(f"\n{what}: {messages} messages, {calls} calls, {rounds} rounds; CPU microseconds a message")
    for name, values in each.items():
        low, high = quartiles(values)
        less = median[PEER] / median[name]
        print(
            f"  {name:14} {median[name]:9.1f} us  (quartiles {low:.1f} to {high:.1f})  {less:5.2f}x less than {PEER}"
        )
    return {
        "what": what,
        "messages": messages,
        "calls": calls,
        "rounds": rounds,
        "median_us": median,
        "us": each,
        "times": times(median, OURS),
    }


def agreement(parser: Any) -> dict[str, Any]:
    """On how many published cases the peer finds the calls of the table, and on which it does not."""
    differ = []
    cases = json.loads(CASES.read_text(encoding="utf-8"))
    for case in cases:
        written = case["written"] if isinstance(case["written"], list) else [case["written"]]
        text = "".join(p if isinstance(p, str) else p["repeat"] * p["times"] for p in written)
        [found] = peer(parser, [text])()
        if json.dumps(found) != json.dumps(case["ignore"].get("calls", [])):
            differ.append(case["case"])
    print(
        f"\npublished cases: {PEER} finds the same calls in {len(cases) - len(differ)} of {len(cases)}; not in"
    )
    print("".join(f"  {name}\n" for name in differ), end="")
    return {"cases": len(cases), "differ": differ}


def main() -> None:
    """Compare tool-call parsing with verl's."""
    cli = argparse.ArgumentParser(prog="python -m benchmarks.parser", description=main.__doc__)
    cli.add_argument("--messages", type=int, default=400)
    cli.add_argument("--words", type=int, nargs="+", default=[40, 400], help="words of a thought")
    cli.add_argument("--rounds", type=int, default=11)
    cli.add_argument("--out", type=Path, help="write the numbers as JSON")
    args = cli.parse_args()
    with boundary("benchmarks.parser"):
        try:
            from verl.experimental.agent_loop import tool_parser
        except ImportError as e:
            raise EnvironmentUnready(f"the peer is not installed: {e}") from None
        tool_parser.logger.setLevel(logging.CRITICAL)  # it logs every call it cannot read
        tokenizer, name = qwen3.open_tokenizer()
        by_ids, by_text = (tool_parser.ToolParser.get_tool_parser("hermes", t) for t in (tokenizer, Known()))
        found = []
        for words in args.words:
            texts = make_messages(args.messages, words)
            ids = [tokenizer.encode(text, add_special_tokens=False, verbose=False) for text in texts]
            entries = {PEER: peer(by_ids, ids), OURS: ours(tokenizer.decode, ids)}
            found.append(report(f"ids, {words} words", len(texts), entries, args.rounds))
            entries = {PEER: peer(by_text, texts), OURS: ours(str, texts)}
            found.append(report(f"text, {words} words", len(texts), entries, args.rounds))
        cases = agreement(by_text)
        if args.out:
            about = {"tokenizer": name}
            write_json(args.out, {"results": found, "agreement": cases}, ("verl", "transformers"), about)


if __name__ == "__main__":
    sys.exit(main())
