"""How an agent broke the rules of BFCL, read from what it said.

Flows in: one answer as BFCL keeps it, and BFCL's word for it. Flows out: a named fault, or "".
Invariant: BFCL takes unreadable calls and empty messages for declining to call, which is right in the irrelevance
categories and ends a turn in the others; here they are what they are. A call that could not be read is a fault also
where nothing was to be called, so that it never passes for declining.
"""

from __future__ import annotations

import json

from envace.bench.bfcl.categories import has_turns, is_agentic
from envace.bench.harness.answers import LEFT_IN_TEXT, left_call
from envace.types import JSON


def fault(result: JSON, category: str, kind: str) -> str:
    """`kind` is BFCL's error type, or "correct"."""
    if kind == "multi_turn:force_terminated":
        return "more than 20 steps in one turn"
    if kind == "agentic:no_last_message":
        return "no final message"
    if not has_turns(category):
        return _broken(result, empty_too=True)
    turns = result if isinstance(result, list) else []
    steps = [step for turn in turns if isinstance(turn, list) for step in turn]
    if is_agentic(category):  # only the last message is judged, and words inside a broken call would count
        return _broken(steps[-1] if steps else "", empty_too=True)
    unanswered = kind == "multi_turn:empty_turn_model_response"  # elsewhere an empty message ends a turn
    return next((b for step in steps if (b := _broken(step, empty_too=unanswered))), "")


def _broken(said: JSON, empty_too: bool) -> str:
    """A fault of one message: calls are [{name: JSON text}], anything else is text."""
    if not said:
        return "empty message" if empty_too else ""
    if isinstance(said, str):
        return f"malformed call: {LEFT_IN_TEXT}" if left_call(said) else ""
    for call in said if isinstance(said, list) else [said]:
        for name, arguments in call.items() if isinstance(call, dict) else [("?", call)]:
            if not _is_object(arguments):
                return f"malformed call: the arguments of {name[:40]} are no JSON object"
    return ""


def _is_object(arguments: JSON) -> bool:
    try:
        return isinstance(json.loads(arguments) if isinstance(arguments, str) else arguments, dict)
    except ValueError:
        return False
