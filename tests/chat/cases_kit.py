"""The case tables `cases_calls.json` and `cases_results.json`, and a restatement of the published code's
grammars."""

import json
import re
from pathlib import Path


def load(name):
    """The cases of a table, each `written` a text; pieces {"repeat": text, "times": n} keep the file
    small."""
    return json.loads((Path(__file__).parent / f"cases_{name}.json").read_text(encoding="utf-8"))


def spell(written):
    pieces = written if isinstance(written, list) else [written]
    return "".join(p if isinstance(p, str) else p["repeat"] * p["times"] for p in pieces)


def same(found, expected):
    """Equality that tells 1 from 1.0 and True, and finds NaN equal to itself."""
    return json.dumps(found, sort_keys=True) == json.dumps(expected, sort_keys=True)


# --- the published code's grammars, restated from their description -------------------------------


def authors_calls(text):
    """A call block stands on lines of its own, thoughts or not; one bad block voids the message."""
    if "<tool_call>" not in text:
        return {"reply": True}
    bodies = re.findall(r"\n<tool_call>\n(.*?)\n</tool_call>", text, re.S)
    if not bodies:
        return {"code": "NO_TOOL_CALL_FOUND"}
    calls = []
    for body in bodies:
        try:
            value = json.loads(body)
        except ValueError:
            return {"code": "JSON_DECODE_ERROR"}
        for entry in value if isinstance(value, list) else [value]:
            arguments = entry.get("parameters", entry.get("arguments")) if isinstance(entry, dict) else None
            if arguments is None:
                return {"code": "NO_ARGUMENTS"}
            if not isinstance(entry.get("name"), str) or not entry["name"].strip():
                return {"code": "INVALID_TOOL_NAME"}
            calls.append([entry["name"], arguments])
    return {"calls": calls} if calls else {"reply": True}


def authors_result(text):
    """Closed thoughts are cut out; the first block that stands on lines of its own counts."""
    text = re.sub(r"<think>.*?</think>", "", text, flags=re.S)
    if not text.strip():
        return {"code": "EMPTY_SIMULATOR_OUTPUT"}
    if "<execution_result>" not in text:
        return {"code": "NO_EXECUTION_RESULT_TAG_FOUND"}
    block = re.search(r"\n<execution_result>\n(.*?)\n</execution_result>", text, re.S)
    if not block:
        return {"code": "EXECUTION_RESULT_TAG_MALFORMED"}
    try:
        value = json.loads(block[1])
    except ValueError:
        return {"code": "SIMULATOR_JSON_DECODE_ERROR"}
    good = isinstance(value, list) or (isinstance(value, dict) and value)
    return {"value": value} if good else {"code": "INVALID_EXECUTION_RESULT_TYPE"}
