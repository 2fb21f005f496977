"""How long a row's first prompt is.

Flows in: parameters, then stored rows and their tools. Flows out: a token count, and a sentence on how it was
counted.
Invariant: a policy that brings a tokenizer is counted with it, exactly; the tiny policy, whose tokenizer is
made from the staged rows, gets an estimate from above. A counter can be sent to another process.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from envace.data.forms import Row
from envace.errors import DataError
from envace.params import Params

BYTES_PER_TOKEN = 2.5  # the tiny policy's tokenizer packs its own rows tighter than this

Counter = Callable[[Row, list[Any]], int]  # stored row, its tools -> tokens


def prompt_counter(params: Params) -> tuple[Counter, str]:
    """A function that counts the tokens of a row's first prompt with tools, and how it counts. Raises DataError."""
    if params.policy.kind == "tiny":
        return estimate, f"estimated: UTF-8 bytes / {BYTES_PER_TOKEN:g}"
    if params.policy.kind == "bundled":
        from envace.policy.warmstart import BUNDLED

        return _exact(str(BUNDLED)), "tokenizer of the bundled policy"
    return _exact(params.policy.uri, params.policy.revision), f"tokenizer of {params.policy.uri}" + (
        f" at {params.policy.revision}" if params.policy.revision else ""
    )


def estimate(row: Row, tools: list[Any]) -> int:
    """More tokens than the prompt can have."""
    text = row["extra_info"]["tools"] + "".join(m["content"] for m in row["messages"])
    return round(len(text.encode()) / BYTES_PER_TOKEN)


@dataclass(frozen=True, slots=True)
class Exact:
    """Counts with a tokenizer and its chat template."""

    tokenizer: Any

    def __call__(self, row: Row, tools: list[Any]) -> int:
        chat = [{"role": m["role"], "content": m["content"]} for m in row["messages"]]
        text = self.tokenizer.apply_chat_template(
            chat, tools=tools, add_generation_prompt=True, tokenize=False
        )
        return len(self.tokenizer(text, add_special_tokens=False)["input_ids"])


def _exact(uri: str, revision: str = "") -> Exact:
    from transformers import AutoTokenizer

    try:
        return Exact(AutoTokenizer.from_pretrained(uri, revision=revision or "main"))
    except (OSError, ValueError) as e:
        raise DataError(f"the tokenizer of policy {uri!r} cannot be loaded to measure prompts: {e}") from e
