"""What the values of params.yaml must be to each other, each already typed and inside its range.

Values that cannot be meant together raise `ParamsError` with one sentence naming the key and the fix, before
hours of training. What needs other packages (prompt sets, options of harnesses) is checked in
`envace.params`."""

from __future__ import annotations

import re
import shlex
from typing import get_args

from envace.config.evaluation import OWN, BaselineParams
from envace.config.params import SFT, Params, split_run
from envace.config.training import McpParams
from envace.config.values import Harness, nearest
from envace.errors import ParamsError

CLASS_PATH = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")  # module:Class
RUN = re.compile(r"[A-Za-z]\w*-(0|[1-9]\d*)", re.A)  # arm-seed
TTS_POINT = re.compile(r"plain-0|(parallel|sequential)-([1-9]|[1-5]\d|6[0-4])")
COMMIT = re.compile(r"[0-9a-f]{40}")
BASELINE = re.compile(r"[A-Za-z0-9][\w.-]*", re.A)
HARNESSES: tuple[str, ...] = get_args(Harness)


def need(condition: object, complaint: str) -> None:
    if not condition:
        raise ParamsError(complaint)


def cross_check(p: Params) -> None:
    """Raises ParamsError on the first pair of values that cannot be meant together."""
    _check_arms(p)
    _check_sources(p)
    made = ["start", *p.train.runs, *(f"{SFT}-{seed}" for seed in p.sft.seeds)]
    asked = {
        "eval.policies": p.eval.policies,
        "tts.policy": (p.tts.policy,),
        "fidelity.policies": p.fidelity.policies,
    }
    asked["bench.policies"] = tuple(n for n in p.bench.policies if n not in p.bench.baselines)
    for key, names in asked.items():
        for name in names:
            near = nearest(name, made)
            need(
                name in made,
                f"{key} names {name!r}, which no stage makes; policies here: {', '.join(made)}{near}",
            )
    _check_bench(p, made)
    _check_dynamics(p)
    _check_single_sections(p)


def _check_arms(p: Params) -> None:
    known = ["envace", *p.arms]
    for run in p.train.runs:
        need(RUN.fullmatch(run), f"train.runs names {run!r}, must be an arm and a seed, such as envace-1")
        arm, _ = split_run(run)
        need(
            arm in known,
            f"train.runs names {run!r}, but `arms` does not define {arm!r}; known arms: {', '.join(known)}"
            f"{nearest(arm, known)}",
        )
    need(SFT not in p.arms, f"arms.{SFT} cannot be an arm; sft.seeds trains policies of that name")
    for arm in ("", *p.arms):
        try:
            p.resolved_method(arm)
        except ParamsError as e:
            raise ParamsError(f"{f'arms.{arm}' if p.arms.get(arm) else 'method.override'}: {e}") from None


def _check_sources(p: Params) -> None:
    """The servers that an arm's source needs are named."""
    methods = [p.resolved_method(arm) for arm in p.arms_trained]
    used = {method.source for method in methods}
    simulator, mcp = p.rollout.simulator, p.rollout.mcp
    need(
        "simulator" not in used or (simulator.base_url and simulator.model),
        "method.source is 'simulator' but rollout.simulator.base_url or .model is empty; name the server "
        "that plays "
        "the world",
    )
    need("mcp" not in used or mcp.url, "method.source is 'mcp' but rollout.mcp.url is empty; name the server")
    if mcp.url and ("mcp" in used or any(method.anchor_every for method in methods)):
        _check_mcp(mcp)


def _check_mcp(mcp: McpParams) -> None:
    if mcp.transport != "stdio":
        good = re.match(r"https?://[^/\s]", mcp.url)
        return need(good, f"rollout.mcp.url is {mcp.url!r}, must begin with http:// or https://")
    try:
        words = shlex.split(mcp.url)
    except ValueError as e:
        raise ParamsError(f"rollout.mcp.url is no command line: {e}") from None
    need(words, "rollout.mcp.url is blank; name the command that starts the server")


def _check_single_sections(p: Params) -> None:
    for point in p.tts.points:
        need(
            TTS_POINT.fullmatch(point),
            f"tts.points names {point!r}, must be plain-0, or parallel or sequential with a number from 1 to "
            "64, such "
            "as parallel-2",
        )
    need(
        "plain-0" in p.tts.points, "tts.points lacks plain-0, the control every other point is compared with"
    )
    need(
        p.policy.kind not in ("hub", "local") or p.policy.uri,
        f"policy.uri is empty; policy.kind {p.policy.kind!r} needs a hub id or a folder",
    )
    tiny, train, judge, engine, data = p.policy.tiny, p.train, p.judge, p.engine, p.data
    need(
        tiny.hidden % tiny.heads == 0,
        f"policy.tiny.hidden ({tiny.hidden}) must be a multiple of policy.tiny.heads ({tiny.heads})",
    )
    need(
        train.keep_every % train.save_every == 0,
        f"train.keep_every ({train.keep_every}) must be a multiple of train.save_every ({train.save_every})",
    )
    need(
        judge.kind == "rule" or ((judge.base_url or judge.endpoints) and judge.model),
        "judge.kind is 'llm' but judge.model is empty or no server is named (judge.base_url, "
        "judge.endpoints)",
    )
    need(
        engine.rollout == "hf" or engine.device == "gpu",
        "engine.rollout 'vllm' needs engine.device 'gpu'; on CPU use 'hf'",
    )
    need(
        engine.device == "gpu" or p.rollout.top_p == 1.0,
        f"rollout.top_p ({p.rollout.top_p:g}) must be 1 with engine.device 'cpu': the update takes the "
        "sampled log-probabilities, and those of a cut distribution give wrong ratios",
    )
    need(
        engine.nodes == 1 or engine.ray_address,
        f"engine.nodes is {engine.nodes} and engine.ray_address is empty: a Ray of our own has one node",
    )
    need(
        data.source == "desk" or data.uri,
        f"data.uri is empty; data.source {data.source!r} needs a folder, an s3:// prefix or a hub id",
    )
    for name, target in p.rollout.worlds.items():
        need(
            name and CLASS_PATH.fullmatch(target),
            f"rollout.worlds.{name} is {target!r}, must be the module and class of a world, such as "
            "my_shop:Shop",
        )
    need(
        data.source != "hub" or COMMIT.fullmatch(data.revision),
        f"data.revision must be a 40-digit commit for data.source 'hub', not {data.revision!r}",
    )


