"""A loopback endpoint that answers BFCL's questions with their ground truth, or with a fault.

Flows in: the installed package's data and a fault for each entry. Flows out: an OpenAI-compatible address.
Invariant: an entry is found by the text of its questions, as a model would be asked; nothing tells the
endpoint which entry it is. With `raw` the calls are written as the text a Qwen3 policy writes and become a
message by the project's serving layer, as they would behind a served checkpoint.
"""

import ast
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from kit_server import Server, completion

from envace.bench.bfcl import tasks as bfcl_tasks
from envace.chat.calls import render_calls
from envace.serving.replies import chat_message
from envace.types import ToolCall

MODEL = "replay/ground-truth_1"
BROKEN = '<tool_call>\n{"name": "broken", "arguments": {"x": \n</tool_call>'
TOO_LONG = "This model's maximum context length is 4096 tokens. However, you requested 9999 tokens."
OVERFLOW = {"error": {"message": TOO_LONG, "type": "BadRequestError", "code": 400}}


@dataclass
class Replay:
    """Answers for these categories. `fault`: entry id -> "" | malformed | empty | text | overflow | server |
    hang-up."""

    source: Path
    names: tuple[str, ...]
    fault: Callable[[str], str] = lambda entry: ""
    raw: bool = False
    requests: list[dict] = field(default_factory=list)
    seen: list[tuple[dict, bytes]] = field(default_factory=list)  # headers, raw body

    def __post_init__(self):
        self.entries = {}
        for category in self.names:
            self._index(category)

    def _index(self, category):
        truth = bfcl_tasks.answers(self.source, category)
        rows = bfcl_tasks.rows(self.source, category)
        if category in bfcl_tasks.MEMORY:
            folder = self.source / bfcl_tasks.DATA / "memory_prereq_conversation"
            names = [f"memory_prereq_conversation/{f.name}" for f in sorted(folder.glob("*.json"))]
            rows += [row for name in names for row in bfcl_tasks.rows(self.source, category, name)]
        for row in rows:
            entry = row["id"]
            key = self._key(row["question"][0], category, row.get("function", []))
            turns = [_said(turn) for turn in row["question"]]
            self.entries.setdefault(key, []).append((entry, category, truth.get(entry), turns))

    @staticmethod
    def _key(messages, category, functions):
        """The first turn's words; the offered functions too, where the question alone is asked more than
        once."""
        said = _said(messages)
        if category in bfcl_tasks.HAVE_TURNS:
            return said, category if category in bfcl_tasks.MEMORY else ""
        return said, ",".join(sorted(f["name"].replace(".", "_") for f in functions))

    def find(self, request):
        users = [m["content"] for m in request["messages"] if m["role"] == "user"]
        names = {t["function"]["name"] for t in request.get("tools", [])}
        backend = {"core_memory_add": "memory_kv", "memory_append": "memory_rec_sum"}
        memory = next((b for n, b in backend.items() if n in names), "")
        for key in ((users[0], memory), (users[0], ""), ("\n".join(users), ",".join(sorted(names)))):
            for entry, category, truth, turns in self.entries.get(key, []):
                # two entries may begin alike; a turn without words is one that BFCL words itself
                if category not in bfcl_tasks.HAVE_TURNS or all(t in ("", u) for t, u in zip(turns, users)):
                    return entry, category, truth
        raise LookupError(f"no entry asks {users[0][:80]!r}")

    def answer(self, request):
        """(text, calls) of the ground truth."""
        entry, category, truth = self.find(request)
        roles = [m["role"] for m in request["messages"]]
        turn, step = (
            roles.count("user") - 1,
            len(roles) - 1 - max(i for i, r in enumerate(roles) if r == "user"),
        )
        if "_prereq_" in entry:
            return ("", [_remember(category, turn)]) if not step else ("Noted.", [])
        if category in bfcl_tasks.MULTI_TURN:
            calls = [_from_python(c, request["tools"]) for c in truth[turn]] if not step else []
            return ("" if calls else "Done.", calls)
        if category in bfcl_tasks.AGENTIC:
            return f"{{'answer': '{truth[0]}', 'context': 'remembered'}}", []
        if truth is None:  # relevance: any call; irrelevance: none
            if category != "live_relevance":
                return "I cannot.", []
            return "", [ToolCall(name=request["tools"][0]["function"]["name"], arguments={})]
        return "", [_first_choice(call) for call in truth]

    def message(self, request):
        """The assistant message, faults applied."""
        fault = self.fault(self.find(request)[0])
        text, calls = self.answer(request)
        if fault == "empty":
            return {"role": "assistant", "content": ""}
        if fault == "text":
            return {"role": "assistant", "content": "Let me think about that."}
        if self.raw:
            written = "<think>\n\n</think>\n\n" + (text or render_calls(calls))
            if fault == "malformed":
                written = BROKEN
            return chat_message(written, tools=bool(request.get("tools")))
        message = as_message(text, calls)
        if fault == "malformed":
            name = calls[0].name if calls else request["tools"][0]["function"]["name"]
            message = as_message("", [ToolCall(name=name, arguments={})])
            message["tool_calls"][0]["function"]["arguments"] = '{"x": '
        return message


