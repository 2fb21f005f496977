"""What the values of `bench` and `dynamics` must be to each other and to what is trained.

Flows in: `Params`, each value already typed and inside its range. Flows out: nothing.
Invariant: values that no stage could use raise `ParamsError` with one sentence naming the key and the fix, before
hours of training; a harness is asked for its options and subsets, and none is started.
"""

from __future__ import annotations

import re
from typing import Any, get_args

from envace.config.ranges import Harness
from envace.config.read import nearest
from envace.config.sections import Params
from envace.config.sections_bench import OWN, BaselineParams
from envace.errors import ParamsError, UserError

BASELINE = re.compile(r"[A-Za-z0-9][\w.-]*", re.A)
HARNESSES = get_args(Harness)


def check_bench(p: Params, where: str, made: list[str]) -> None:
    """`bench`: baselines, the two lists, the other roles, what each harness is asked for."""
    for name, base in p.bench.baselines.items():
        _check_baseline(base, f"{where}: bench.baselines.{name}", name, made)
    if bool(p.bench.policies) != bool(p.bench.benchmarks):
        lacking = "benchmarks" if p.bench.policies else "policies"
        raise ParamsError(f"{where}: bench.{lacking} is empty; name at least one, or empty both lists")
    used = {*p.bench.benchmarks, *(b for b in p.dynamics.benchmarks if b in HARNESSES)}
    _check_roles(p, where, used)
    _check_thinking(p, where)
    for name, options in p.bench.options.items():
        if name not in HARNESSES:
            raise ParamsError(f"{where}: bench.options names {name!r}{nearest(name, list(HARNESSES))}")
        _check_options(f"{where}: bench.options.{name}", name, options or {}, name in used)


def _check_baseline(base: BaselineParams, key: str, name: str, made: list[str]) -> None:
    if name in made or not BASELINE.fullmatch(name):
        cause = "is made by another stage" if name in made else "must be letters, digits, dots, - and _"
        raise ParamsError(f"{key}: the name {cause}")
    if bool(base.uri) == bool(base.base_url):
        raise ParamsError(f"{key} needs either uri (hub id) or base_url (a server)")
    if base.uri and not re.fullmatch(r"[0-9a-f]{40}", base.revision):
        raise ParamsError(
            f"{key}.revision must be a 40-digit commit, not {base.revision!r}; "
            f"`python -m envace.policy.hub resolve {base.uri}` prints the newest"
        )
    if base.base_url and not base.model:
        raise ParamsError(f"{key}.model is empty; name the model the server offers")


def _check_roles(p: Params, where: str, used: set[str]) -> None:
    for key, users in (("user", ("tau2", "vita")), ("judge", ("vita",))):
        needs = [b for b in users if b in used]
        role = getattr(p.bench, key)
        if role.script and role.base_url:
            raise ParamsError(f"{where}: bench.{key} has both script and base_url; empty one of them")
        if needs and not (role.script or (role.base_url and role.model)):
            raise ParamsError(
                f"{where}: bench.{key}.base_url and .model must name a server (or script its lines): {needs[0]} needs "
                f"one as its {key}"
            )


def _check_thinking(p: Params, where: str) -> None:
    """A policy that was trained to think is not itself when it may not, and the other way round."""
    ours = [n for n in p.bench.policies if n not in p.bench.baselines] or any(
        b in HARNESSES for b in p.dynamics.benchmarks
    )
    if ours and p.bench.thinking != p.rollout.enable_thinking and not p.bench.other_thinking:
        raise ParamsError(
            f"{where}: bench.thinking is {str(p.bench.thinking).lower()} and rollout.enable_thinking is "
            f"{str(p.rollout.enable_thinking).lower()}: a policy trained here would be shown other prompts than in "
            "training; make them equal, or set bench.other_thinking to true if that is meant"
        )


def _check_options(key: str, name: str, options: dict[str, Any], used: bool) -> None:
    """limit and trials are numbers; where the benchmark is run, its adapter knows the rest."""
    for own, least in zip(OWN, (0, 1)):
        value = options.get(own, least)
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise ParamsError(f"{key}.{own} is {value!r}, must be a whole number of at least {least}")
    if not used:
        return
    from envace.bench.harness.registry import check

    try:
        check(name, {k: v for k, v in options.items() if k not in OWN})
    except UserError as e:
        raise ParamsError(f"{key}: {e}") from None


def check_dynamics(p: Params, where: str) -> None:
    """`dynamics`: trainings that are run, and steps whose weights they keep."""
    d = p.dynamics
    lists = {"runs": d.runs, "steps": d.steps, "benchmarks": d.benchmarks}
    if any(lists.values()) and (empty := [key for key, value in lists.items() if not value]):
        raise ParamsError(
            f"{where}: dynamics.{empty[0]} is empty; name at least one, or empty all three lists"
        )
    for run in d.runs:
        if run not in p.train.runs:
            raise ParamsError(
                f"{where}: dynamics.runs names {run!r}, which train.runs lacks{nearest(run, list(p.train.runs))}"
            )
    for step in d.steps:
        if step > p.train.steps:
            raise ParamsError(f"{where}: dynamics.steps names {step}, beyond train.steps ({p.train.steps})")
        if not is_kept(p, step):
            raise ParamsError(
                f"{where}: dynamics.steps names {step}, whose weights training does not keep: train.keep_every is "
                f"{p.train.keep_every}; name its multiples, train.steps or 0 (the start), or change train.keep_every"
            )


def is_kept(p: Params, step: int) -> bool:
    """Whether a finished training still has the weights of this step; step 0 is the start policy."""
    return step in (0, p.train.steps) or bool(p.train.keep_every) and step % p.train.keep_every == 0
