"""What two runs must share to be compared: the labels that every benchmark writes under the same names.

Invariant: `user`, `judge`, `thinking` and `data` stand in every score, "none" where nobody plays the part; a
score that lacks one of them came from elsewhere and is comparable with nothing.
"""

from __future__ import annotations

from collections.abc import Mapping

from envace.bench.harness.planning import thinking_of
from envace.bench.harness.spec import EvalRequest, HarnessEnv
from envace.bench.summary import Identity
from envace.types import ScoreRecord

NONE, UNKNOWN = "none", "?"
SHARED = ("user", "judge", "thinking", "data")
# labels of one benchmark that its scores cannot be read without either
OWN = ("language", "seeds", "mode", "tools", "tau2_source", "tau2_split", "tau2_basis", "tau2_retrieval")
DIGITS = 16  # of a data hash, shown


def labels(
    request: EvalRequest, data_hash: str, *, user: bool = False, judge: bool = False
) -> dict[str, str]:
    """`user`, `judge`: whether the benchmark asks one."""
    played, parts = request.roles.filled(), {"user": user, "judge": judge}
    names = {role: played[role].model if asks and role in played else NONE for role, asks in parts.items()}
    return names | {"thinking": thinking_of(request), "data": data_hash[:DIGITS]}


def identity_of(
    env: HarnessEnv, request: EvalRequest, data_hash: str, said: Identity, versions: Mapping[str, str]
) -> Identity:
    """What stands in every score; `said` by the caller wins, its versions come before `versions`."""
    known: Identity = {"harness": env.identity, "variant": request.variant}
    known |= {"seed": request.seed, "data_hash": data_hash}
    return {**known, **said, "versions": {**said.get("versions", {}), **versions}}


def setup(score: ScoreRecord) -> dict[str, str]:
    """All that must be equal for two scores of one subset to be of the same thing; "?" is not recorded."""
    own = {k: score.versions[k] for k in OWN if k in score.versions}
    shared = {k: score.versions.get(k, UNKNOWN) for k in SHARED}
    if not score.data_hash:
        shared["data"] = UNKNOWN
    return {"harness": score.harness or UNKNOWN} | shared | own


def differing(a: Mapping[str, str], b: Mapping[str, str]) -> list[str]:
    """Names of what is not the same in two setups, or not known of one: ["judge"]."""
    return [k for k in dict.fromkeys([*a, *b]) if a.get(k) != b.get(k) or UNKNOWN in (a.get(k), b.get(k))]
