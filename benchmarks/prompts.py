"""Building the prompts of one episode: ours beside rendering the chat anew and beside verl's continuous-token
builder.

Nothing is timed before all agree on the ids of every prompt. Parsing replies and sampling are no part of it.
Ours and verl's keep masks and log-probabilities as they go; rendering anew keeps none. verl's builder is
timed as its agent loop calls it (with the tools) and, at its best, without tools, which the ids do not need.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Sequence

from transformers import AutoTokenizer

from benchmarks.measure import alternate, report
from envace.chat.calls import render_calls
from envace.chat.renderer import HFRenderer, as_dicts
from envace.chat.tokens import TokenLog
from envace.types import JSON, Message, ToolCall

AGAIN, VERL, VERL_BARE, OURS = "render anew", "verl's builder", "verl's builder, no tools", "envace"
WORDS = (
    "order account booking total city day seat credit limit status moved paid open refused the a of".split()
)
WORDS += ["for"]
Tools = tuple[dict[str, JSON], ...]
Prompts = list[Sequence[int]]


def make_tools(n: int, rng: random.Random) -> Tools:
    """Schemas of about 130 tokens each."""
    made = []
    for k in range(n):
        fields = {
            f"{rng.choice(WORDS)}_{i}": {"type": "string", "description": text(12, rng)} for i in range(4)
        }
        parameters = {"type": "object", "properties": fields, "required": list(fields)[:1]}
        function = {"name": f"tool_{k}", "description": text(20, rng), "parameters": parameters}
        made.append({"type": "function", "function": function})
    return tuple(made)


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


def entries(
    renderer: HFRenderer, chat: list[Message], tools: Tools, peer
) -> dict[str, Callable[[], Prompts]]:
    """Each gives the prompts of all turns and the one after the last."""
    written = [
        f"<think>\n{m.thinking}\n</think>\n\n{render_calls(m.calls)}" for m in chat if m.role == "assistant"
    ]
    outputs = [[*renderer.encode(words), renderer.end_id] for words in written]
    dicts = as_dicts(chat)

    def ours() -> Iterator[Sequence[int]]:
        log = TokenLog(renderer, chat[:2], tools)
        yield log.prompt_ids()
        for k, ids in enumerate(outputs):
            log.add_sampled(ids, said=chat[2 + 2 * k])
            log.add_results([chat[3 + 2 * k]])
            yield log.prompt_ids()

    def verl(given: Tools | None) -> Iterator[Sequence[int]]:
        stream, mask, values = peer.build_initial_tokens(dicts[:2], tools=tools), [], []
        yield stream
        for k, ids in enumerate(outputs):
            at = 3 + 2 * k
            merged = peer.merge_assistant_tokens(stream, ids)
            logprobs = [-0.5] * len(ids)
            mask, values = peer.align_response_metadata(merged, mask, values, assistant_logprobs=logprobs)
            merged = peer.merge_context_tokens(dicts[:at], dicts[: at + 1], merged.token_ids, tools=given)
            mask, values = peer.align_response_metadata(merged, mask, values)
            stream = merged.token_ids
            yield stream

    return {
        AGAIN: lambda: [renderer.render(chat[:n], tools) for n in range(2, len(chat) + 1, 2)],
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


def main(quick: bool = False) -> None:
    from verl.utils.tokenizer.continuous_token import QwenContinuousTokenBuilder

    tokenizer = AutoTokenizer.from_pretrained("envace/policy/start", model_max_length=1_000_000)
    with open("tests/chat/qwen3.jinja", encoding="utf-8") as template:
        tokenizer.chat_template = template.read()
    renderer = HFRenderer(tokenizer, enable_thinking=True)
    peer = QwenContinuousTokenBuilder(tokenizer, chat_template_kwargs={"enable_thinking": True})
    for turns in (8,) if quick else (8, 30):
        rng = random.Random(0)
        tools, chat = make_tools(10, rng), make_chat(turns, rng)
        found = entries(renderer, chat, tools, peer)
        last, total = check_equal(found)
        what = f"{turns} tool turns, last prompt {last} ids, all prompts {total} ids"
        report("prompts", what, alternate(found, 3 if quick else 11), OURS, "ms")
