"""Which benchmarks run in an upstream harness, and where their adapters are.

Flows in: a name. Flows out: the adapter, imported only when it is asked for.
Invariant: naming a benchmark imports nothing of it, so that `params.py` and `list` stay light.
"""

from __future__ import annotations

from importlib import import_module

from envace.bench.harness.spec import Adapter, HarnessSpec
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


def adapter(name: str) -> Adapter:
    """The adapter of a benchmark. Raises UserError for a name that is not in `ADAPTERS`."""
    if name not in ADAPTERS:
        raise UserError(f"no benchmark {name!r} runs in an upstream harness; known are {', '.join(ADAPTERS)}")
    module, _, cls = ADAPTERS[name].partition(":")
    return getattr(import_module(module), cls)()


def harness(name: str, **options: JSON) -> HarnessSpec:
    """The pinned harness of that name; `options` are added to its own. Raises UserError for an unknown name."""
    if name not in HARNESSES:
        raise UserError(f"no harness is called {name!r}; known are {', '.join(HARNESSES)}")
    benchmark, own = HARNESSES[name]
    return adapter(benchmark).spec(own | options)
