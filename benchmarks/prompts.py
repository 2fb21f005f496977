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
import platform
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

from benchmarks import qwen3
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
        log = TokenLog.open(renderer, chat[:2], tools)
        yield log.prompt_ids()
        for k, ids in enumerate(outputs):
            log.add_sampled(ids, logprobs[k], said=chat[2 + 2 * k])
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
    """CPU milliseconds of each round; even rounds run forwards, odd ones backwards."""
    spent: dict[str, list[float]] = {name: [] for name in found}
    for k in range(rounds):
        for name in list(found) if k % 2 == 0 else list(found)[::-1]:
            began = time.process_time()
            found[name]()
            spent[name].append((time.process_time() - began) * 1e3)
    return spent


def report(turns: int, found: dict[str, Callable[[], Prompts]], rounds: int) -> dict[str, Any]:
    last, total = check_equal(found)
    spent = measure(found, rounds)
    median = {name: statistics.median(values) for name, values in spent.items()}
    print(
        f"\n{turns} tool turns, last prompt {last} ids, all prompts {total} ids, {rounds} rounds, ids equal"
    )
    for name, values in spent.items():
        low, _, high = statistics.quantiles(values, n=4)
        times = median[AGAIN] / median[name] if median[name] else float("inf")
        print(
            f"  {name:25} {median[name]:9.2f} ms  (quartiles {low:.2f} to {high:.2f})  {times:6.1f}x rendering anew"
        )
    return {"turns": turns, "last": last, "total": total, "rounds": rounds, "median_ms": median}


def open_tokenizer(vocabulary: Path | None, template: Path | None) -> tuple[Any, str]:
    """Qwen3's where both files are known, else the bundled one."""
    if vocabulary and template:
        return qwen3.qwen3_tokenizer(vocabulary, template), "Qwen3"
    from transformers import AutoTokenizer

    from envace.policy.warmstart import BUNDLED

    bundled = AutoTokenizer.from_pretrained(BUNDLED)
    bundled.model_max_length = 1_000_000
    return bundled, "bundled"


def main() -> None:
    """Compare prompt building with rendering anew and with verl's builder."""
    cli = argparse.ArgumentParser(prog="python -m benchmarks.prompts", description=main.__doc__)
    cli.add_argument("--turns", type=int, nargs="+", default=[8, 30])
    cli.add_argument("--tools", type=int, default=10)
    cli.add_argument("--rounds", type=int, default=11)
    cli.add_argument("--vocabulary", type=Path, default=qwen3.vocabulary_file(), help="qwen.tiktoken")
    cli.add_argument("--template", type=Path, default=qwen3.template_file(), help="qwen3.jinja")
    cli.add_argument("--out", type=Path, help="write the numbers as JSON")
    args = cli.parse_args()
    with boundary("benchmarks.prompts"):
        try:
            import verl
            from verl.utils.tokenizer.continuous_token import QwenContinuousTokenBuilder
        except ImportError as e:
            raise EnvironmentUnready(f"the peer is not installed: {e}") from None
        tokenizer, name = open_tokenizer(args.vocabulary, args.template)
        renderer = HFRenderer(tokenizer, enable_thinking=True)
        peer = QwenContinuousTokenBuilder(tokenizer, chat_template_kwargs={"enable_thinking": True})
        print(f"tokenizer: {name}, {len(tokenizer)} tokens")
        results = []
        for turns in args.turns:
            rng = random.Random(0)
            tools, chat = make_tools(args.tools, rng), make_chat(turns, rng)
            results.append(report(turns, entries(renderer, chat, tools, peer), args.rounds))
        if args.out:
            import tokenizers
            import transformers

            versions = {m.__name__: m.__version__ for m in (verl, tokenizers, transformers)}
            versions |= {
                "python": platform.python_version(),
                "machine": platform.machine(),
                "tokenizer": name,
            }
            args.out.write_text(
                json.dumps({"results": results, "versions": versions}, indent=2) + "\n", encoding="utf-8"
            )


if __name__ == "__main__":
    sys.exit(main())
