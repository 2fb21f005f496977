"""From private rehearsals to a bounded memory: what may be remembered, and in which words.

Flows in: imagined episodes and the JSON a policy wrote about them. Flows out: prompts for self-evaluation and
condensation, checked feedback, and the `Memory` text a committed run is shown.
Invariant: no imagined value (an id, an amount, a status) reaches the memory. It is composed here out of tool
names, argument names and error codes only; text a model wrote is never passed on. The token cap holds.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from envace.chat.renderer import Renderer
from envace.chat.text import dumps, escaped, reply_json
from envace.chat.transcript import answered
from envace.types import JSON, Attempt, Episode, Memory, Message, Task

EVALUATE = (
    "Review a private try. Its tool answers were imagined. Reply with one JSON object: "
    '{"success": 0 to 1, "risky": [tool names], "next": [tool names in order]}'
)
CONDENSE = (
    "Plan one real run after private tries. Their tool answers were imagined. Reply with one JSON object: "
    '{"plan": [tool names in order], "avoid": [tool names]}'
)
AGAIN = "Not usable: {reason}. Reply with the JSON object only."
HEADER = "{n} imagined tries"
MAX_NAMES = 12  # names a feedback list may hold


def digest(episode: Episode) -> list[tuple[str, str]]:
    """The calls of an episode in order, values left out: `("get_order", "ok")`, or refused, or a
    FailureReason."""
    return [
        (e.call.name, o.failure.value if o.failure else "refused" if o.error else "ok")
        for e, o in answered(episode.messages, episode.observations)
    ]


def evaluation_messages(task: Task, episode: Episode, dropped: int = 0) -> tuple[Message, ...]:
    """The self-evaluation prompt of one attempt; the answers of its `dropped` first calls are left out."""
    lines = ["Try:"]
    for k, (e, observation) in enumerate(answered(episode.messages, episode.observations)):
        answer = "(left out)" if k < dropped else dumps(observation.content)
        lines.append(_plain(f"{e.call.name} {dumps(e.call.arguments)} -> {answer}"))
    reply = next((m.content for m in reversed(episode.messages) if m.role == "assistant" and not m.calls), "")
    return _prompt(EVALUATE, task, [*lines, f"Reply: {_plain(reply)}"])


def parse_feedback(text: str, tools: Sequence[str]) -> dict[str, JSON]:
    """Strict reading of a self-evaluation. Raises ValueError with a reason free of model text."""
    data = _object(text, {"success", "risky", "next"})
    success = data["success"]
    if isinstance(success, bool) or not isinstance(success, (int, float)) or not 0 <= success <= 1:
        raise ValueError("success must be a number from 0 to 1")
    return {"success": float(success), **_names(data, ("risky", "next"), tools)}


def fallback_feedback(episode: Episode, tools: Sequence[str]) -> dict[str, JSON]:
    """What stands in for a malformed self-evaluation: the calls made and those that failed."""
    steps = [(name, code) for name, code in digest(episode) if name in tools]
    risky = sorted({name for name, code in steps if code != "ok"})
    return {"success": None, "risky": risky, "next": [n for n, code in steps if code == "ok"][:MAX_NAMES]}


def condensation_messages(task: Task, attempts: Sequence[Attempt]) -> tuple[Message, ...]:
    """The condensation prompt: digests and checked feedback only."""
    lines = []
    for attempt in attempts:
        path = " > ".join(f"{name} {code}" for name, code in digest(attempt.episode)) or "no calls"
        lines += [f"Try {attempt.index + 1}: {path}", json.dumps(attempt.feedback)]
    return _prompt(CONDENSE, task, lines)


def parse_notes(text: str, tools: Sequence[str]) -> dict[str, list[str]]:
    """Strict reading of a condensation. Raises ValueError with a reason free of model text."""
    return _names(_object(text, {"plan", "avoid"}), ("plan", "avoid"), tools)


def fallback_notes(attempts: Sequence[Attempt]) -> dict[str, list[str]]:
    """The plan of the attempt with the fewest failed calls, the earliest of equals."""
    best = min(attempts, key=lambda a: (sum(code != "ok" for _, code in digest(a.episode)), a.index))
    return {"plan": list(best.feedback["next"]), "avoid": []}


def compose(
    notes: dict[str, list[str]],
    attempts: Sequence[Attempt],
    task: Task,
    renderer: Renderer,
    cap: int,
    fallback: bool = False,
) -> Memory:
    """The memory of some attempts, with the calls that failed in them, within `cap` tokens."""
    steps = [step for a in attempts for step in digest(a.episode) if step[0] in tool_names(task)]
    failed = sorted({f"{name} {code}" for name, code in steps if code != "ok"})
    return compose_lines(notes, failed, len(attempts), task, renderer, cap, fallback)


def compose_lines(
    notes: dict[str, list[str]],
    failed: list[str],
    n: int,
    task: Task,
    renderer: Renderer,
    cap: int,
    fallback: bool = False,
) -> Memory:
    """The memory text within `cap` tokens: less important lines go first, then the plan's tail, then all. A
    tool stands in the plan with its argument names: "get_order(order_id)"."""
    functions = {tool["function"]["name"]: tool["function"] for tool in task.tools}
    taken = {name: f.get("parameters", {}).get("properties", {}) for name, f in functions.items()}
    plan = [f"{name}({', '.join(taken[name])})" for name in notes["plan"]]
    extra = [f"avoid: {', '.join(notes['avoid'])}"] if notes["avoid"] else []
    extra += [f"failed: {', '.join(failed)}"] if failed else []
    while True:
        text = "\n".join([HEADER.format(n=n), *([f"plan: {' > '.join(plan)}"] if plan else []), *extra])
        tokens = len(renderer.encode(text))
        if tokens <= cap:
            return Memory(text=text, n_attempts=n, tokens=tokens, fallback=fallback)
        if not extra and not plan:
            return Memory(text="", n_attempts=n, tokens=0, fallback=fallback)
        (extra or plan).pop()


def tool_names(task: Task) -> list[str]:
    """The tools of a task, by name."""
    return [tool["function"]["name"] for tool in task.tools]


def _plain(text: str) -> str:
    """One line of foreign text."""
    return " ".join(escaped(text).split())


def _prompt(rules: str, task: Task, lines: Sequence[str]) -> tuple[Message, ...]:
    """Rules, then the user's first wish and what was tried."""
    request = next(m.content for m in reversed(task.prefix) if m.role == "user")
    body = "\n".join([f"Task: {_plain(request)}", *lines])
    return (Message(role="system", content=rules), Message(role="user", content=body))


def _object(text: str, keys: set[str]) -> dict[str, JSON]:
    try:
        data = reply_json(text)
    except ValueError:
        raise ValueError("not one JSON object") from None
    if not isinstance(data, dict) or set(data) != keys:
        raise ValueError(f"the keys must be {', '.join(sorted(keys))}")
    return data


def _names(data: dict[str, JSON], keys: Sequence[str], tools: Sequence[str]) -> dict[str, list[str]]:
    """The lists of tools under these keys."""
    for key in keys:
        names = data[key]
        if not isinstance(names, list) or len(names) > MAX_NAMES or any(n not in tools for n in names):
            raise ValueError(f"{key} must list at most {MAX_NAMES} names of the tools")
    return {key: data[key] for key in keys}
