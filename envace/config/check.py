"""What the values of params.yaml must be to each other, each already typed and inside its range.

Values that cannot be meant together raise `ParamsError` with one sentence naming the key and the fix, before
hours of training. What needs other packages (prompt sets, options of harnesses) is checked in
`envace.params`."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from itertools import chain
from typing import get_args

from envace.config.evaluation import OWN
from envace.config.params import SFT, Params, split_run
from envace.config.values import Harness, nearest
from envace.errors import ParamsError

CLASS_PATH = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")  # module:Class
RUN = re.compile(r"[A-Za-z]\w*-(0|[1-9]\d*)", re.A)  # arm-seed
TTS_POINT = re.compile(r"plain-0|(parallel|sequential)-([1-9]|[1-5]\d|6[0-4])")
COMMIT = re.compile(r"[0-9a-f]{40}")
BASELINE = re.compile(r"[A-Za-z0-9][\w.-]*", re.A)
HARNESSES: tuple[str, ...] = get_args(Harness)
PLACEHOLDER = "0" * 40
"""Stands in a size for a commit that its user has to choose."""


def check_tts_served(p: Params) -> None:
    """Raises ParamsError where private rehearsals have no world to commit in; asked of files that set `tts`,
    since one of `data` alone serves the commands that read rows."""
    if p.tts.points and p.data.source == "hub" and not p.rollout.worlds:
        raise ParamsError(
            "tts.points commits in a task's executable world, which rows of data.source 'hub' do not bring: "
            "empty tts.points, or name the rows' world in rollout.worlds"
        )


def cross_check(p: Params) -> None:
    """Raises ParamsError on the first pair of values that cannot be meant together; a part may rely on those
    before it."""
    made = ["start", *p.train.runs, *(f"{SFT}-{seed}" for seed in p.sft.seeds)]
    parts = (
        _arms(p),
        _sources(p),
        _policies(p, made),
        _bench(p),
        _baselines(p, made),
        _dynamics(p),
        _single(p),
    )
    for complaint in chain(*parts):
        raise ParamsError(complaint)


def placeholders(p: Params) -> Iterator[str]:
    """What a size leaves to its user, a sentence each; nothing runs before all of it is filled in."""
    if p.data.source == "hub" and p.data.revision == PLACEHOLDER:
        yield f"data.revision is a placeholder: put the commit of {p.data.uri} that you use"
    if p.policy.kind == "hub" and p.policy.revision == PLACEHOLDER:
        yield f"policy.revision is a placeholder: put the commit of {p.policy.uri} that you use"
    bare = [name for name, base in p.bench.baselines.items() if base.revision == PLACEHOLDER]
    if bare:
        yield (
            f"bench.baselines.{bare[0]}.revision is a placeholder ({len(bare)} of its kind): "
            "`python -m envace.policy.hub fill` puts today's commits there"
        )


def harnesses_used(p: Params) -> set[str]:
    """The harnesses that a stage of these parameters runs."""
    return {*p.bench.benchmarks, *(b for b in p.dynamics.benchmarks if b in HARNESSES)}


def _arms(p: Params) -> Iterator[str]:
    known = ["envace", *p.arms]
    for run in p.train.runs:
        if not RUN.fullmatch(run):
            yield f"train.runs names {run!r}, must be an arm and a seed, such as envace-1"
        arm, _ = split_run(run)
        if arm not in known:
            yield (
                f"train.runs names {run!r}, but `arms` does not define {arm!r}; known arms: "
                f"{', '.join(known)}{nearest(arm, known)}"
            )
    if SFT in p.arms:
        yield f"arms.{SFT} cannot be an arm; sft.seeds trains policies of that name"
    for arm in ("", *p.arms):
        try:
            p.resolved_method(arm)
        except ParamsError as e:
            yield f"{f'arms.{arm}' if p.arms.get(arm) else 'method.override'}: {e}"


def _sources(p: Params) -> Iterator[str]:
    """The servers that an arm's source needs are named."""
    methods = [p.resolved_method(arm) for arm in p.arms_trained]
    used = {method.source for method in methods}
    simulator, mcp = p.rollout.simulator, p.rollout.mcp
    if "simulator" in used and not (simulator.base_url and simulator.model):
        yield (
            "method.source is 'simulator' but rollout.simulator.base_url or .model is empty; name the server "
            "that plays the world"
        )
    if "mcp" in used and not mcp.url:
        yield "method.source is 'mcp' but rollout.mcp.url is empty; name the server"
    if not mcp.url or not ("mcp" in used or any(method.anchor_every for method in methods)):
        return
    if mcp.transport != "stdio" and not re.match(r"https?://[^/\s]", mcp.url):
        yield f"rollout.mcp.url is {mcp.url!r}, must begin with http:// or https://"
    try:
        if mcp.transport == "stdio" and not shlex.split(mcp.url):
            yield "rollout.mcp.url is blank; name the command that starts the server"
    except ValueError as e:
        yield f"rollout.mcp.url is no command line: {e}"


