"""What the values of params.yaml must be to each other.

Flows in: `Params`, each value already typed and inside its range. Flows out: nothing.
Invariant: values that cannot be meant together raise `ParamsError` with one sentence naming the key and the fix.
"""

from __future__ import annotations

import re
import shlex

from envace.config.check_bench import check_bench, check_dynamics
from envace.config.read import nearest
from envace.config.sections import SFT, Params, split_run
from envace.errors import DataError, ParamsError

CLASS_PATH = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")  # module:Class
RUN = re.compile(r"[A-Za-z]\w*-(0|[1-9]\d*)", re.A)  # arm-seed
TTS_POINT = re.compile(r"plain-0|(parallel|sequential)-([1-9]|[1-5]\d|6[0-4])")


def cross_check(p: Params, where: str) -> None:
    for run in p.train.runs:
        if not RUN.fullmatch(run):
            raise ParamsError(
                f"{where}: train.runs names {run!r}, must be an arm and a seed, such as envace-1"
            )
        arm, _ = split_run(run)
        if arm not in p.arms and arm != "envace":
            known = ["envace", *p.arms]
            raise ParamsError(
                f"{where}: train.runs names {run!r}, but `arms` does not define {arm!r}; known arms: "
                f"{', '.join(known)}{nearest(arm, known)}"
            )
    if SFT in p.arms:
        raise ParamsError(f"{where}: arms.{SFT} cannot be an arm; sft.seeds trains policies of that name")
    for arm in ("", *p.arms):
        try:
            p.resolved_method(arm)
        except ParamsError as e:
            raise ParamsError(
                f"{where}: {f'arms.{arm}' if p.arms.get(arm) else 'method.override'}: {e}"
            ) from None
    _check_sources(p, where)
    known = ["start", *p.train.runs, *(f"{SFT}-{s}" for s in p.sft.seeds)]
    for key, names in (
        ("eval.policies", p.eval.policies),
        ("tts.policy", (p.tts.policy,)),
        ("fidelity.policies", p.fidelity.policies),
        ("bench.policies", tuple(n for n in p.bench.policies if n not in p.bench.baselines)),
    ):
        for name in names:
            if name not in known:
                raise ParamsError(
                    f"{where}: {key} names {name!r}, which no stage makes; policies here: {', '.join(known)}{nearest(name, known)}"
                )
    check_bench(p, where, known)
    check_dynamics(p, where)
    for point in p.tts.points:
        if not TTS_POINT.fullmatch(point):
            raise ParamsError(
                f"{where}: tts.points names {point!r}, must be plain-0, or parallel or sequential with a number from 1 to 64, such as parallel-2"
            )
    if "plain-0" not in p.tts.points:
        raise ParamsError(
            f"{where}: tts.points lacks plain-0, the control every other point is compared with"
        )
    if p.policy.kind in ("hub", "local") and not p.policy.uri:
        raise ParamsError(
            f"{where}: policy.uri is empty; policy.kind {p.policy.kind!r} needs a hub id or a folder"
        )
    if p.policy.tiny.hidden % p.policy.tiny.heads:
        raise ParamsError(
            f"{where}: policy.tiny.hidden ({p.policy.tiny.hidden}) must be a multiple of policy.tiny.heads ({p.policy.tiny.heads})"
        )
    if p.train.keep_every % p.train.save_every:
        raise ParamsError(
            f"{where}: train.keep_every ({p.train.keep_every}) must be a multiple of train.save_every ({p.train.save_every})"
        )
    if p.judge.kind == "llm" and not ((p.judge.base_url or p.judge.endpoints) and p.judge.model):
        raise ParamsError(
            f"{where}: judge.kind is 'llm' but judge.model is empty or no server is named (judge.base_url, judge.endpoints)"
        )
    if p.engine.rollout == "vllm" and p.engine.device == "cpu":
        raise ParamsError(f"{where}: engine.rollout 'vllm' needs engine.device 'gpu'; on CPU use 'hf'")
    if p.data.source != "desk" and not p.data.uri:
        raise ParamsError(
            f"{where}: data.uri is empty; data.source {p.data.source!r} needs a folder, an s3:// prefix or a hub id"
        )
    _check_prompt_set(p.rollout.prompt_set, where)
    for name, target in p.rollout.worlds.items():
        if not name or not CLASS_PATH.fullmatch(target):
            raise ParamsError(
                f"{where}: rollout.worlds.{name} is {target!r}, must be the module and class of a world, "
                "such as my_shop:Shop"
            )
    if p.data.source == "hub" and not re.fullmatch(r"[0-9a-f]{40}", p.data.revision):
        raise ParamsError(
            f"{where}: data.revision must be a 40-digit commit for data.source 'hub', not {p.data.revision!r}"
        )


def _check_prompt_set(name: str, where: str) -> None:
    """A folder of envace/prompts, which stages depend on, that can be used as it is."""
    from envace.rollout import prompts

    known = sorted(folder.name for folder in prompts.ROOT.iterdir() if folder.is_dir())
    if name not in known:
        raise ParamsError(
            f"{where}: rollout.prompt_set is {name!r}, must be a folder of envace/prompts: {', '.join(known)}"
            f"{nearest(name, known)} (for a set of your own, copy one of them there)"
        )
    try:
        prompts.load_prompt_set(name)
    except DataError as e:
        raise ParamsError(f"{where}: rollout.prompt_set: {e}") from None


def _check_sources(p: Params, where: str) -> None:
    """The servers that an arm's source needs are named."""
    methods = [p.resolved_method(arm) for arm in p.arms_trained]
    used = {method.source for method in methods}
    simulator, mcp = p.rollout.simulator, p.rollout.mcp
    if "simulator" in used and not (simulator.base_url and simulator.model):
        raise ParamsError(
            f"{where}: method.source is 'simulator' but rollout.simulator.base_url or .model is empty; name the "
            "server that plays the world"
        )
    if "mcp" in used and not mcp.url:
        raise ParamsError(f"{where}: method.source is 'mcp' but rollout.mcp.url is empty; name the server")
    if not mcp.url or not ("mcp" in used or any(method.anchor_every for method in methods)):
        return  # nobody asks it
    if mcp.transport == "stdio":
        try:
            empty = not shlex.split(mcp.url)
        except ValueError as e:
            raise ParamsError(f"{where}: rollout.mcp.url is no command line: {e}") from None
        if empty:
            raise ParamsError(f"{where}: rollout.mcp.url is blank; name the command that starts the server")
    elif not re.match(r"https?://[^/\s]", mcp.url):
        raise ParamsError(f"{where}: rollout.mcp.url is {mcp.url!r}, must begin with http:// or https://")
