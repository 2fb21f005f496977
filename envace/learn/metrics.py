"""The numbers of one training step, flat.

Flows in: the step's episodes, their rows with advantages, and `Diagnostics`. Flows out: `{name: float}`.
Invariant: a row is one generation, in however few sequences rows are trained, and its advantage the one
before any loss weight. A name has exactly one slash and MLflow-safe letters; a count that is absent is zero;
a mean over nothing is absent, never 0. Rewards are means over episodes, so that long episodes weigh no more.

train/...            episodes, reward, reward_std, full_reward (share), unscored (share, `unscored: zero`
                     too), turns, untrained_rows, empty_generations, real_calls, tokens, seconds_episode; role
                     groups (see advantage.py): groups, lone, constant, empty_groups, unscored_groups;
                     sequences and, of them, copies (padding: duplicates); trained_reward, trained_reward_std
                     (what the rows were trained on, see rewards.py); rehearsed_success (`rehearsed_success`)
act/... rehearse/... reward, rows, adv_mean, adv_std, adv_zero, tokens, response_tokens, prompt_tokens (of a
                     generation), and its role groups
cut/...              prompts REHEARSE was shown shortened, and the lines that went, by section
stop/<reason>        episodes that ended so
failure/<reason>     generations and calls that failed so
restart/<reason>     rows of ACT that a prompt written anew began (see chat/tokens.py)
anchor/...           asked, missed: anchored calls that a true source answered, and that it could not;
                     agreement, the mean over rehearsed responses held against a true one
judge/...            answers, requests, faults and cost (see judge/counts.py)
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict

import numpy as np

from envace.judge.checklist import required_held
from envace.judge.counts import judge_metrics
from envace.learn.advantage import Diagnostics
from envace.learn.sequences import TrainingRow, empty_generations
from envace.types import Episode, Role, Task

COUNTED = ("cut/", "failure/", "restart/", "anchor/")  # an episode's counters that are metrics as they are


def step_metrics(
    episodes: Sequence[Episode], rows: Sequence[TrainingRow], diagnostics: Diagnostics
) -> dict[str, float]:
    """The metrics of a step that its episodes and rows hold; `rows` may hold padding rows, which count
    nowhere but in untrained_rows. A row's reward is the one it was trained on, an episode's the judged
    one."""
    found = {**_train(episodes, rows, diagnostics), **_reasons(episodes)}
    found.update(judge_metrics(v for e in episodes for v in e.verdicts))
    for role in Role:
        found.update({f"{role.value}/{k}": v for k, v in _role(role, episodes, rows, diagnostics).items()})
    return {name: float(value) for name, value in sorted(found.items())}


def rehearsed_success(episodes: Sequence[Episode], tasks: Mapping[str, Task]) -> float | None:
    """Share of judged episodes in which every required item of every turn holds; None when none was judged.

    It is read off the verdicts alone, on whatever responses the transcript shows. `tasks` (by id) are those
    the judge was given. An item of a turn that was never reached does not hold.
    """
    judged = [e for e in episodes if e.unscored_reason is None]
    if not judged:
        return None
    return _mean(required_held(tasks[e.task_id], e.verdicts) for e in judged)


def _train(episodes: Sequence[Episode], rows: Sequence[TrainingRow], found: Diagnostics) -> dict[str, float]:
    rewards = [e.reward for e in episodes if e.reward is not None]
    metrics: dict[str, float] = {
        "train/episodes": len(episodes),
        "train/groups": found.groups,
        "train/lone": found.lone,
        "train/constant": found.constant,
        "train/empty_groups": found.empty_groups,
        "train/unscored_groups": found.unscored_groups,
        "train/untrained_rows": found.untrained,
        "train/empty_generations": sum(map(empty_generations, episodes)),
        "train/real_calls": sum(len(e.real_calls) for e in episodes),
        "train/tokens": sum(row.trained for row in rows),
    }
    if episodes:
        metrics["train/unscored"] = _mean(e.unscored for e in episodes)
        metrics["train/turns"] = _mean(len(e.turn_rewards) for e in episodes)
        metrics["train/seconds_episode"] = _mean(e.seconds for e in episodes)
    if rewards:
        metrics["train/reward"] = _mean(rewards)
        metrics["train/reward_std"] = float(np.std(rewards))
        metrics["train/full_reward"] = _mean(r >= 1 - 1e-9 for r in rewards)
    return {**metrics, **_trained(rows)}


def _trained(rows: Sequence[TrainingRow]) -> dict[str, float]:
    """What was trained on, one value an episode: the mean over its trained rows, which a penalty may set
    apart."""
    by_episode: dict[str, list[float]] = defaultdict(list)
    for row in rows:
        if row.reward is not None and row.trained:
            by_episode[row.episode_id].append(row.reward)
    if not by_episode:
        return {}
    means = [_mean(rewards) for rewards in by_episode.values()]
    return {"train/trained_reward": _mean(means), "train/trained_reward_std": float(np.std(means))}


def _reasons(episodes: Sequence[Episode]) -> dict[str, float]:
    counts: Counter[str] = Counter(f"stop/{e.stop.value}" for e in episodes)
    for episode in episodes:
        counts.update({k: n for k, n in episode.counters.items() if k.startswith(COUNTED)})
    return {**counts, **_agreement(episodes)}


def _agreement(episodes: Sequence[Episode]) -> dict[str, float]:
    held = [g.agreement for e in episodes for g in e.generations if g.agreement is not None]
    return {"anchor/agreement": _mean(held)} if held else {}


def _role(
    role: Role, episodes: Sequence[Episode], rows: Sequence[TrainingRow], found: Diagnostics
) -> dict[str, float]:
    """Reward over the episodes in which the role generated anything; the rest over its trained rows."""
    rewards = [
        e.reward for e in episodes if e.reward is not None and any(g.role is role for g in e.generations)
    ]
    tokens = [row.trained for row in rows if row.role is role and row.trained]
    metrics: dict[str, float] = {"rows": len(tokens), "tokens": sum(tokens)}
    if rewards:
        metrics["reward"] = _mean(rewards)
    if tokens:
        metrics["response_tokens"] = _mean(tokens)
    written = sum(e.counters.get(role.value, 0) for e in episodes)
    if read := sum(e.counters.get(f"prompt_{role.value}", 0) for e in episodes):
        metrics["prompt_tokens"] = read / written
    if role.value in found.roles:
        metrics.update({k: v for k, v in asdict(found.roles[role.value]).items() if k != "rows"})
    return metrics


def _mean(values: Iterable[float]) -> float:
    return float(np.mean([float(v) for v in values]))