def _policies(p: Params, made: list[str]) -> Iterator[str]:
    asked = {
        "eval.policies": p.eval.policies,
        "tts.policy": (p.tts.policy,),
        "fidelity.policies": p.fidelity.policies,
        "bench.policies": tuple(name for name in p.bench.policies if name not in p.bench.baselines),
    }
    for key, names in asked.items():
        for name in names:
            if name not in made:
                near = nearest(name, made)
                yield f"{key} names {name!r}, which no stage makes; policies here: {', '.join(made)}{near}"


def _bench(p: Params) -> Iterator[str]:
    """The two lists, the other roles, what each harness is asked for."""
    if bool(p.bench.policies) != bool(p.bench.benchmarks):
        lacking = "benchmarks" if p.bench.policies else "policies"
        yield f"bench.{lacking} is empty; name at least one, or empty both lists"
    used = harnesses_used(p)
    for key, users in (("user", ("tau2", "vita")), ("judge", ("vita",))):
        role, needs = getattr(p.bench, key), [b for b in users if b in used]
        if role.script and role.base_url:
            yield f"bench.{key} has both script and base_url; empty one of them"
        if needs and not (role.script or (role.base_url and role.model)):
            yield (
                f"bench.{key}.base_url and .model must name a server (or script its lines): {needs[0]} needs "
                f"one as its {key}"
            )
    ours = [n for n in p.bench.policies if n not in p.bench.baselines]
    ours += [b for b in p.dynamics.benchmarks if b in HARNESSES]
    # A policy that was trained to think is not itself when it may not, and the other way round.
    if ours and p.bench.thinking != p.rollout.enable_thinking and not p.bench.other_thinking:
        yield (
            f"bench.thinking is {str(p.bench.thinking).lower()} and rollout.enable_thinking is "
            f"{str(p.rollout.enable_thinking).lower()}: a policy trained here would be shown other prompts "
            "than in training; make them equal, or set bench.other_thinking to true if that is meant"
        )
    for name, options in p.bench.options.items():
        if name not in HARNESSES:
            yield f"bench.options names {name!r}{nearest(name, HARNESSES)}"
        for own, least in zip(OWN, (0, 1), strict=True):
            value = options.get(own, least)
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                yield f"bench.options.{name}.{own} is {value!r}, must be a whole number of at least {least}"


def _baselines(p: Params, made: list[str]) -> Iterator[str]:
    for name, base in p.bench.baselines.items():
        key = f"bench.baselines.{name}"
        if name in made:
            yield f"{key}: the name is made by another stage"
        if not BASELINE.fullmatch(name):
            yield f"{key}: the name must be letters, digits, dots, - and _"
        if bool(base.uri) == bool(base.base_url):
            yield f"{key} needs either uri (hub id) or base_url (a server)"
        if base.uri and not COMMIT.fullmatch(base.revision):
            yield (
                f"{key}.revision must be a 40-digit commit, not {base.revision!r}; "
                f"`python -m envace.policy.hub resolve {base.uri}` prints the newest"
            )
        if base.base_url and not base.model:
            yield f"{key}.model is empty; name the model the server offers"


