"""The whole of params.yaml as frozen pydantic dataclasses.

The sections stand in `training.py` and `evaluation.py`; `load.py` reads the file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace
from typing import TYPE_CHECKING

from pydantic import JsonValue, TypeAdapter
from pydantic.dataclasses import dataclass

from envace.config import evaluation as ev
from envace.config import training as tr
from envace.config.method import READING, Method, resolve_method
from envace.config.values import CONFIG, Free, Table, Whole

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

SFT = "sft"
"""How policies of continued supervised training are named: sft-<seed>."""
ARMS: dict[str, dict[str, JsonValue]] = {
    "standard_grpo": {"source": "environment", "roles": ["act"], "baseline": "trajectory"},
    "no_grounding": {"grounding": "drop"},
    "zero_reward": {"reward": "zero"},
    "shuffled_reward": {"reward": "shuffled"},
}


@dataclass(frozen=True, kw_only=True, config=CONFIG)
class Params:
    """The whole file. Frozen; `dataclasses.replace` checks again."""

    size: str = "laptop"
    seed: Whole = 1
    method: tr.MethodParams = tr.MethodParams()
    data: tr.DataParams = tr.DataParams()
    desk: tr.DeskParams = tr.DeskParams()
    policy: tr.PolicyParams = tr.PolicyParams()
    rollout: tr.RolloutParams = tr.RolloutParams()
    judge: tr.JudgeParams = tr.JudgeParams()
    train: tr.TrainParams = tr.TrainParams()
    arms: Table[Free] = field(default_factory=lambda: {name: dict(arm) for name, arm in ARMS.items()})
    """Named sets of method switches to train beside each other, on top of `method`, or of the preset they
    name."""
    sft: tr.SFTParams = tr.SFTParams()
    engine: tr.EngineParams = tr.EngineParams()
    eval: ev.EvalParams = ev.EvalParams()
    tts: ev.TTSParams = ev.TTSParams()
    fidelity: ev.FidelityParams = ev.FidelityParams()
    bench: ev.BenchParams = ev.BenchParams()
    dynamics: ev.DynamicsParams = ev.DynamicsParams()
    report: ev.ReportParams = ev.ReportParams()
    prefect: ev.PrefectParams = ev.PrefectParams()
    mlflow: ev.MlflowParams = ev.MlflowParams()

    @property
    def arms_trained(self) -> tuple[str, ...]:
        """The arms of `train.runs`, each once."""
        return tuple(dict.fromkeys(split_run(run)[0] for run in self.train.runs))

    def resolved_method(self, arm: str = "") -> Method:
        """The method table of an arm: preset, then `method.override`, then the arm's own overrides.

        An arm that names a `preset` starts from that one afresh, without `method.override`.
        """
        own = dict(self.arms.get(arm, {}))
        if "preset" in own:
            return resolve_method(own.pop("preset"), own)
        return resolve_method(self.method.preset, {**self.method.override, **own})

    def played_method(self, policy: str) -> Method:
        """The method a policy is evaluated under: `method`, but its text read and shown back as its own arm
        trained it.

        All policies meet the same rules and caps, so that their scores compare.
        """
        arm = split_run(policy)[0] if policy in self.train.runs else ""
        own = self.resolved_method(arm)
        return replace(self.resolved_method(), **{key: getattr(own, key) for key in READING})


def split_run(name: str) -> tuple[str, int]:
    """The arm and the seed of a training: `no_grounding-2` -> ("no_grounding", 2)."""
    arm, _, seed = name.rpartition("-")
    return arm, int(seed)


def to_dict(section: DataclassInstance) -> dict[str, JsonValue]:
    """Params (or a section) as plain data, tuples as lists."""
    plain: dict[str, JsonValue] = TypeAdapter(type(section)).dump_python(section, mode="json")
    return plain


def flatten(data: Mapping[str, JsonValue], prefix: str = "") -> dict[str, JsonValue]:
    """Nested mapping -> dotted keys, as MLflow parameters: {"train.lr": 1e-4, ...}."""
    flat: dict[str, JsonValue] = {}
    for key, value in data.items():
        name = f"{prefix}{key}"
        if isinstance(value, dict) and value:
            flat.update(flatten(value, name + "."))
        else:
            flat[name] = ",".join(map(str, value)) if isinstance(value, list) else value
    return flat