def _check_bench(p: Params, made: list[str]) -> None:
    """`bench`: baselines, the two lists, the other roles, what each harness is asked for."""
    for name, base in p.bench.baselines.items():
        _check_baseline(base, f"bench.baselines.{name}", name, made)
    lacking = "benchmarks" if p.bench.policies else "policies"
    need(
        bool(p.bench.policies) == bool(p.bench.benchmarks),
        f"bench.{lacking} is empty; name at least one, or empty both lists",
    )
    used = harnesses_used(p)
    for key, users in (("user", ("tau2", "vita")), ("judge", ("vita",))):
        role, needs = getattr(p.bench, key), [b for b in users if b in used]
        need(
            not (role.script and role.base_url),
            f"bench.{key} has both script and base_url; empty one of them",
        )
        need(
            not needs or role.script or (role.base_url and role.model),
            f"bench.{key}.base_url and .model must name a server (or script its lines): {''.join(needs[:1])} "
            "needs one "
            f"as its {key}",
        )
    ours = [n for n in p.bench.policies if n not in p.bench.baselines]
    ours += [b for b in p.dynamics.benchmarks if b in HARNESSES]
    # A policy that was trained to think is not itself when it may not, and the other way round.
    need(
        not ours or p.bench.thinking == p.rollout.enable_thinking or p.bench.other_thinking,
        f"bench.thinking is {str(p.bench.thinking).lower()} and rollout.enable_thinking is "
        f"{str(p.rollout.enable_thinking).lower()}: a policy trained here would be shown other prompts than "
        "in "
        "training; make them equal, or set bench.other_thinking to true if that is meant",
    )
    for name, options in p.bench.options.items():
        need(name in HARNESSES, f"bench.options names {name!r}{nearest(name, HARNESSES)}")
        for own, least in zip(OWN, (0, 1), strict=True):
            value = options.get(own, least)
            good = isinstance(value, int) and not isinstance(value, bool) and value >= least
            need(good, f"bench.options.{name}.{own} is {value!r}, must be a whole number of at least {least}")


def _check_baseline(base: BaselineParams, key: str, name: str, made: list[str]) -> None:
    need(name not in made, f"{key}: the name is made by another stage")
    need(BASELINE.fullmatch(name), f"{key}: the name must be letters, digits, dots, - and _")
    need(bool(base.uri) != bool(base.base_url), f"{key} needs either uri (hub id) or base_url (a server)")
    need(
        not base.uri or COMMIT.fullmatch(base.revision),
        f"{key}.revision must be a 40-digit commit, not {base.revision!r}; "
        f"`python -m envace.policy.hub resolve {base.uri}` prints the newest",
    )
    need(not base.base_url or base.model, f"{key}.model is empty; name the model the server offers")


def _check_dynamics(p: Params) -> None:
    """`dynamics`: trainings that are run, and steps whose weights they keep."""
    lists = {"runs": p.dynamics.runs, "steps": p.dynamics.steps, "benchmarks": p.dynamics.benchmarks}
    empty = [key for key, value in lists.items() if not value]
    need(
        len(empty) in (0, 3),
        f"dynamics.{''.join(empty[:1])} is empty; name at least one, or empty all three lists",
    )
    for run in p.dynamics.runs:
        near = nearest(run, p.train.runs)
        need(run in p.train.runs, f"dynamics.runs names {run!r}, which train.runs lacks{near}")
    for step in p.dynamics.steps:
        need(step <= p.train.steps, f"dynamics.steps names {step}, beyond train.steps ({p.train.steps})")
        need(
            step in (0, p.train.steps) or (p.train.keep_every and step % p.train.keep_every == 0),
            f"dynamics.steps names {step}, whose weights training does not keep: train.keep_every is "
            f"{p.train.keep_every}; name its multiples, train.steps or 0 (the start), or change "
            "train.keep_every",
        )


def harnesses_used(p: Params) -> set[str]:
    """The harnesses that a stage of these parameters runs."""
    return {*p.bench.benchmarks, *(b for b in p.dynamics.benchmarks if b in HARNESSES)}
