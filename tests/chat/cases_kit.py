"""The published case tables: one data file for the tests and for docs/tool-calls.md.

Flows in: `cases_calls.json` and `cases_results.json`. Flows out: the texts and what is expected of them, a
restatement of the published code's grammars, and the tables of the page.
Invariant: the page holds these tables and no others; `python tests/chat/cases_kit.py` writes them into it.
"""

import json
import re
from pathlib import Path

PAGE = Path(__file__).resolve().parents[2] / "docs/tool-calls.md"


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


# --- the page -------------------------------------------------------------------------------------


def code(text):
    """A code span that shows control characters as escapes."""
    plain = json.dumps(text)[1:-1].replace('\\"', '"').replace("\\\\", "\\")
    fence = "``" if "`" in plain else "`"
    return f"{fence}{plain}{fence}" if plain else "(nothing)"


def show(written):
    pieces = written if isinstance(written, list) else [written]
    return " ".join(
        code(p) if isinstance(p, str) else f"{code(p['repeat'])} {p['times']:,} times" for p in pieces
    )


def outcome(expected):
    """A cell: reason codes bare, everything a message holds as code."""
    if expected is None:
        return "not stated"
    if word := expected.get("failure") or expected.get("code"):
        return f"**{word}**"
    if "value" in expected:
        return shorten(json.dumps(expected["value"])) + (" (a refusal)" if expected.get("error") else "")
    if reply := expected.get("reply"):
        return "a reply" if reply is True else f"a reply, {code(reply)}"
    calls = ", ".join(shorten(f"{name} {json.dumps(arguments)}") for name, arguments in expected["calls"])
    content = expected.get("content")
    return calls + (f"; text {show(content)}" if content else "")


def shorten(plain):
    runs = re.sub(r"\[{9,}\]{9,}", lambda m: f"[{len(m[0]) // 2} levels]", plain)
    return f"`{runs}`"


def table(name):
    """The markdown table of one file."""
    columns = ["ignore", "execute", "authors"] if name == "calls" else ["envace", "authors"]
    heads = {"ignore": "`ignore`", "execute": "`execute`", "authors": "published code", "envace": "envace"}
    lines = [
        "| case | written | " + " | ".join(heads[c] for c in columns) + " |",
        "|---" * (len(columns) + 2) + "|",
    ]
    for case in load(name):
        cells = [outcome(case[c]) if c in case else "same" for c in columns]
        lines.append(f"| {case['case']} | {show(case['written'])} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def on_page(name):
    """The table as the page has it, and where it stands."""
    return re.search(rf"<!-- cases: {name} -->\n(.*?)\n<!-- end -->", PAGE.read_text(encoding="utf-8"), re.S)


if __name__ == "__main__":
    for name in ("calls", "results"):
        found, page = on_page(name), PAGE.read_text(encoding="utf-8")
        PAGE.write_text(page[: found.start(1)] + table(name) + page[found.end(1) :], encoding="utf-8")
