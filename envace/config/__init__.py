"""params.yaml as typed records, and the method's switches: what every other package imports of them."""

from envace.config.evaluation import BaselineParams, BenchParams, RoleParams, TTSParams
from envace.config.load import load, parse
from envace.config.method import PRESETS, READING, Method, resolve_method
from envace.config.params import SFT, Params, flatten, split_run, to_dict
from envace.config.training import (
    DataParams,
    EngineParams,
    JudgeParams,
    McpParams,
    PolicyParams,
    RolloutParams,
    SFTParams,
    SimulatorParams,
    TinyParams,
)

__all__ = [
    "PRESETS",
    "READING",
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
