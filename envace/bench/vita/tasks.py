"""Which VitaBench this is: the pinned revision, its options, its task files, and the tasks in them.

Invariant: a task file is used only when its git blob id is the one the pinned revision lists, so that a copy
of the repository without its large files says which domain cannot run instead of running another.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from envace.bench.harness.planning import check_one_of, read_options
from envace.bench.harness.spec import HarnessEnv
from envace.errors import DataError, UserError
from envace.io.files import git_blob
from envace.types import JSON

REVISION = "96f3b8529d8ea38d330de2405af7e32a1454f6cd"
ADDRESS = "https://github.com/meituan-longcat/vitabench"
LANGUAGES = {"chinese": "tasks.json", "english": "tasks_en.json"}
DOMAINS = {  # subset -> (what the harness calls it, folder of its tasks)
    "delivery": ("delivery", "delivery"),
    "instore": ("instore", "instore"),
    "ota": ("ota", "ota"),
    "cross": ("delivery,instore,ota", "cross_domain"),
}
FOLDER = "data/vita/domains"
BLOBS = {  # git blob ids of the task files at REVISION
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
class VitaOptions:
    """`bench.options.vita`."""

    uri: str = ADDRESS  # or a local git directory that holds the revision
    language: str = "chinese"
    max_steps: int = 300
    send_seed: bool = True  # upstream sets a seed and never sends it
    template_kwargs: bool = True  # tell the agent's chat template whether to think
    tasks: tuple[str, ...] = ()  # upstream ids, of every subset; empty is all (then `limit` applies)
    parallel: int = 1  # jobs beside each other (the harness runner's)

    @classmethod
    def of(cls, options: dict[str, JSON]) -> VitaOptions:
        """Raises UserError for an option that does not exist or a language without tasks."""
        made = read_options("vita", cls, options | {"tasks": [str(t) for t in options.get("tasks") or ()]})
        check_one_of("vita", "language", made.language, LANGUAGES)
        return made


def read_tasks(env: HarnessEnv, subset: str, language: str) -> list[dict[str, JSON]]:
    """Tasks of a verified file. Raises UserError for an unknown or absent subset, DataError for other
    content.
    """
    path = task_file(env, subset, language)
    tasks = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(tasks, list) or not all(isinstance(t, dict) and "id" in t for t in tasks):
        raise DataError(f"vita: {path.name} is not a list of tasks with ids")
    return tasks


def task_file(env: HarnessEnv, subset: str, language: str) -> Path:
    """The verified task file of a subset."""
    if subset not in DOMAINS:
        raise UserError(f"vita has no subset {subset!r}; it has {', '.join(DOMAINS)}")
    name = f"{DOMAINS[subset][1]}/{LANGUAGES[language]}"
    path = env.source / FOLDER / name
    if not path.is_file():
        raise UserError(
            f"vita: domain {subset} cannot run in {language}, because {FOLDER}/{name} is not in this copy "
            f"of the repository (copies without large files lack it); take {ADDRESS} as uri, "
            "or leave the domain out"
        )
    if _blob(path) != BLOBS[name]:
        raise DataError(f"vita: {FOLDER}/{name} is not the file of revision {REVISION[:8]}; fetch it anew")
    return path


def data_hash(subsets: Iterable[str], language: str) -> str:
    """Of the task files of these subsets."""
    files = (f"{DOMAINS[subset][1]}/{LANGUAGES[language]}" for subset in sorted(subsets))
    return hashlib.sha256("".join(BLOBS[file] for file in files).encode()).hexdigest()


def lacking(env: HarnessEnv) -> list[str]:
    """What `make harnesses` says of the task files that this copy of the repository does not hold."""
    absent = []
    for subset, language in ((s, x) for s in DOMAINS for x in LANGUAGES):
        try:
            task_file(env, subset, language)
        except UserError:
            absent.append(f"{subset} ({language})")
    whole = f"build it from {ADDRESS}, or from a whole clone"
    return absent and [
        f"cannot run {', '.join(absent)}: the git source lacks their task files (copies without large files "
        f'do); {whole}: make harnesses ARGS="vita --uri vita=/path/to/clone"'
    ]


def without_work(task: dict[str, JSON]) -> bool:
    """Whether a task is won by doing nothing: no rubric to meet, which upstream scores 1."""
    criteria = task.get("evaluation_criteria") or {}
    states = criteria.get("expected_states") or []
    return not criteria.get("overall_rubrics") and not any(s.get("state_rubrics") for s in states)


@lru_cache(maxsize=16)
def _blob(path: Path) -> str:
    return git_blob(path.read_bytes())
