"""How long a row's first prompt is.

Flows in: parameters, then stored rows and their tools. Flows out: a token count, and a sentence on how it was
counted. Invariant: a policy that brings a tokenizer is counted with the prompt ACT will be given, rendered as
ACT's is: its chat template, tools, thinking, the prompt set's own text, control tokens in the text broken;
that count is exact. The tiny policy, whose tokenizer is made from the staged rows, gets an estimate from
above. A counter can be sent to another process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from envace.config import Params
from envace.data.row_forms import Row
from envace.errors import DataError
from envace.rollout.prompts import load_prompt_set, with_head
from envace.types import JSON, Message

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

BYTES_PER_TOKEN = 2.5  # the tiny policy's tokenizer packs its own rows tighter than this

TokenCounter = Callable[[Row, list[JSON]], int]  # stored row, its tools -> tokens


def prompt_counter(params: Params, here: bool = False) -> tuple[TokenCounter, str]:
    """A function that counts the tokens of a row's first prompt with tools, and how it counts. Raises
    DataError.

    `here`: nothing is downloaded; without the policy's tokenizer on this machine the count is an estimate.
    """
    policy, own = params.policy, load_prompt_set(params.rollout.prompt_set).act_system()
    head = own or "" if params.resolved_method().act_text == "set" else ""  # on top of the task's own text
    if policy.kind == "tiny":
        return Estimate(head), f"estimated: UTF-8 bytes / {BYTES_PER_TOKEN:g}"
    from transformers import AutoTokenizer  # late: seconds

    from envace.policy.card import BUNDLED

    at = f" at {policy.revision}" if policy.kind != "bundled" and policy.revision else ""
    name = "the bundled policy" if policy.kind == "bundled" else f"{policy.uri}{at}"
    try:
        if policy.kind == "bundled":
            tokenizer = AutoTokenizer.from_pretrained(str(BUNDLED))
        else:
            revision = policy.revision or "main"
            tokenizer = AutoTokenizer.from_pretrained(policy.uri, revision=revision, local_files_only=here)
    except (OSError, ValueError) as e:
        if here:
            return Estimate(head), f"estimated, for the tokenizer of {name} is not on this machine"
        raise DataError(
            f"the tokenizer of policy {policy.uri!r} cannot be loaded to measure prompts: {e}"
        ) from e
    return Exact(tokenizer, head, params.rollout.enable_thinking), f"tokenizer of {name}"


@dataclass(frozen=True, slots=True)
class Estimate:
    """More tokens than the prompt can have."""

    head: str = ""
    """System text of the prompt set."""

    def __call__(self, row: Row, tools: list[JSON]) -> int:
        text = row["extra_info"]["tools"] + "".join(m["content"] for m in row["messages"])
        return round(len((text + self.head).encode()) / BYTES_PER_TOKEN)


class Exact:
    """Counts ids of the rendered prompt."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, head: str = "", thinking: bool = False):
        from envace.chat.renderer import HFRenderer

        self.renderer, self.head = HFRenderer(tokenizer, thinking), head

    def __call__(self, row: Row, tools: list[JSON]) -> int:
        chat = [Message(role=m["role"], content=m["content"]) for m in row["messages"]]
        return len(self.renderer.render(with_head(chat, self.head), tools))
