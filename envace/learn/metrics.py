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
from collections.abc import Mapping, Sequence
from dataclasses import asdict

import numpy as np

from envace.judge.checklist import required_held
from envace.judge.counts import judge_metrics
from envace.learn.advantage import Diagnostics
from envace.learn.sequences import TrainingRow
from envace.types import Episode, Role, Task

COUNTED = ("cut/", "failure/", "restart/", "anchor/")  # an episode's counters that are metrics as they are
GROUPS = ("groups", "lone", "constant", "empty_groups", "unscored_groups")


def step_metrics(
    episodes: Sequence[Episode], rows: Sequence[TrainingRow], diagnostics: Diagnostics
) -> dict[str, float]:
    """The metrics of a step that its episodes and rows hold; `rows` may hold padding rows, which count
    nowhere but in untrained_rows. A row's reward is the one it was trained on, an episode's the judged one;
    what was trained on has one value an episode, the mean over its trained rows, which a penalty may set
    apart."""
    rewards = [e.reward for e in episodes if e.reward is not None]
    trained: dict[str, list[float]] = defaultdict(list)
    for row in rows:
        if row.reward is not None and row.trained:
            trained[row.episode_id].append(row.reward)
    means = [float(np.mean(earned)) for earned in trained.values()]
    held = [g.agreement for e in episodes for g in e.generations if g.agreement is not None]
    counts = Counter({f"train/{name}": getattr(diagnostics, name) for name in GROUPS})
    counts["train/episodes"] = len(episodes)
    counts["train/untrained_rows"] = diagnostics.untrained
    counts["train/empty_generations"] = sum(not g.output_ids for e in episodes for g in e.generations)
    counts["train/real_calls"] = sum(len(e.real_calls) for e in episodes)
    counts["train/tokens"] = sum(row.trained for row in rows)
    for episode in episodes:
        counts[f"stop/{episode.stop.value}"] += 1
        counts.update({k: n for k, n in episode.counters.items() if k.startswith(COUNTED)})
    averaged: dict[str, Sequence[float]] = {
        "train/unscored": [e.unscored for e in episodes],
        "train/turns": [len(e.turn_rewards) for e in episodes],
        "train/seconds_episode": [e.seconds for e in episodes],
        "train/reward": rewards,
        "train/full_reward": [r >= 1 - 1e-9 for r in rewards],
        "train/trained_reward": means,
        "anchor/agreement": held,
    }
    found: dict[str, float] = {**counts}
    found |= {name: float(np.mean(values)) for name, values in averaged.items() if values}
    spread = {"train/reward_std": rewards, "train/trained_reward_std": means}
    found |= {name: float(np.std(values)) for name, values in spread.items() if values}
    found |= judge_metrics(v for e in episodes for v in e.verdicts)
    for role in Role:
        numbers = _role_metrics(role, episodes, rows, diagnostics)
        found |= {f"{role.value}/{name}": value for name, value in numbers.items()}
    return {name: float(value) for name, value in sorted(found.items())}


def _role_metrics(
    role: Role, episodes: Sequence[Episode], rows: Sequence[TrainingRow], found: Diagnostics
) -> dict[str, float]:
    """Reward over the episodes in which the role generated anything; the rest over its trained rows."""
    played = [e for e in episodes if any(g.role is role for g in e.generations)]
    rewards = [e.reward for e in played if e.reward is not None]
    tokens = [row.trained for row in rows if row.role is role and row.trained]
    metrics: dict[str, float] = {"rows": len(tokens), "tokens": sum(tokens)}
    if rewards:
        metrics["reward"] = float(np.mean(rewards))
    if tokens:
        metrics["response_tokens"] = float(np.mean(tokens))
    written = sum(e.counters.get(role.value, 0) for e in episodes)
    if read := sum(e.counters.get(f"prompt_{role.value}", 0) for e in episodes):
        metrics["prompt_tokens"] = read / written
    if role.value in found.roles:
        metrics.update({k: v for k, v in asdict(found.roles[role.value]).items() if k != "rows"})
    return metrics


def rehearsed_success(episodes: Sequence[Episode], tasks: Mapping[str, Task]) -> float | None:
    """Share of judged episodes in which every required item of every turn holds; None when none was judged.

    It is read off the verdicts alone, on whatever responses the transcript shows. `tasks` (by id) are those
    the judge was given. An item of a turn that was never reached does not hold.
    """
    judged = [required_held(tasks[e.task_id], e.verdicts) for e in episodes if e.unscored_reason is None]
    return sum(judged) / len(judged) if judged else None
