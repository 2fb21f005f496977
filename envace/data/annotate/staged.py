"""Which rows staging would keep, so that nothing is paid for the others.

Flows in: the parameters staging reads. Flows out: the fault staging would find in a row without faults of its
own. Invariant: the same numbers as staging, so the same rows."""

from __future__ import annotations

from dataclasses import dataclass

from envace.config import Params
from envace.data import jsontext
from envace.data.annotate.dialogue import RawSample
from envace.data.faults import Fault, Reject
from envace.data.prompt_length import TokenCounter, prompt_counter
from envace.data.row_forms import first_prompt
from envace.data.select import Ratios, dropped, read_ratios
from envace.data.sizes import RowSize, size_of


@dataclass(frozen=True)
class WouldStage:
    """`WouldStage.of(params).fault(sample)`"""

    ratios: Ratios
    seed: int
    count: TokenCounter
    limit: int
    """Tokens of a first prompt."""

    @classmethod
    def of(cls, params: Params) -> WouldStage:
        """What staging with these parameters would do. Raises DataError where no tokenizer can be had."""
        count, _ = prompt_counter(params)
        return cls(read_ratios(params.data.select), params.seed, count, params.data.max_first_prompt_tokens)

    def fault(self, sample: RawSample) -> Fault | None:
        """Why staging would leave the row out; None where it would not."""
        tokens = self._tokens(sample)
        if tokens > self.limit:
            more = f"more than data.max_first_prompt_tokens ({self.limit})"
            return Fault(Reject.PROMPT_TOO_LONG, "messages", f"the first prompt has {tokens} tokens, {more}")
        if dropped(self.ratios, self.seed, sample.uuid, _size(sample, tokens)):
            return Fault(Reject.NOT_SELECTED, "row", "is left out by data.select")
        return None

    def _tokens(self, sample: RawSample) -> int:
        prompt = [
            {"role": m["role"], "content": m.get("content") or ""} for m in first_prompt(sample.messages)
        ]
        row = {"messages": prompt, "extra_info": {"tools": jsontext.write(sample.tools)}}
        return self.count(row, sample.tools)


def _size(sample: RawSample, tokens: int) -> RowSize:
    said = [{**m, "tool_calls": m.get("tool_calls") or []} for m in sample.messages]
    bare = {"messages": said, "interaction_kwargs": {"checklist_list": [[]]}, "tags": []}
    return size_of({"extra_info": bare}, len(sample.tools), tokens)
