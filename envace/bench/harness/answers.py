"""What a model server's answer and a harness's files say, read alike for every harness.

Flows in: the text of an answer, or of a refusal; a file of JSON lines. Flows out: what is wrong with the
answer; whether a call was left in it unread; how many tokens to ask for instead; the rows that were written
whole.
Invariant: standard library only, since the drivers load this file by its path in the interpreters of the
harnesses.
"""

import json
import os
import re
import warnings

OPEN, CLOSE = "<tool_call>", "</tool_call>"
LEFT_IN_TEXT = "call markup in the text"  # how a malformed call shows when the server's parser gave it up
LIMIT = re.compile(r"maximum context length is (\d+) tokens")
# how vLLM words it (three generations) and how this project's own server does
PROMPT = re.compile(
    r"(?:your request has|prompt contains|prompt holds) (at least )?(\d+)|\((?P<old>\d+) in the messages"
)
ASKED = re.compile(r"requested 0 output tokens")  # the prompt alone is too long
FEWEST = 16  # tokens; an answer of fewer is no answer
OVERFLOW = re.compile(
    r"context.{0,20}(length|window|limit)|maximum context|max_model_len|too many tokens|prompt is too long",
    re.I,
)
NAMED = 300  # characters of an answer that a record quotes


def visible(content):
    """An answer without its thoughts, where the server left them in it."""
    text = (content or "").rpartition("</think>")[2]
    return "" if text.lstrip().startswith("<think>") else text


def left_call(content):
    """Whether call markup stands in what is visible. Servers hand a call they cannot read on as text."""
    said = visible(content)
    return OPEN in said or CLOSE in said


def fewer(refusal, asked):
    """Tokens to ask for after a refusal because prompt and answer together exceed the context; 0 where none
    fit.

    A server that says how long the prompt is gets the exact room, one that names a lower bound half of what
    it was asked for.
    """
    limit, prompt = LIMIT.search(refusal), PROMPT.search(refusal)
    if not limit or not prompt or ASKED.search(refusal) or not asked:
        return 0
    exact = prompt["old"] or (prompt[2] if not prompt[1] else None)
    room = int(limit[1]) - int(exact) if exact else asked // 2
    return room if FEWEST <= room < asked else 0


def refusal_of(status, text):
    """What is wrong with an answer of another status than 200."""
    over = status in (400, 413, 422) and OVERFLOW.search(text)
    return "context_overflow" if over else f"http_{status}"


def problem_of(status, text):
    """What is wrong with an answer, by the very steps at which a harness would stumble: (name, detail)."""
    if status != 200:
        return refusal_of(status, text), text[:NAMED]
    try:
        message = json.loads(text)["choices"][0]["message"]
        calls = message.get("tool_calls") or []
        named = [isinstance(c.get("id"), str) for c in calls]
        malformed = [c for c in calls if not well_formed(c)]
    except (ValueError, KeyError, IndexError, TypeError, AttributeError):
        return "no_chat_completion", text[:NAMED]
    if malformed:
        return "malformed_call", json.dumps(malformed[0], ensure_ascii=False)[:NAMED]
    if not all(named):
        return "call_without_id", text[:NAMED]
    if not calls and not str(message.get("content") or "").strip():
        return "empty_message", ""
    return "", ""


def cut_short(text):
    """Whether an answer ended at its token limit. Upstream mends a judge's torn JSON and loses verdicts in
    silence.
    """
    try:
        return json.loads(text)["choices"][0].get("finish_reason") == "length"
    except (ValueError, KeyError, IndexError, TypeError, AttributeError):
        return False


def well_formed(call):
    """Whether a call names a tool and its arguments are an object, or nothing."""
    function = call.get("function") or {}
    try:
        arguments = json.loads(function["arguments"]) if function.get("arguments") else {}
    except (ValueError, TypeError):
        return False
    return isinstance(function.get("name"), str) and isinstance(arguments, dict)


def read_rows(file):
    """The objects of a JSON Lines file; none where there is no file. A line torn by a kill is left out, and a
    warning counts such lines.
    """
    rows, torn = [], 0
    for line in file.read_text(encoding="utf-8", errors="replace").split("\n") if file.exists() else ():
        try:
            row = json.loads(line) if line.strip() else None
        except ValueError:
            torn += 1
            continue
        rows += [row] if isinstance(row, dict) else []
    if torn:
        warnings.warn(f"{file.parent.name}/{file.name}: {torn} torn lines left out", stacklevel=2)
    return rows


def owed_again(note):
    """(task id, trial) of the samples that the runner found without a score, whatever was kept of them."""
    told = json.loads(note.read_text(encoding="utf-8")) if note.exists() else []
    return {(task.partition("/")[2], trial) for task, trial in told}


def append_row(file, row):
    """Add a line, behind one that a kill tore on a line of its own."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("ab+") as out:
        out.seek(max(out.seek(0, os.SEEK_END) - 1, 0))
        torn = out.read(1) not in (b"", b"\n")
        out.write(b"\n" * torn + json.dumps(row, ensure_ascii=False).encode() + b"\n")
