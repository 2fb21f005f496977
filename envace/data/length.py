"""How long a row's first prompt is.

Flows in: parameters, then rows. Flows out: a token count a row, and a sentence on how it was counted.
Invariant: a policy that brings a tokenizer is counted with it, exactly; the tiny policy, whose tokenizer is
made from the staged rows, gets an estimate from above.
"""

from __future__ import annotations

from collections.abc import Callable

from envace.data.check import tool_list
from envace.data.schema import Row
from envace.errors import DataError
from envace.params import Params

BYTES_PER_TOKEN = 2.5  # the tiny policy's tokenizer packs its own rows tighter than this


def prompt_counter(params: Params) -> tuple[Callable[[Row], int], str]:
    """A function row -> tokens of its first prompt with tools, and how it counts."""
    if params.policy.kind == "tiny":
        return _estimate, f"estimated: UTF-8 bytes / {BYTES_PER_TOKEN:g}"
    if params.policy.kind == "bundled":
        from envace.policy.warmstart import BUNDLED

        return _exact(str(BUNDLED)), "tokenizer of the bundled policy"
    return _exact(params.policy.uri, params.policy.revision), f"tokenizer of {params.policy.uri}" + (
        f" at {params.policy.revision}" if params.policy.revision else ""
    )


def _estimate(row: Row) -> int:
    text = row["extra_info"]["tools"] + "".join(m.get("content") or "" for m in row["messages"])
    return round(len(text.encode()) / BYTES_PER_TOKEN)


def _exact(uri: str, revision: str = "") -> Callable[[Row], int]:
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(uri, revision=revision or "main")
    except (OSError, ValueError) as e:
        raise DataError(f"the tokenizer of policy {uri!r} cannot be loaded to measure prompts: {e}") from e

    def count(row: Row) -> int:
        chat = [{"role": m["role"], "content": m.get("content") or ""} for m in row["messages"]]
        text = tokenizer.apply_chat_template(
            chat, tools=tool_list(row["extra_info"]), add_generation_prompt=True, tokenize=False
        )
        return len(tokenizer(text, add_special_tokens=False)["input_ids"])

    return count
