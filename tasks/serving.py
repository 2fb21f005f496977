"""Policies, ready to be asked.

Flows in: the name of a model folder. Flows out: a policy served in this process, and its card.
Invariant: nothing is served that has no card (an unfinished folder has none).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from envace.chat.append_only import described, shape_of
from envace.chat.probes import check_same_prompts
from envace.chat.renderer import HFRenderer
from envace.policy.card import read_card
from envace.policy.local import LocalPolicy
from envace.types import PolicyRef
from tasks.run import Run


@dataclass(slots=True)
class Served:
    """A policy with what evaluations need beside it."""

    policy: LocalPolicy
    renderer: HFRenderer
    ref: PolicyRef
    played_as: str = ""
    """The training whose way of reading text counts; empty: the policy's own name."""

    def __post_init__(self) -> None:
        self.played_as = self.played_as or self.ref.name


def open_policy(run: Run, name: str, folder: Path | None = None, played_as: str = "") -> Served:
    """Load `models/<name>`, or what `folder` holds; `played_as` is the training whose step these weights are.

    Raises EnvironmentUnready or DataError when it is not a finished folder, ParamsError when its prompts
    would not be those of training.
    """
    folder, params, start = folder or run.path("models", name), run.params, run.path("models/start")
    ref, thinking = read_card(folder), params.rollout.enable_thinking
    if folder != start and start.is_dir():  # training shows prompts as its template writes them; so must this
        shown_here = HFRenderer.of(folder, thinking)
        check_same_prompts(HFRenderer.of(start, thinking), shown_here.render, name)
    policy = LocalPolicy(
        folder, concurrency=params.engine.concurrency, enable_thinking=thinking, seed=params.seed
    )
    served = Served(policy=policy, renderer=policy.renderer, ref=ref, played_as=played_as)
    method = params.played_method(served.played_as)
    run.note(described(shape_of(policy.renderer), method.old_thoughts))
    return served