def _dynamics(p: Params) -> Iterator[str]:
    """Trainings that are run, and steps whose weights they keep."""
    lists = {"runs": p.dynamics.runs, "steps": p.dynamics.steps, "benchmarks": p.dynamics.benchmarks}
    empty = [key for key, value in lists.items() if not value]
    if len(empty) in (1, 2):
        yield f"dynamics.{empty[0]} is empty; name at least one, or empty all three lists"
    for run in p.dynamics.runs:
        if run not in p.train.runs:
            yield f"dynamics.runs names {run!r}, which train.runs lacks{nearest(run, p.train.runs)}"
    last, every = p.train.steps, p.train.keep_every
    for step in p.dynamics.steps:
        if step > last:
            yield f"dynamics.steps names {step}, beyond train.steps ({last})"
        if step not in (0, last) and not (every and step % every == 0):
            yield (
                f"dynamics.steps names {step}, whose weights training does not keep: train.keep_every is "
                f"{every}; name its multiples, train.steps or 0 (the start), or change train.keep_every"
            )


def _single(p: Params) -> Iterator[str]:
    """Values of one section."""
    tiny, train, judge, engine, data = p.policy.tiny, p.train, p.judge, p.engine, p.data
    for point in p.tts.points:
        if not TTS_POINT.fullmatch(point):
            yield (
                f"tts.points names {point!r}, must be plain-0, or parallel or sequential with a number from "
                "1 to 64, such as parallel-2"
            )
    if p.tts.points and "plain-0" not in p.tts.points:
        yield "tts.points lacks plain-0, the control every other point is compared with"
    if p.policy.kind in ("hub", "local") and not p.policy.uri:
        yield f"policy.uri is empty; policy.kind {p.policy.kind!r} needs a hub id or a folder"
    if tiny.hidden % tiny.heads:
        yield f"policy.tiny.hidden ({tiny.hidden}) must be a multiple of policy.tiny.heads ({tiny.heads})"
    if train.keep_every % train.save_every:
        yield (
            f"train.keep_every ({train.keep_every}) must be a multiple of train.save_every "
            f"({train.save_every})"
        )
    if judge.kind != "rule" and not ((judge.base_url or judge.endpoints) and judge.model):
        yield (
            "judge.kind is 'llm' but judge.model is empty or no server is named (judge.base_url, "
            "judge.endpoints)"
        )
    if engine.rollout != "hf" and engine.device != "gpu":
        yield "engine.rollout 'vllm' needs engine.device 'gpu'; on CPU use 'hf'"
    if engine.device != "gpu" and p.rollout.top_p != 1.0:
        yield (
            f"rollout.top_p ({p.rollout.top_p:g}) must be 1 with engine.device 'cpu': the update takes the "
            "sampled log-probabilities, and those of a cut distribution give wrong ratios"
        )
    if engine.nodes != 1 and not engine.ray_address:
        yield f"engine.nodes is {engine.nodes} and engine.ray_address is empty: a Ray of our own has one node"
    if data.source != "desk" and not data.uri:
        yield f"data.uri is empty; data.source {data.source!r} needs a folder, an s3:// prefix or a hub id"
    for name, target in p.rollout.worlds.items():
        if not name or not CLASS_PATH.fullmatch(target):
            yield (
                f"rollout.worlds.{name} is {target!r}, must be the module and class of a world, such as "
                "my_shop:Shop"
            )
    if data.source == "hub" and not COMMIT.fullmatch(data.revision):
        yield f"data.revision must be a 40-digit commit for data.source 'hub', not {data.revision!r}"
