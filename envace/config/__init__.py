"""params.yaml as typed records, and the method's switches: what every other package imports of them."""

from envace.config.method import PRESETS, Method, resolve_method
from envace.config.params import flatten, load, parse, to_dict
from envace.config.sections import (
    SFT,
    DataParams,
    EngineParams,
    JudgeParams,
    McpParams,
    Params,
    PolicyParams,
    RolloutParams,
    SFTParams,
    SimulatorParams,
    TinyParams,
    TTSParams,
    split_run,
)
from envace.config.sections_bench import BaselineParams, BenchParams, RoleParams

__all__ = [
    "PRESETS",
    "SFT",
    "BaselineParams",
    "BenchParams",
    "DataParams",
    "EngineParams",
    "JudgeParams",
    "McpParams",
    "Method",
    "Params",
    "PolicyParams",
    "RoleParams",
    "RolloutParams",
    "SFTParams",
    "SimulatorParams",
    "TTSParams",
    "TinyParams",
    "flatten",
    "load",
    "parse",
    "resolve_method",
    "split_run",
    "to_dict",
]
