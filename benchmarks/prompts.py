"""Building the prompts of one episode: ours beside rendering the chat anew and beside verl's continuous-token builder.

Flows in: a tokenizer and a synthetic dialogue of tool turns. Flows out: a table, and JSON where `--out` says.
Invariant: nothing is timed before all agree on the ids of every prompt; the order alternates from round to round; one
thread, CPU seconds of this process. Parsing replies and sampling are no part of it.

Ours and verl's keep masks and log-probabilities as they go; rendering anew keeps none. verl's builder is timed as its
agent loop calls it (with the tools) and, at its best, without tools, which the ids do not need.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

from benchmarks import qwen3
from benchmarks.table import alternate, quartiles, times, write_json
from envace.chat.calls import render_calls
from envace.chat.renderer import HFRenderer, as_dicts
from envace.chat.tokens import TokenLog
from envace.errors import EnvironmentUnready, boundary
from envace.types import Message, ToolCall

AGAIN, VERL, VERL_BARE, OURS = "render anew", "verl's builder", "verl's builder, no tools", "envace"
WORDS = "order account booking total city day seat credit limit status moved paid open refused the a of for".split()
Prompts = list[Sequence[int]]


def make_tools(n: int, rng: random.Random) -> list[dict[str, Any]]:
    """Schemas of about 130 tokens each."""

    def function(k: int) -> dict[str, Any]:
        fields = {
            f"{rng.choice(WORDS)}_{i}": {"type": "string", "description": text(12, rng)} for i in range(4)
        }
        parameters = {"type": "object", "properties": fields, "required": list(fields)[:1]}
        return {"name": f"tool_{k}", "description": text(20, rng), "parameters": parameters}

    return [{"type": "function", "function": function(k)} for k in range(n)]


def make_chat(turns: int, rng: random.Random) -> list[Message]:
    """One user wish, then `turns` messages with a thought and a call, each answered."""
    chat = [Message(role="system", content=text(150, rng)), Message(role="user", content=text(40, rng))]
    for k in range(turns):
        call = ToolCall(name=f"tool_{k % 10}", arguments={"id": f"#{k}", "note": text(5, rng)})
        chat.append(Message(role="assistant", content="", thinking=text(120, rng), calls=(call,)))
        body = json.dumps({f"{rng.choice(WORDS)}_{i}": text(5, rng) for i in range(12)})
        chat.append(Message(role="tool", content=body, name=call.name))
    return chat


def text(words: int, rng: random.Random) -> str:
    return " ".join(rng.choice(WORDS) for _ in range(words))


def sampled(renderer: HFRenderer, message: Message) -> list[int]:
    written = f"<think>\n{message.thinking}\n</think>\n\n{render_calls(message.calls)}"
    return [*renderer.encode(written), renderer.end_id]


def entries(
    renderer: HFRenderer, chat: list[Message], tools: list[Any], peer: Any
) -> dict[str, Callable[[], Prompts]]:
    """Each gives the prompts of all turns and the one after the last."""
    outputs = [sampled(renderer, m) for m in chat if m.role == "assistant"]
    logprobs = [[-0.5] * len(ids) for ids in outputs]
    dicts = as_dicts(chat)

    def again() -> Prompts:
        return [renderer.render(chat[:n], tools) for n in range(2, len(chat) + 1, 2)]

    def ours() -> Iterator[Sequence[int]]:
        log = TokenLog(renderer, chat[:2], tools)
        yield log.prompt_ids()
        for k, ids in enumerate(outputs):
            log.add_sampled(ids, said=chat[2 + 2 * k])
            log.add_results([chat[3 + 2 * k]])
            yield log.prompt_ids()

    def verl(given: list[Any] | None) -> Iterator[Sequence[int]]:
        stream, mask, values = peer.build_initial_tokens(dicts[:2], tools=tools), [], []
        yield stream
        for k, ids in enumerate(outputs):
            merged = peer.merge_assistant_tokens(stream, ids)
            mask, values = peer.align_response_metadata(merged, mask, values, assistant_logprobs=logprobs[k])
            at = 3 + 2 * k
            merged = peer.merge_context_tokens(dicts[:at], dicts[: at + 1], merged.token_ids, tools=given)
            mask, values = peer.align_response_metadata(merged, mask, values)
            stream = merged.token_ids
            yield stream

    return {
        AGAIN: again,
        VERL: lambda: list(verl(tools)),
        VERL_BARE: lambda: list(verl(None)),
        OURS: lambda: list(ours()),
    }


def check_equal(found: dict[str, Callable[[], Prompts]]) -> tuple[int, int]:
    """(ids of the last prompt, ids of all prompts). Raises ValueError when any prompt differs."""
    want = [list(ids) for ids in found[AGAIN]()]
    for name, run in found.items():
        for k, (ids, wanted) in enumerate(zip(run(), want, strict=True)):
            if list(ids) != wanted:
                raise ValueError(f"{name}: prompt {k} differs from the full render: nothing to time")
    return len(want[-1]), sum(map(len, want))


def measure(found: dict[str, Callable[[], Any]], rounds: int) -> dict[str, list[float]]:
    """CPU milliseconds of each round."""
    return {name: [1e3 * s for s in spent] for name, spent in alternate(found, rounds).items()}


def report(turns: int, found: dict[str, Callable[[], Prompts]], rounds: int) -> dict[str, Any]:
    last, total = check_equal(found)
    spent = measure(found, rounds)
    median = {name: statistics.median(values) for name, values in spent.items()}
    print(
        f"\n{turns} tool turns, last prompt {last} ids, all prompts {total} ids, {rounds} rounds, ids equal"
    )
    for name, values in spent.items():
        low, high = quartiles(values)
        less = median[AGAIN] / median[name] if median[name] else float("inf")
        print(
            f"  {name:25} {median[name]:9.2f} ms  (quartiles {low:.2f} to {high:.2f})  {less:6.1f}x less than anew"
        )
    return {
        "turns": turns, "last": last, "total": total, "rounds": rounds, "median_ms": median,
        "times": times(median, OURS),
    }  # fmt: skip


def main() -> None:
    """Compare prompt building with rendering anew and with verl's builder."""
    cli = argparse.ArgumentParser(prog="python -m benchmarks.prompts", description=main.__doc__)
    cli.add_argument("--turns", type=int, nargs="+", default=[8, 30])
    cli.add_argument("--tools", type=int, default=10)
    cli.add_argument("--rounds", type=int, default=11)
    cli.add_argument(
        "--vocabulary", type=Path, help="qwen.tiktoken, where the package dashscope is not installed"
    )
    cli.add_argument("--template", type=Path, default=qwen3.TEMPLATE, help="Qwen3's chat template")
    cli.add_argument("--out", type=Path, help="write the numbers as JSON")
    args = cli.parse_args()
    with boundary("benchmarks.prompts"):
        try:
            from verl.utils.tokenizer.continuous_token import QwenContinuousTokenBuilder
        except ImportError as e:
            raise EnvironmentUnready(f"the peer is not installed: {e}") from None
        tokenizer, name = qwen3.open_tokenizer(args.vocabulary, args.template)
        renderer = HFRenderer(tokenizer, enable_thinking=True)
        peer = QwenContinuousTokenBuilder(tokenizer, chat_template_kwargs={"enable_thinking": True})
        print(f"tokenizer: {name}, {len(tokenizer)} tokens")
        results = []
        for turns in args.turns:
            rng = random.Random(0)
            tools, chat = make_tools(args.tools, rng), make_chat(turns, rng)
            results.append(report(turns, entries(renderer, chat, tools, peer), args.rounds))
        if args.out:
            packages = ("verl", "tokenizers", "transformers")
            write_json(args.out, {"results": results}, packages, {"tokenizer": name})


if __name__ == "__main__":
    sys.exit(main())