def _said(messages):
    return "\n".join(m["content"] for m in messages if m["role"] == "user")


def as_message(text, calls):
    """The JSON truth: what a server with a perfect parser would send."""
    message = {"role": "assistant", "content": text or None}
    if calls:
        message["tool_calls"] = [
            {
                "id": f"call-{n}",
                "type": "function",
                "function": {"name": c.name, "arguments": json.dumps(c.arguments)},
            }
            for n, c in enumerate(calls)
        ]
    return message


def _remember(category, turn):
    if category == "memory_kv":
        return ToolCall(name="core_memory_add", arguments={"key": f"turn_{turn}", "value": "noted"})
    return ToolCall(name="memory_append", arguments={"text": f"turn {turn}. "})


def _from_python(text, tools):
    """`sort('a.txt')` -> a call with named arguments, in the order of the tool's parameters."""
    call = ast.parse(text, mode="eval").body
    name = call.func.attr if isinstance(call.func, ast.Attribute) else call.func.id
    known = {t["function"]["name"]: list(t["function"]["parameters"]["properties"]) for t in tools}
    arguments = dict(zip(known.get(name, []), map(ast.literal_eval, call.args)))
    arguments |= {k.arg: ast.literal_eval(k.value) for k in call.keywords}
    return ToolCall(name=name, arguments=arguments)


def _first_choice(call):
    ((name, parameters),) = call.items()
    chosen = {p: _choice(options) for p, options in parameters.items() if options != [""]}
    given = {p: v for p, v in chosen.items() if not (v == "" and "" in parameters[p])}
    return ToolCall(name=name.replace(".", "_"), arguments=given)


def _choice(options):
    """The first alternative; "" marks a parameter that may be left out. Objects hold alternatives of their
    own."""
    value = next((o for o in options if o != ""), "")
    return _plain(value)


def _plain(value):
    if isinstance(value, dict):
        return {k: _choice(v) if isinstance(v, list) else v for k, v in value.items() if v != [""]}
    return [_plain(v) for v in value] if isinstance(value, list) else value


@contextmanager
def serving(replay: Replay) -> Iterator[str]:
    """Address of the endpoint while the block runs."""

    def answer(request):
        fault = replay.fault(replay.find(request)[0])
        replay.requests.append(request)
        if fault == "overflow":
            return 400, OVERFLOW
        if fault == "server":
            return 500, {"error": {"message": "out of memory"}}
        if fault == "hang-up":
            return 0, None
        return completion(replay.message(request), MODEL)

    with Server(answer, MODEL, seen=replay.seen) as server:
        yield server.url
