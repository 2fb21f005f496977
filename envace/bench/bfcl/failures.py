"""Why BFCL has no answer of the model ("Error during inference"), and who caused it.

Invariant: only causes that are surely the agent's are called so; whatever is unknown is the infrastructure's,
and stops the gate instead of counting as a wrong answer. Standard library only: the driver loads this file
too.
"""

import re

PREFIX = "Error during inference:"
MALFORMED = "malformed call in the history"  # the driver puts it before an error that a bad call led to
CONTEXT = re.compile(
    r"context_length_exceeded|context (length|window|size)|maximum model length|max_model_len"
    r"|(prompt|input) (is|are) too long|reduce the length of the (messages|prompt|input)",
    re.I,
)
TRANSPORT = {
    r"(?i)Request timed out|timed? ?out": "request timed out",
    r"(?i)Connection error|Connection (refused|reset|aborted)|Server disconnected": "no connection",
    r"Error code: (401|403)": "key refused",
    r"Error code: 404": "model or address not found",
    r"Error code: 429": "too many requests",
    r"Error code: 5\d\d": "server error",
}


def failed(row: dict) -> bool:
    """Whether BFCL wrote an error for an answer; a model that writes the same words left no traceback."""
    result = row.get("result")
    return "traceback" in row and isinstance(result, str) and result.startswith(PREFIX)


def cause(error: str) -> tuple[str, str]:
    """("agent" | "infra", cause) of an error text."""
    text = error.removeprefix(PREFIX).strip()
    if text.startswith(MALFORMED):
        return "agent", MALFORMED
    if CONTEXT.search(text) and not re.search(r"Error code: 5\d\d", text):
        return "agent", "context overflow"
    named = (name for pattern, name in TRANSPORT.items() if re.search(pattern, text))
    return "infra", next(named, "unknown error")
