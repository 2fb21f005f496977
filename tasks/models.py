"""The start policy and its supervised controls.

Flows in: parameters, weights. Flows out: `models/<name>/` with a card.
Invariant: a folder appears whole; its card is written last and says where the weights are from.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from prefect import task
from prefect.cache_policies import NO_CACHE

from envace.config import SFT
from envace.errors import EnvironmentUnready, UserError
from envace.io.files import publish
from envace.policy.card import write_card
from envace.types import PolicyRef, replace
from tasks.run import Run

SHOWN_EVERY = 50  # supervised updates
ASKED = ("context", "tool_parser", "reasoning_parser", "thinking", "extra_body")  # a baseline's own settings


@task(cache_policy=NO_CACHE)
def make_start(run: Run, out: Path) -> PolicyRef:
    """The policy training starts from, by `policy.kind`."""
    with publish(out) as scratch:
        ref = STARTS[run.params.policy.kind](run, scratch)
        return write_card(scratch, replace(ref, uri=_relative(run, out)))


def _tiny(run: Run, scratch: Path) -> PolicyRef:
    from envace.warmstart.training import build_start

    return build_start(run.params, scratch, progress=lambda event: _show_update(run, event))


def _bundled(run: Run, scratch: Path) -> PolicyRef:
    """The desk's own start policy. Copied, never linked: what is made of it must not reach the repository."""
    from envace.policy.card import BUNDLED

    _bring(BUNDLED.iterdir(), scratch, link=False)
    run.say("start policy from the folder that comes with the project (make warmstart rebuilds it)")
    return _start_ref(run, "bundled")


def _local(run: Run, scratch: Path) -> PolicyRef:
    source = Path(run.params.policy.uri).expanduser()
    if not (source / "config.json").is_file():
        raise EnvironmentUnready(f"policy.uri {source} holds no model (no config.json)")
    _bring(source.iterdir(), scratch)
    run.say(f"start policy from {source}")
    return _start_ref(run, "local")


def _hub(run: Run, scratch: Path) -> PolicyRef:
    from envace.policy.hub import fetched

    p = run.params.policy
    _bring(fetched(p.uri, p.revision).iterdir(), scratch)
    run.say(f"start policy from {p.uri}")
    return _start_ref(run, "hub")


STARTS: dict[str, Callable[[Run, Path], PolicyRef]] = {
    "bundled": _bundled,
    "tiny": _tiny,
    "local": _local,
    "hub": _hub,
}


def _start_ref(run: Run, kind: str) -> PolicyRef:
    return PolicyRef(kind=kind, uri="", revision=run.params.policy.revision, name="start")


def _bring(files: Iterable[Path], folder: Path, link: bool = True) -> None:
    """All files but a card, which speaks of another folder. Links cost no space; another file system gets
    copies.
    """
    for item in sorted(p for p in files if p.is_file() and p.name != "card.json"):
        target = folder / item.name
        try:
            if link:
                os.link(item.resolve(), target)
                continue
        except OSError:
            pass  # copied instead
        shutil.copy2(item, target)


def _show_update(run: Run, event: Mapping[str, float]) -> None:
    step, steps = int(event["step"]), int(event["steps"])
    run.metrics({f"warm/{k}": v for k, v in event.items() if k not in ("step", "steps")}, step)
    if step % SHOWN_EVERY == 0 or step == steps:
        run.say(f"supervised update {step} of {steps}, loss {event['loss']:.3f}, {event['seconds']:.0f} s")


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
        ref = continue_start(
            run.params, start, scratch, seed, progress=lambda event: _show_update(run, event)
        )
        return write_card(scratch, replace(ref, uri=_relative(run, out), name=f"{SFT}-{seed}"))


def _relative(run: Run, path: Path) -> str:
    return path.relative_to(run.root).as_posix()
