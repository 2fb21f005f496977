"""Rehearsed responses held against true ones.

Flows in: a policy and tasks whose calls have true responses. Flows out: scores from 0 to 1, and one row a call.
Invariant: the prompt is the one training uses (`RehearsalSource`), with the records the method shows and, beside
it, with none; a response that breaks the contract counts as wrong everywhere, never as missing.

Scores, per few-shot mode `<mode>`: `<mode>/valid` contract kept, `<mode>/exact` equal JSON, `<mode>/key_f1`
F1 of the key paths, `<mode>/error_agreement` both refuse or both answer, `<mode>/false_success` of the true
refusals the share that was answered, `<mode>/false_refusal` of the true answers the share that was refused;
`<mode>/<kind>/exact` and `<mode>/tool/<name>/exact` the parts. A share of nothing is left out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from envace.chat.contract import is_error
from envace.chat.text import canonical
from envace.fidelity.pairs import Pair, choose
from envace.method import Method
from envace.params import RolloutParams
from envace.types import JSON, Observation, Sampling, Task, replace, to_json

Row = dict[str, Any]


async def measure(
    policy: Any,
    tasks: Sequence[Task],
    *,
    renderer: Any,
    method: Method,
    params: RolloutParams,
    limit: int,
    seed: int,
    temperature: float = 0.0,
    concurrency: int = 64,
) -> tuple[dict[str, float], list[Row]]:
    """Rehearse at most `limit` calls (0: all) with the method's records and with none; greedy by default.

    Returns the scores of the module's docstring and a row per call and mode. Raises what the policy raises.
    """
    pairs = choose(tasks, limit, seed)
    gate = asyncio.Semaphore(concurrency)
    rows: list[Row] = []
    for mode in dict.fromkeys((method.few_shot, "none")):
        source = _source(policy, renderer, replace(method, few_shot=mode), params)
        rows += await asyncio.gather(
            *(_one(source, pair, mode, params, seed, temperature, gate) for pair in pairs)
        )
    return scores(rows), rows


def _source(policy: Any, renderer: Any, method: Method, params: RolloutParams) -> Any:
    from envace.rollout.prompts import load_prompt_set
    from envace.rollout.sources import RehearsalSource

    return RehearsalSource(policy, renderer, load_prompt_set(params.prompt_set), method, params)


async def _one(
    source: Any,
    pair: Pair,
    mode: str,
    params: RolloutParams,
    seed: int,
    temperature: float,
    gate: asyncio.Semaphore,
) -> Row:
    from envace.chat.calls import render_calls
    from envace.rollout.sources import CallContext

    context = CallContext(
        task=pair.task,
        call=pair.call,
        history=pair.history,
        act_reply=render_calls((pair.call,)),
        turn=pair.turn,
        step=pair.index,
        episode_id=f"fidelity/{mode}/{pair.task.id}/{pair.index}",
        sampling=Sampling(temperature=temperature, max_tokens=params.response_tokens, seed=seed + pair.index),
    )
    async with gate:
        observation, generation = await source.answer(context)
    return row(pair, mode, observation, generation.text if generation else "")


def row(pair: Pair, mode: str, observation: Observation, text: str) -> Row:
    """One call's comparison."""
    valid = observation.failure is None
    said = observation.content if valid else None
    return {
        "task": pair.task.id,
        "turn": pair.turn,
        "index": pair.index,
        "few_shot": mode,
        "kind": pair.kind,
        "tool": pair.call.name,
        "call": to_json(pair.call),
        "truth": pair.truth,
        "rehearsed": said,
        "text": text,
        "failure": observation.failure.value if observation.failure else "",
        "valid": float(valid),
        "exact": float(valid and canonical(said) == canonical(pair.truth)),
        "key_f1": key_f1(said, pair.truth) if valid else 0.0,
        "true_error": is_error(pair.truth),
        "said_error": valid and is_error(said),
        "error_agreement": float(valid and is_error(said) == is_error(pair.truth)),
    }


def key_f1(said: JSON, truth: JSON) -> float:
    """F1 of the key paths of two JSON values; two values without any key agree fully."""
    a, b = key_paths(said), key_paths(truth)
    return 2 * len(a & b) / (len(a) + len(b)) if a or b else 1.0


def key_paths(value: JSON, at: tuple[str, ...] = ()) -> set[tuple[str, ...]]:
    """Paths to every key; the place in a list is written "[]"."""
    if isinstance(value, dict):
        return {p for k, v in value.items() for p in ({(*at, k)} | key_paths(v, (*at, k)))}
    if isinstance(value, list):
        return {p for v in value for p in key_paths(v, (*at, "[]"))}
    return set()


def scores(rows: Sequence[Row]) -> dict[str, float]:
    """Means of the rows by mode, and their parts by kind and by tool."""
    out: dict[str, float] = {}
    for mode in dict.fromkeys(r["few_shot"] for r in rows):
        mine = [r for r in rows if r["few_shot"] == mode]
        for key in ("valid", "exact", "key_f1", "error_agreement"):
            out[f"{mode}/{key}"] = _mean(r[key] for r in mine)
        _share(
            out,
            f"{mode}/false_success",
            mine,
            lambda r: r["true_error"],
            lambda r: r["valid"] and not r["said_error"],
        )
        _share(out, f"{mode}/false_refusal", mine, lambda r: not r["true_error"], lambda r: r["said_error"])
        for part, column in (("", "kind"), ("tool/", "tool")):
            for name in sorted({r[column] for r in mine}):
                out[f"{mode}/{part}{name}/exact"] = _mean(r["exact"] for r in mine if r[column] == name)
    return out


def _share(
    out: dict[str, float],
    key: str,
    rows: Sequence[Row],
    among: Callable[[Row], bool],
    has: Callable[[Row], bool],
) -> None:
    of = [r for r in rows if among(r)]
    if of:
        out[key] = _mean(float(has(r)) for r in of)


def _mean(values: Iterable[float]) -> float:
    values = list(values)
    return sum(values) / len(values)
