"""Which benchmarks run in an upstream harness, and where their adapters are.

Invariant: naming a benchmark imports nothing of it, so that checks of parameters and `list` stay light.
"""

from __future__ import annotations

from pkgutil import resolve_name

from envace.bench.harness.spec import Adapter, HarnessEnv, HarnessSpec
from envace.errors import UserError
from envace.types import JSON

ADAPTERS = {
    "bfcl": "envace.bench.bfcl.adapter:Bfcl",
    "tau2": "envace.bench.tau2.adapter:Tau2",
    "vita": "envace.bench.vita.adapter:Vita",
    "finmcp": "envace.bench.finmcp.adapter:FinMcp",
}
# Environments that `make harnesses` makes: name -> (benchmark, options of its adapter that ask for it).
HARNESSES: dict[str, tuple[str, dict[str, JSON]]] = {
    "bfcl": ("bfcl", {}),
    "tau2": ("tau2", {}),
    "tau2-fork": ("tau2", {"source": "fork"}),
    "vita": ("vita", {}),
    "finmcp": ("finmcp", {"mode": "live", "mcp_url": "http://localhost"}),  # built alike for every server
}
# Data beside the environment: harness -> the function that says what a built one lacks.
DATA = {"vita": "envace.bench.vita.tasks:lacking", "finmcp": "envace.bench.finmcp.data:lacking"}


def lacking(env: HarnessEnv) -> list[str]:
    """What a built harness cannot run for want of data, and how to get them, a sentence each."""
    return resolve_name(DATA[env.spec.name])(env) if env.spec.name in DATA else []


def adapter(name: str) -> Adapter:
    """The adapter of a benchmark. Raises UserError for a name that is not in `ADAPTERS`."""
    if name not in ADAPTERS:
        raise UserError(f"no benchmark {name!r} runs in an upstream harness; known are {', '.join(ADAPTERS)}")
    try:
        return resolve_name(ADAPTERS[name])()
    except ImportError as e:
        raise UserError(f"the adapter of {name} cannot be imported: {e}") from e


def check(name: str, options: dict[str, JSON]) -> None:
    """Raises UserError for a benchmark that cannot be asked for with these options, subsets among them."""
    found, rest = adapter(name), dict(options)
    asked = rest.pop("subsets", None) or found.default
    if not isinstance(asked, list | tuple) or not all(isinstance(s, str) for s in asked):
        raise UserError(f"subsets is {asked!r}, must be a list of names")
    if unknown := [s for s in asked if s not in found.subsets]:
        raise UserError(f"{name} has no subset {unknown[0]!r}; known are {', '.join(found.subsets)}")
    if len(set(asked)) < len(asked):
        raise UserError(f"subsets names one twice: {', '.join(asked)}")
    found.spec(rest)


def harness(name: str, **options: JSON) -> HarnessSpec:
    """The pinned harness of that name; `options` are added to its own. UserError for an unknown name."""
    if name not in HARNESSES:
        raise UserError(f"no harness is called {name!r}; known are {', '.join(HARNESSES)}")
    benchmark, own = HARNESSES[name]
    return adapter(benchmark).spec(own | options)
