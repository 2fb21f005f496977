"""Three loopback servers for VitaBench: an agent that places the orders a task requires, its user, its judge.

The agent learns the task from the user's first words, the judge approves a rubric once a payment stands in
the window it reads. Faults are given by task id. Requests are kept as they came: headers and raw body.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from kit_server import said

from envace.serving.replies import chat_message

TASK = re.compile(r"TASK:(\w+)!")
ORDER = re.compile(r"order_id:(\w+)")
CLOCK = "%Y-%m-%d %H:%M:%S"


BROKEN = '<tool_call>\n{"name": "create_delivery_order", "arguments": {"user_id": \n</tool_call>'
FAULTS: dict[str, Callable[[], tuple[int, Any]]] = {
    "raw": lambda: said(chat_message(BROKEN, tools=True)["content"]),  # as this project's server hands it on
    "malformed": lambda: said(calls=[("create_delivery_order", '{"user_id": "U0000')]),
    "empty": lambda: said(""),
    "overflow": lambda: (400, {"error": {"message": "This model's maximum context length is 32768 tokens."}}),
    "refused": lambda: (401, {"error": {"message": "no"}}),
    "down": lambda: (0, None),
}


class Agent:
    """Creates and pays each required order, then says it is done. `once`: a fault befalls the first request
    only."""

    def __init__(self, tasks: Path, faults: dict[str, str] | None = None, once: bool = False):
        self.tasks = {t["id"]: t for t in json.loads(tasks.read_text(encoding="utf-8"))}
        self.faults, self.once, self.met = dict(faults or {}), once, set()

    def __call__(self, body: dict[str, Any]) -> tuple[int, Any]:
        messages = body["messages"]
        task = next(m.group(1) for x in messages if (m := TASK.search(x.get("content") or "")))
        fault = self.faults.get(task)
        if fault and not (self.once and task in self.met):
            self.met.add(task)
            return FAULTS[fault]()
        answers = [m["content"] for m in messages if m["role"] == "tool"]
        orders = self._orders(self.tasks[task])
        if len(answers) % 2:  # created, not yet paid
            return said(calls=[("pay_delivery_order", {"order_id": ORDER.search(answers[-1]).group(1)})])
        if len(answers) // 2 < len(orders):
            return said(calls=[("create_delivery_order", orders[len(answers) // 2])])
        return said("All is ordered and paid. FINISHED")

    def _orders(self, task: dict[str, Any]) -> list[dict[str, Any]]:
        soon = datetime.strptime(task["environment"]["time"], CLOCK) + timedelta(minutes=5)
        states = task["evaluation_criteria"]["expected_states"]
        return [_order(o, soon) for s in states for o in s["required_orders"]]


def _order(order: dict[str, Any], soon: datetime) -> dict[str, Any]:
    return {
        "user_id": order["user_id"],
        "store_id": order["store_id"],
        "product_ids": [p["product_id"] for p in order["products"]],
        "product_cnts": [p["quantity"] for p in order["products"]],
        "address": order["location"]["address"],
        "dispatch_time": order["dispatch_time"] or soon.strftime(CLOCK),
    }


class User:
    """Names its task first, then thanks."""

    def __init__(self, tasks: Path):
        self.tasks = {t["instructions"]: t["id"] for t in json.loads(tasks.read_text(encoding="utf-8"))}

    def __call__(self, body: dict[str, Any]) -> tuple[int, Any]:
        if "FINISHED" in (body["messages"][-1].get("content") or ""):
            return said("Thank you ###STOP###")
        system = body["messages"][0]["content"]
        return said(f"TASK:{next(i for text, i in self.tasks.items() if text in system)}!")


class Judge:
    """A rubric holds when it held before or the window shows a payment. `prose`: answers with words only."""

    def __init__(self, prose: bool = False):
        self.prose = prose

    def __call__(self, body: dict[str, Any]) -> tuple[int, Any]:
        text = body["messages"][-1]["content"]
        if self.prose:
            return said("[]")
        paid = "Payment successful" in text.partition("<current_rubrics>")[0]
        rubrics = json.loads(re.search(r"<current_rubrics>(.*)</current_rubrics>", text, re.S).group(1))
        for r in rubrics:
            r["meetExpectation"] = bool(r["meetExpectation"] or paid)
        return said("```json\n" + json.dumps(rubrics, ensure_ascii=False) + "\n```")


def nothing(body: dict[str, Any]) -> tuple[int, Any]:
    """An agent that does nothing, and says so in the word that ends the talk."""
    return said("I cannot help. FINISHED")
