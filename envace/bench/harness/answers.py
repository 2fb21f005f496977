"""What a model server's answer says beyond its words, read alike for every harness.

Flows in: the text of an answer, or of a refusal. Flows out: whether a call was left in it unread; how many tokens
to ask for instead.
Invariant: standard library only, since the drivers load this file by its path in the interpreters of the harnesses.
"""

import re

OPEN, CLOSE = "<tool_call>", "</tool_call>"
LEFT_IN_TEXT = "call markup in the text"  # how a malformed call shows when the server's parser gave it up
LIMIT = re.compile(r"maximum context length is (\d+) tokens")
# how vLLM words it (three generations) and how this project's own server does
PROMPT = re.compile(
    r"(?:your request has|prompt contains|prompt holds) (at least )?(\d+)|\((?P<old>\d+) in the messages"
)
ASKED = re.compile(r"requested 0 output tokens")  # the prompt alone is too long
FEWEST = 16  # tokens; an answer of fewer is no answer


def visible(content):
    """An answer without its thoughts, where the server left them in it."""
    text = (content or "").rpartition("</think>")[2]
    return "" if text.lstrip().startswith("<think>") else text


def left_call(content):
    """Whether call markup stands in what is visible. Servers hand a call they cannot read on as text."""
    said = visible(content)
    return OPEN in said or CLOSE in said


def fewer(refusal, asked):
    """Tokens to ask for after a refusal because prompt and answer together exceed the context; 0 where none fit.

    A server that says how long the prompt is gets the exact room, one that names a lower bound half of what it was
    asked for.
    """
    limit, prompt = LIMIT.search(refusal), PROMPT.search(refusal)
    if not limit or not prompt or ASKED.search(refusal) or not asked:
        return 0
    exact = prompt["old"] or (prompt[2] if not prompt[1] else None)
    room = int(limit[1]) - int(exact) if exact else asked // 2
    return room if FEWEST <= room < asked else 0
