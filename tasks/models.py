"""The start policy, its supervised controls.

Flows in: parameters, weights. Flows out: `models/<name>/` with a card.
Invariant: a folder appears whole; its card is written last and says where the weights are from.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

from prefect import task
from prefect.cache_policies import NO_CACHE

from envace.config import SFT
from envace.errors import EnvironmentUnready, UserError
from envace.io.files import publish
from envace.policy.card import BUNDLED, write_card
from envace.types import PolicyRef, replace
from tasks.run import Run

SHOWN_EVERY = 50  # supervised updates


@task(cache_policy=NO_CACHE)
def make_start(run: Run, out: Path) -> PolicyRef:
    """The policy training starts from, by `policy.kind`: trained here, or brought from a folder or a hub."""
    from envace.warmstart.training import build_start

    p = run.params.policy
    with publish(out) as scratch:
        if p.kind == "tiny":
            ref = build_start(run.params, scratch, progress=_shows_updates(run))
        else:
            _bring(_source(run), scratch, link=p.kind != "bundled")  # what is made of ours must not reach it
            ref = PolicyRef(kind=p.kind, uri="", revision=p.revision, name="start")
        return write_card(scratch, replace(ref, uri=_relative(run, out)))


def _source(run: Run) -> Path:
    """The folder of the start policy that is not trained here."""
    from envace.policy.hub import fetched

    p = run.params.policy
    if p.kind == "bundled":
        run.say("start policy from the folder that comes with the project (make warmstart rebuilds it)")
        return BUNDLED
    source = fetched(p.uri, p.revision) if p.kind == "hub" else Path(p.uri).expanduser()
    if p.kind == "local" and not (source / "config.json").is_file():
        raise EnvironmentUnready(f"policy.uri {source} holds no model (no config.json)")
    run.say(f"start policy from {p.uri if p.kind == 'hub' else source}")
    return source


def _bring(source: Path, folder: Path, link: bool) -> None:
    """All files but a card, which speaks of another folder. Links cost no space; another file system gets
    copies.
    """
    for item in sorted(p for p in source.iterdir() if p.is_file() and p.name != "card.json"):
        target = folder / item.name
        try:
            if link:
                os.link(item.resolve(), target)
                continue
        except OSError:
            pass  # copied instead
        shutil.copy2(item, target)


def _shows_updates(run: Run) -> Callable[[Mapping[str, float]], None]:
    def show(event: Mapping[str, float]) -> None:
        step, steps = int(event["step"]), int(event["steps"])
        run.metrics({f"warm/{k}": v for k, v in event.items() if k not in ("step", "steps")}, step)
        if step % SHOWN_EVERY == 0 or step == steps:
            run.say(
                f"supervised update {step} of {steps}, loss {event['loss']:.3f}, {event['seconds']:.0f} s"
            )

    return show


@task(cache_policy=NO_CACHE)
def make_supervised(run: Run, seed: int, out: Path) -> PolicyRef:
    """The start policy after `sft.updates` more supervised updates. Raises UserError for a policy that has
    none.
    """
    from envace.warmstart.training import continue_start

    kind, start = run.params.policy.kind, run.path("models/start")
    if kind not in ("bundled", "tiny"):
        raise UserError(
            f"sft.seeds asks for supervised training, but policy.kind is {kind!r}: expert texts "
            "exist for the desk's own policies (bundled, tiny); set sft.seeds to []"
        )
    with publish(out) as scratch:
        ref = continue_start(run.params, start, scratch, seed, progress=_shows_updates(run))
        return write_card(scratch, replace(ref, uri=_relative(run, out), name=f"{SFT}-{seed}"))


def _relative(run: Run, path: Path) -> str:
    return path.relative_to(run.root).as_posix()
