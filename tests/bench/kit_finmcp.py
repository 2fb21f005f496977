"""FinMCP-like rows of our own, and an agent that replays their gold calls.

Rows: single, multi (one parallel group, one call repeated) and multi-turn conversations, in English. `write`
puts them into a file of the published form; `Gold` answers like a model that knows them; `SERVER` is a
program that serves their tools over the Model Context Protocol, to be run by the harness's interpreter.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from kit_server import said
from kit_vita import FAULTS

SERVER = Path(__file__).with_name("kit_finmcp_server.py")
Calls = list[tuple[str, dict[str, Any], Any]]  # name, arguments, recorded reply

QUOTE = ("get_quote", {"fund": "A1"}, {"nav": 1.25})
RISK = ("get_risk", {"fund": "A1", "days": 30}, {"volatility": 0.12})
FEES = ("get_fees", {"fund": "A1"}, {"annual": 0.015})
PEERS = ("list_peers", {"fund": "A1"}, ["B2", "C3"])
OTHER = ("get_quote", {"fund": "B2"}, {"nav": 2.5})
HOLD = ("list_holdings", {"user": "U1"}, [{"fund": "A1", "units": 10}])

# row id: (task, level, scenery), turns: (user's words, groups of parallel calls, final words)
Turn = tuple[str, list[Calls], str]
SPECS: dict[int, tuple[tuple[str, str, str], list[Turn]]] = {
    1: (
        ("single step", "easy", "funds-quote-nav"),
        [("What is the value of fund A1?", [[QUOTE]], "1.25")],
    ),
    2: (
        ("single step", "easy", "portfolio-holdings-all"),
        [("What do I hold? I am U1.", [[HOLD]], "Ten A1.")],
    ),
    3: (
        ("multi step", "easy", "funds-compare-peers"),
        [("Compare fund A1 with its peer.", [[QUOTE], [PEERS], [OTHER]], "B2 is dearer.")],
    ),
    4: (
        ("multi step", "medium", "funds-review-full"),
        [("Review fund A1 in full.", [[QUOTE], [RISK, FEES], [PEERS]], "Cheap and calm.")],
    ),
    5: (
        ("multi step", "medium", "portfolio-review-risk"),
        [("How risky is what I hold? I am U1 and want a number.", [[HOLD], [RISK]], "0.12 a year.")],
    ),
    6: (
        ("multi turn", "easy", "funds-dialogue-two"),
        [("Tell me about fund A1.", [[QUOTE]], "It is at 1.25."), ("And its fees?", [[FEES]], "1.5 %.")],
    ),
    7: (
        ("multi turn", "hard", "portfolio-dialogue-three"),
        [
            ("Hello, can you look into my portfolio?", [], "Who are you?"),
            ("I am U1, dear bank.", [[HOLD]], "You hold A1."),
            ("Its risk and fees, please.", [[RISK, FEES]], "Low and low."),
        ],
    ),
    8: (
        ("multi turn", "hard", "funds-dialogue-peers"),
        [("Who competes with A1?", [[PEERS]], "B2 and C3."), ("What is B2 worth?", [[OTHER]], "2.5.")],
    ),
}


def rows() -> list[dict[str, Any]]:
    made = []
    for number, ((task, level, scenery), turns) in SPECS.items():
        messages: list[dict[str, Any]] = [{"role": "system", "content": "You advise on funds."}]
        for user, groups, final in turns:
            messages.append({"role": "user", "content": user})
            for group in groups:
                messages += _called(group, len(messages))
            messages.append({"role": "assistant", "content": final})
        about = {"id": number, "task": task, "scenery": scenery, "diff_level": {"level": level}}
        made.append(about | {"messages": messages})
    return made


def _called(group: Calls, at: int) -> list[dict[str, Any]]:
    calls, replies = [], []
    for i, (name, arguments, reply) in enumerate(group):
        function = {"name": name, "arguments": json.dumps(arguments)}
        calls.append({"id": f"g{at}-{i}", "type": "function", "function": function})
        replies.append(
            {"role": "tool", "tool_call_id": f"g{at}-{i}", "name": name, "content": json.dumps(reply)}
        )
    return [{"role": "assistant", "content": None, "tool_calls": calls}, *replies]


def write(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(rows()), encoding="utf-8")
    return path


class Gold:
    """Calls what the gold conversation calls at this point, then says its final words.

    `faults`: row id -> a fault of the kit; "silent": no call at all; "swap": parallel calls in reverse;
    "args": other arguments; "extra": one call more; "endless": never stops calling.
    """

    def __init__(self, faults: dict[int, str] | None = None):
        self.turns = {user: (n, *rest) for n, (_, turns) in SPECS.items() for user, *rest in turns}
        self.faults = faults or {}
        self.observed: list[str] = []

    def __call__(self, body: dict[str, Any]) -> tuple[int, Any]:
        messages = body["messages"]
        last = max(i for i, m in enumerate(messages) if m["role"] == "user")
        number, groups, final = self.turns[messages[last]["content"]]
        self.observed += [m["content"] for m in messages[last:] if m["role"] == "tool"]
        step = sum(m["role"] == "assistant" for m in messages[last:])
        fault = self.faults.get(number, "")
        if fault in FAULTS:
            return FAULTS[fault]()
        if fault == "endless":
            return said(calls=[QUOTE[:2]])
        if fault == "extra" and step == 0:
            return said(calls=[FEES[:2]])
        step -= fault == "extra"
        if fault == "silent" or step >= len(groups):
            return said(final)
        group = list(reversed(groups[step])) if fault == "swap" else groups[step]
        return said(calls=[(n, {"fund": "Z9"} if fault == "args" else a) for n, a, _ in group])
