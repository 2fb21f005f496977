"""Rehearsed responses held against true ones, beside predictors that need no model.

Flows in: a policy and tasks whose calls have true responses. Flows out: scores from 0 to 1, and one row for
each call, few-shot mode and predictor.
Invariant: the prompt is the one training uses (`RehearsalSource`), with the records the method shows and,
beside it, with none; predictors answer the very same calls; a response that breaks the contract, or is
missing, counts as wrong everywhere.

A *leaf* is a scalar (or an empty object or list) with its path. A leaf of the truth is *grounded* when its
value stands in what REHEARSE was shown (records, history, the call) as a JSON value of its own: that part of
the truth could be copied, the rest could only be known or guessed. A share of nothing is None, never 0 or 1.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from collections.abc import Sequence

from envace.bench.fidelity.pairs import Pair, choose, recorded
from envace.bench.fidelity.predictors import NOTHING, Others, constant, copy, majority
from envace.bench.fidelity.scores import METRICS, POLICY, FidelityRow
from envace.chat.calls import render_calls
from envace.chat.contract import is_error
from envace.chat.renderer import Renderer
from envace.chat.text import canonical, dumps
from envace.chat.transcript import leaves, shape
from envace.config import RolloutParams
from envace.config.method import Method
from envace.policy.protocol import Policy
from envace.rollout.few_shot import select_records
from envace.rollout.interfaces import CallContext
from envace.rollout.prompts import call_line, load_prompt_set
from envace.rollout.rehearsal import RehearsalSource
from envace.types import JSON, Observation, Sampling, Task, replace, to_json


async def measure(
    policy: Policy,
    tasks: Sequence[Task],
    *,
    renderer: Renderer,
    method: Method,
    params: RolloutParams,
    limit: int,
    seed: int,
    temperature: float = 0.0,
    concurrency: int = 64,
) -> list[FidelityRow]:
    """Rehearse at most `limit` calls (0: all) with the method's records and with none; greedy by default.

    Rows in the order of the pairs, by mode; `scores.summarise` makes scores of them. Raises what the policy
    raises.
    """
    pairs, gate = choose(tasks, limit, seed), asyncio.Semaphore(concurrency)
    prompts, rows = load_prompt_set(params.prompt_set), list[FidelityRow]()

    async def one(source: RehearsalSource, pair: Pair, mode: str) -> FidelityRow:
        own = Sampling(temperature=temperature, max_tokens=params.response_tokens, seed=seed + pair.index)
        context = CallContext(
            task=pair.task,
            call=pair.call,
            history=pair.history,
            act_reply=render_calls((pair.call,)),
            turn=pair.turn,
            step=pair.index,
            episode_id=f"fidelity/{mode}/{pair.task.id}/{pair.index}",
            sampling=own,
        )
        async with gate:
            observation, generation = await source.answer(context)
        return row(pair, mode, observation, generation.text if generation else "", _shown(source, context))

    for mode in dict.fromkeys((method.few_shot, "none")):
        source = RehearsalSource(policy, renderer, prompts, replace(method, few_shot=mode), params)
        mine = await asyncio.gather(*(one(source, pair, mode) for pair in pairs))
        rows += [*mine, *predicted(pairs, mode, [r["shown"] for r in mine])]
    return rows


def predicted(pairs: Sequence[Pair], mode: str, shown: Sequence[str]) -> list[FidelityRow]:
    """What each predictor says to the same calls; `shown` is what REHEARSE was shown for each."""
    others, rows = Others(pairs), []
    for pair, text in zip(pairs, shown, strict=True):
        answers = {"constant": constant(pair, others)} | (
            {} if mode == "none" else {"copy": copy(pair, mode)}
        )
        for by, said in answers.items():
            made = said is not NOTHING
            rows.append(_about(pair, mode, by, text) | _agreement(pair, made, said if made else None, text))
        refuses = majority(pair, others)
        verdict = float(refuses is not None and refuses == is_error(pair.truth))
        only = {"verdict": verdict, "rehearsed": None, "text": "", "failure": ""}
        rows.append(dict.fromkeys(METRICS) | _about(pair, mode, "majority", text) | only)
    return rows


def _shown(source: RehearsalSource, context: CallContext) -> str:
    """Records, history and call as the prompt set writes them, before anything is cut; no tool schemas."""
    method, task = source.method, context.task
    records = select_records(task.records, method.few_shot, context.turn, context.call, task.lent)
    prompt = source.prompt_set.rehearsal(context, records, show_thoughts=method.show_act_thoughts)
    lines = [line for name in ("records", "history", "reply") for line in prompt.lines.get(name, ())]
    return "\n".join([*lines, call_line(context.call)])


def row(pair: Pair, mode: str, observation: Observation, text: str, shown: str = "") -> FidelityRow:
    """One call's comparison; `shown` is the text grounded leaves are looked up in."""
    valid = observation.failure is None
    return {
        **_about(pair, mode, POLICY, shown),
        **_agreement(pair, valid, observation.content if valid else None, shown),
        "grounded_share": grounded_share(pair.truth, shown),
        "text": text,
        "failure": observation.failure.value if observation.failure else "",
    }


def _about(pair: Pair, mode: str, by: str, shown: str) -> FidelityRow:
    """Which call, under which mode, answered by whom."""
    where = {"task": pair.task.id, "turn": pair.turn, "index": pair.index, "few_shot": mode, "by": by}
    call = {"tool": pair.call.name, "call": to_json(pair.call), "truth": pair.truth, "shown": shown}
    return where | {"kind": pair.kind, "recorded": recorded(pair)} | call


def _agreement(pair: Pair, valid: bool, said: JSON, shown: str) -> FidelityRow:
    """The metrics of `scores`, for a response that may be none (`valid` False)."""
    refused, refuses = is_error(pair.truth), valid and is_error(said)
    copied = grounded(said, pair.truth, shown)
    return {
        "rehearsed": said,
        "text": "",
        "failure": "",
        "valid": float(valid),
        "verdict": float(valid and refuses == refused),
        "shape": shape(said, pair.truth) if valid else 0.0,
        "grounded": copied if valid or copied is None else 0.0,
        "grounded_share": None,
        "exact": float(valid and canonical(said) == canonical(pair.truth)),
        "false_success": float(valid and not refuses) if refused else None,
        "false_refusal": None if refused else float(refuses),
    }


def grounded_share(truth: JSON, shown: str) -> float | None:
    """Share of the truth's leaves that are grounded in the text; None for a truth without leaves."""
    found = [occurs(json.loads(value), shown) for _, value in leaves(truth)]
    return sum(found) / len(found) if found else None


def grounded(said: JSON, truth: JSON, shown: str) -> float | None:
    """Of the truth's grounded leaves, the share the response has at the same path; None without any."""
    wanted = Counter(leaf for leaf in leaves(truth) if occurs(json.loads(leaf[1]), shown))
    return (wanted & Counter(leaves(said))).total() / wanted.total() if wanted else None


def occurs(value: JSON, shown: str) -> bool:
    """Whether a value stands in a text as a JSON value of its own: no key, no part of a longer one."""
    if isinstance(value, str):
        tokens = {dumps(value), json.dumps(value)}  # with and without escaped letters
        return any(re.search(rf"(?<!\\){re.escape(t)}(?!\s*:)", shown) for t in tokens)
    return re.search(rf'(?<![\w.\-"]){re.escape(dumps(value))}(?![\w.\-"])', shown) is not None
