"""Result folders as the bench stage leaves them, with the scores that the benchmarks' own code makes of the
samples.

Flows in: rewards, and what the run was made with. Flows out: `results/bench/<policy>-<benchmark>/`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from envace.bench.bfcl.scores import score_records
from envace.bench.finmcp import scores as finmcp_scores
from envace.bench.finmcp.rows import SUBSETS, FinMcpRow
from envace.bench.finmcp.scores import counts
from envace.bench.harness.spec import EvalRequest, EvalRoles, HarnessEnv
from envace.bench.labels import labels
from envace.bench.tau2.adapter import Tau2
from envace.bench.vita import scores as vita_scores
from envace.types import Endpoint, SampleRecord, SampleStatus, ScoreRecord, to_json

LOST = "lost"  # a dialogue the infrastructure failed
Rewards = Mapping[
    str, Sequence[Any]
]  # subset -> one a task: reward, None (agent failure), LOST, or a tuple of trials


def endpoint(model: str) -> Endpoint:
    return Endpoint(base_url="http://127.0.0.1:1/v1", model=model)


def request_of(
    out: Path, subsets: Sequence[str], *, user: str = "u", judge: str = "j", **more: Any
) -> EvalRequest:
    roles = EvalRoles(agent=endpoint("policy"), user=endpoint(user), judge=endpoint(judge))
    return EvalRequest(roles=roles, subsets=tuple(subsets), seed=1, out=out, **({"trials": 1} | more))


def samples_of(rewards: Rewards) -> list[SampleRecord]:
    return [
        _sample(f"{subset}/{i}", trial, reward)
        for subset, own in rewards.items()
        for i, trials in enumerate(own)
        for trial, reward in enumerate(trials if isinstance(trials, tuple) else (trials,))
    ]


def _sample(task: str, trial: int, reward: Any) -> SampleRecord:
    status = SampleStatus.INFRA_FAILURE if reward == LOST else SampleStatus.AGENT_FAILURE
    if not isinstance(reward, float):
        return SampleRecord(task=task, trial=trial, seed=1, status=status)
    metrics = {"reward": reward, "upstream": reward, "rubrics": reward, "steps": 1.0, "calls": 1.0}
    return SampleRecord(
        task=task, trial=trial, seed=1, status=SampleStatus.SCORED, reward=reward, metrics=metrics
    )


def tau2(
    root: Path,
    policy: str,
    rewards: Rewards,
    *,
    revision: str = "v1.0.1",
    words: str = "",
    trials: int = 1,
    **asked: Any,
) -> list[ScoreRecord]:
    """By Tau2().summarise: retail is graded by a judge, the others are not; `words` stand in every task."""
    domains = root / "harness" / f"{revision}-{words}" / "data/tau2/domains"
    for domain, own in rewards.items():
        (domains / domain).mkdir(parents=True, exist_ok=True)
        criteria = (
            {"nl_assertions": ["said so"], "reward_basis": ["DB", "NL_ASSERTION"]}
            if domain == "retail"
            else {}
        )
        tasks = [{"id": str(i), "words": words, "evaluation_criteria": criteria} for i in range(len(own))]
        (domains / domain / "tasks.json").write_text(json.dumps(tasks))
        (domains / domain / "split_tasks.json").write_text(json.dumps({"base": [t["id"] for t in tasks]}))
    source = domains.parents[2]
    env = HarnessEnv(
        spec=Tau2().spec({"revision": revision}), root=root, python=root / "python", source=source
    )
    request = request_of(root / "work" / policy, list(rewards), trials=trials, **asked)
    samples = samples_of(rewards)
    return leave(
        root, policy, "tau2", Tau2().summarise(env, request, samples, bootstrap=200, policy=policy), samples
    )


def bfcl(
    root: Path, policy: str, rewards: Rewards, skipped: Mapping[str, str] | None = None
) -> list[ScoreRecord]:
    samples, request = samples_of(rewards), request_of(root, list(rewards))
    scores = score_records(
        samples,
        {c: [f"{c}/{i}" for i in range(len(own))] for c, own in rewards.items()},
        1,
        floors=dict.fromkeys(rewards, 0.0),
        skipped=skipped or {},
        min_complete=1.0,
        bootstrap=200,
        seed=1,
        **identity(request, "bfcl-1", policy),
    )
    return leave(root, policy, "bfcl", scores, samples)


def vita(root: Path, policy: str, rewards: Rewards) -> list[ScoreRecord]:
    samples, request = samples_of(rewards), request_of(root, list(rewards))
    scores = vita_scores.records(
        tuple(rewards),
        samples,
        dict.fromkeys(rewards, 0.0),
        bootstrap=200,
        seed=1,
        **identity(request, "vita-1", policy, user=True, judge=True),
    )
    return leave(root, policy, "vita", scores, samples)


def finmcp(root: Path, policy: str, played: Sequence[tuple[str, int, int, int]]) -> list[ScoreRecord]:
    """(subset, gold calls, calls found, calls in vain) of each conversation."""
    rows, samples = {}, []
    for k, (subset, gold, hits, vain) in enumerate(played):
        row = FinMcpRow(str(k), subset, "easy", "funds", ({"role": "assistant", "tool_calls": _calls(gold)},))
        numbers = counts(row.gold, [["a"] * hits + ["b"] * vain])
        metrics = numbers | {"reward": numbers["f1"], "upstream": numbers["f1"]}
        rows[row.task] = row
        samples.append(
            SampleRecord(
                task=row.task,
                trial=0,
                seed=1,
                status=SampleStatus.SCORED,
                reward=numbers["f1"],
                metrics=metrics,
            )
        )
    request = request_of(root, [])
    absent = tuple(
        f"{s}: not asked for" for s in SUBSETS.values() if s not in {row.subset for row in rows.values()}
    )
    scores = finmcp_scores.records(
        tuple(dict.fromkeys(s for s, *_ in played)),
        samples,
        rows,
        absent=absent,
        bootstrap=200,
        seed=1,
        **identity(request, "finmcp-1", policy),
    )
    return leave(root, policy, "finmcp", scores, samples)


def _calls(n: int) -> list[dict[str, Any]]:
    return [{"id": str(k), "function": {"name": "a", "arguments": "{}"}} for k in range(n)]


def identity(request: EvalRequest, harness: str, policy: str, **roles: bool) -> dict[str, Any]:
    return {
        "harness": harness,
        "data_hash": "d" * 64,
        "policy": policy,
        "versions": labels(request, "d" * 64, **roles),
    }


def leave(
    root: Path, policy: str, benchmark: str, scores: Sequence[ScoreRecord], samples: Sequence[SampleRecord]
) -> list[ScoreRecord]:
    folder = root / f"results/bench/{policy}-{benchmark}"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "scores.json").write_text(json.dumps({"scores": [to_json(s) for s in scores], "seconds": 1.0}))
    (folder / "samples.jsonl").write_text("".join(json.dumps(to_json(s)) + "\n" for s in samples))
    return list(scores)
