"""Which VitaBench this is: the pinned revision, its task files, and the tasks in them.

Flows in: options; a built environment. Flows out: the spec of the harness, task ids, what is missing and why.
Invariant: a task file is used only when its git blob id is the one the pinned revision lists, so that a copy of the
repository without its large files says which domain cannot run instead of running another.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from envace.bench.harness.spec import HarnessEnv, HarnessSpec
from envace.errors import DataError, UserError
from envace.types import JSON

REVISION = "96f3b8529d8ea38d330de2405af7e32a1454f6cd"
ADDRESS = "https://github.com/meituan-longcat/vitabench"
LANGUAGES = {"chinese": "tasks.json", "english": "tasks_en.json"}
# subset -> (what the harness calls it, folder of its tasks)
DOMAINS = {
    "delivery": ("delivery", "delivery"),
    "instore": ("instore", "instore"),
    "ota": ("ota", "ota"),
    "cross": ("delivery,instore,ota", "cross_domain"),
}
FOLDER = "data/vita/domains"
# git blob ids of the task files at REVISION
BLOBS = {
    "cross_domain/tasks.json": "62484752dacff51d0b5cf261d489608e84f5e957",
    "cross_domain/tasks_en.json": "440ff4a5db00847122aae5b18690b93408473bd9",
    "delivery/tasks.json": "4b8f2843f2a37c00b65d66dfc3ce1d60ef1c7df1",
    "delivery/tasks_en.json": "803c6a28452d42da437254e35a93bbe63db968b2",
    "instore/tasks.json": "91f424f877c782b370f5b0889ca17c43f62bf1bb",
    "instore/tasks_en.json": "744adaabf2913ed6eb8dd319a44c0b4aecc581d6",
    "ota/tasks.json": "a819ccadef093f71befdab9127890291d7b012d3",
    "ota/tasks_en.json": "40bc7f98867e95921d7ae1e4ee995667caf99bf3",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """`EvalRequest.options` of this benchmark."""

    uri: str = ADDRESS  # or a local git directory that holds the revision
    language: str = "chinese"
    max_steps: int = 300
    send_seed: bool = True  # upstream sets a seed and never sends it
    template_kwargs: bool = True  # tell the agent's chat template whether to think
    tasks: tuple[str, ...] = ()  # upstream ids, of every subset; empty is all (then `limit` applies)
    parallel: int = 1  # jobs beside each other (the harness runner's)

    @classmethod
    def of(cls, options: dict[str, JSON]) -> Options:
        unknown = sorted(set(options) - set(cls.__dataclass_fields__))
        if unknown:
            known = ", ".join(cls.__dataclass_fields__)
            raise UserError(f"vita has no option {unknown[0]!r}; it has {known}")
        made = cls(**options | {"tasks": tuple(map(str, options.get("tasks") or ()))})
        if made.language not in LANGUAGES:
            raise UserError(f"vita: language {made.language!r} is not one of {', '.join(LANGUAGES)}")
        return made


def spec_of(options: Options) -> HarnessSpec:
    return HarnessSpec(
        name="vita",
        version=REVISION,
        kind="git",
        uri=options.uri,
        python="3.11",
        lock="vita.lock",
        imports=("vita.run", "vita.cli"),
    )


def task_file(env: HarnessEnv, subset: str, language: str) -> Path:
    """The verified task file. Raises UserError for an unknown or incomplete subset, DataError for other content."""
    if subset not in DOMAINS:
        raise UserError(f"vita has no subset {subset!r}; it has {', '.join(DOMAINS)}")
    name = f"{DOMAINS[subset][1]}/{LANGUAGES[language]}"
    path = env.source / FOLDER / name
    if not path.is_file():
        raise UserError(
            f"vita: domain {subset} cannot run in {language}, because {FOLDER}/{name} is not in this copy of the "
            f"repository (copies without large files lack it); take {ADDRESS} as uri, or leave the domain out"
        )
    if _blob(path) != BLOBS[name]:
        raise DataError(f"vita: {FOLDER}/{name} is not the file of revision {REVISION[:8]}; fetch it anew")
    return path


def data_hash(subsets: Iterable[str], language: str) -> str:
    """Of the task files of these subsets."""
    blobs = [BLOBS[f"{DOMAINS[s][1]}/{LANGUAGES[language]}"] for s in sorted(subsets)]
    return hashlib.sha256("".join(blobs).encode()).hexdigest()


def missing(env: HarnessEnv) -> dict[str, str]:
    """ "domain (language)" -> why it cannot run, for every one that cannot."""
    lacking = {}
    for subset in DOMAINS:
        for language in LANGUAGES:
            try:
                task_file(env, subset, language)
            except UserError as e:
                lacking[f"{subset} ({language})"] = str(e)
    return lacking


def lacking(env: HarnessEnv) -> list[str]:
    """What `make harnesses` says of the task files that this copy of the repository does not hold."""
    names = ", ".join(missing(env))
    if not names:
        return []
    return [
        f"cannot run {names}: the git source lacks their task files (copies without large files do); build it from "
        f'{ADDRESS}, or from a whole clone: make harnesses ARGS="vita --uri vita=/path/to/clone"'
    ]


@lru_cache(maxsize=16)
def _blob(path: Path) -> str:
    data = path.read_bytes()
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


def read_tasks(path: Path) -> list[dict[str, JSON]]:
    tasks = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(tasks, list) or not all(isinstance(t, dict) and "id" in t for t in tasks):
        raise DataError(f"vita: {path.name} is not a list of tasks with ids")
    return tasks


def chosen(ids: list[str], wanted: tuple[str, ...], limit: int, seed: int) -> list[str]:
    """`limit` ids by hash, in the order of the file; the same for every policy. 0 is all."""
    if wanted:
        return [i for i in ids if i in wanted]
    if not limit or limit >= len(ids):
        return ids
    kept = set(sorted(ids, key=lambda i: hashlib.sha256(f"{seed}/{i}".encode()).hexdigest())[:limit])
    return [i for i in ids if i in kept]


def without_work(task: dict[str, JSON]) -> bool:
    """Whether a task is won by doing nothing: no rubric to meet, which upstream scores 1."""
    criteria = task.get("evaluation_criteria") or {}
    rubrics = list(criteria.get("overall_rubrics") or [])
    for state in criteria.get("expected_states") or []:
        rubrics += state.get("state_rubrics") or []
    return not rubrics
