"""Three loopback servers that know tau²'s answers: an agent, a user and a judge, with faults on demand.

Flows in: the task files of a built harness and a plan of faults. Flows out: OpenAI-compatible replies that
replay the recorded actions, and a log of who was asked under which model name with which key.
Invariant: each server answers only to its own model name, so a role that reaches the wrong server fails.
Agent and user find their place in a conversation from the last marker in it ("TASK 3 STEP 2") and their own
calls since.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kit_server import Server, completion

from envace.types import Endpoint, Sampling

MARKER = re.compile(r"TASK (\S+) STEP (\d+)")
OVERFLOW = (
    "This model's maximum context length is 32768 tokens. However, you requested 40000 tokens. "
    "Please reduce the length."
)
NAMES = {"agent": "policy-under-test", "user": "some/user-model", "judge": "local-judge"}


class Refused(Exception):
    """An HTTP error instead of an answer."""

    def __init__(self, code: int, message: str):
        super().__init__(message)
        self.code = code


@dataclass
class Truth:
    """What the servers know. `faults` maps a task to: malformed | empty | overflow | server | judge-down."""

    tasks: dict[str, dict[str, Any]]
    faults: Mapping[str, str] = field(default_factory=dict)
    seen: list[tuple[str, str, str]] = field(default_factory=list)  # (role, model, authorization)
    bodies: list[dict[str, Any]] = field(default_factory=list)

    def scenario_of(self, prompt: str) -> str:
        """The task whose scenario stands in the user simulator's prompt."""
        flat = _flat(prompt)
        fits = [i for i, task in self.tasks.items() if all(_flat(t) in flat for t in _scenario(task))]
        if not fits:
            raise Refused(500, f"no task fits the prompt of the user simulator: {flat[-300:]}")
        return max(fits, key=lambda i: sum(len(t) for t in _scenario(self.tasks[i])))

    def actions(self, task: str) -> list[dict[str, Any]]:
        return (self.tasks[task].get("evaluation_criteria") or {}).get("actions") or []


def load_tasks(folder: Path, ids: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Some tasks of one domain folder of the harness, as "airline/7": two domains use the same numbers."""
    kept, rows = set(ids), json.loads((folder / "tasks.json").read_text())
    return {f"{folder.name}/{t['id']}": t for t in rows if str(t["id"]) in kept}


@contextmanager
def three_servers(
    truth: Truth,
) -> Iterator[dict[str, Endpoint]]:
    """Role -> endpoint."""
    with ExitStack() as stack:
        yield {role: stack.enter_context(_server(role, truth)) for role in NAMES}


@contextmanager
def _server(role: str, truth: Truth) -> Iterator[Endpoint]:
    def answer(body: dict[str, Any]) -> tuple[int, Any]:
        truth.bodies.append(body)
        truth.seen.append((role, body["model"], server.seen[-1][0].get("Authorization", "")))
        try:
            if body["model"] != NAMES[role]:
                raise Refused(404, f"the {role} server has no model {body['model']}")
            return completion({"role": "assistant", **ANSWERS[role](body["messages"], truth)}, body["model"])
        except Refused as e:
            return e.code, {"error": {"message": str(e), "type": "BadRequestError", "code": e.code}}

    with Server(answer, NAMES[role]) as server:
        sampling, key = Sampling(temperature=0.0), f"KIT_{role.upper()}_KEY"
        yield Endpoint(base_url=server.url, model=NAMES[role], key_env=key, sampling=sampling)


def _agent(messages: list[dict[str, Any]], truth: Truth) -> dict[str, Any]:
    task, step = _place(messages)
    fault = truth.faults.get(task)
    if fault == "malformed":
        return {"content": None, "tool_calls": [_call("c0", "get_user_details", '{"user_id": ')]}
    if fault == "empty":
        return {"content": "  "}
    if fault == "overflow":
        raise Refused(400, OVERFLOW)
    if fault == "server":
        raise Refused(500, "the engine has died")
    if (call := _next_call(truth.actions(task), step, "assistant")) is not None:
        return call
    said = (truth.tasks[task].get("evaluation_criteria") or {}).get("communicate_info") or []
    over = step >= len(truth.actions(task))
    return {
        "content": f"TASK {task} STEP {step} "
        + (f"All done. {'; '.join(said)} FINISHED" if over else "your turn")
    }


def _user(messages: list[dict[str, Any]], truth: Truth) -> dict[str, Any]:
    task = truth.scenario_of(messages[0]["content"])
    if messages[-1]["role"] == "user" and "FINISHED" in (messages[-1]["content"] or ""):
        return {"content": "###STOP###"}
    found = _place(messages, task)
    call = _next_call(truth.actions(task), found[1], "user")
    return call or {"content": f"TASK {task} STEP {found[1]} please go on"}


def _judge(messages: list[dict[str, Any]], truth: Truth) -> dict[str, Any]:
    asked = ast.literal_eval(messages[-1]["content"].split("expectedOutcomes:")[1].strip())
    task, _ = _place(messages)
    if truth.faults.get(task) == "judge-down":
        raise Refused(500, "the engine has died")
    rows = [{"expectedOutcome": a, "reasoning": "replayed", "metExpectation": True} for a in asked]
    return {"content": json.dumps({"results": rows})}


ANSWERS = {"agent": _agent, "user": _user, "judge": _judge}


def _place(messages: list[dict[str, Any]], task: str = "") -> tuple[str, int]:
    """The task, and the index of the action that comes next."""
    for at in range(len(messages) - 1, -1, -1):
        found = MARKER.findall(messages[at].get("content") or "") if messages[at]["role"] != "tool" else []
        if found:
            own = [m for m in messages[at + 1 :] if m["role"] == "assistant"]
            return found[-1][0], int(found[-1][1]) + sum(len(m.get("tool_calls") or ()) for m in own)
    own = [m for m in messages if m["role"] == "assistant"]  # the user has not spoken yet
    return task, sum(len(m.get("tool_calls") or ()) for m in own)


def _next_call(actions: list[dict[str, Any]], step: int, who: str) -> dict[str, Any] | None:
    if step >= len(actions) or actions[step].get("requestor", "assistant") != who:
        return None
    action = actions[step]
    return {
        "content": None,
        "tool_calls": [_call(f"c{step}", action["name"], json.dumps(action["arguments"]))],
    }


def _call(ident: str, name: str, arguments: str) -> dict[str, Any]:
    return {"id": ident, "type": "function", "function": {"name": name, "arguments": arguments}}


def _scenario(task: dict[str, Any]) -> list[str]:
    """The sentences of a task that stand in its user's prompt."""
    told = (task.get("user_scenario") or {}).get("instructions")
    texts = [told] if isinstance(told, str) else [v for v in (told or {}).values() if isinstance(v, str)]
    return [t for t in texts if t.strip()]


def _flat(text: str) -> str:
    return " ".join(text.split())
