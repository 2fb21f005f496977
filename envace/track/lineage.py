"""Where a run came from, as tags.

Flows in: the project's folder (git, dvc.lock, params.yaml, staged manifest, model cards) and the parameters.
Flows out: {tag: text} for MLflow.
Invariant: reads only; a missing source gives the text "none", never a guess.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import time
from functools import lru_cache
from importlib import metadata
from pathlib import Path

import yaml

from envace.config import Params, flatten
from envace.errors import EnvironmentUnready
from envace.io.files import read_state
from envace.io.yaml_text import read_yaml
from envace.rollout.prompts import load_prompt_set

NONE = "none"
MOST_CHANGES = 3
LONGEST_NAME = 200
PACKAGES = ("envace", "verl", "vllm", "torch", "transformers", "ray", "mlflow", "prefect", "dvc")
MADE_BY_STAGES = ("dvc.lock", "data", "models", "runs", "results", "report")  # a run changes these itself


def _git(root: Path, *args: str) -> str | None:
    try:
        done = subprocess.run(["git", *args], cwd=root, capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def git_commit(root: Path) -> str:
    return _git(root, "rev-parse", "HEAD") or NONE


def git_dirty(root: Path) -> str:
    """ "true" when code or parameters differ from the commit; what stages write does not count."""
    exclude = [f":(exclude){name}" for name in MADE_BY_STAGES]
    status = _git(root, "status", "--porcelain", "--", ".", *exclude)
    return NONE if status is None else str(bool(status)).lower()


def lineage_key(root: Path) -> str:
    """Hash of parameters and commit: stages that share it belong to one parent run."""
    params = root / "params.yaml"
    text = params.read_bytes() if params.is_file() else b""
    return hashlib.sha256(text + git_commit(root).encode()).hexdigest()[:16]


def file_hash(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else NONE


def stage_hash(root: Path, stage: str) -> str:
    """Hash of one stage's entry in dvc.lock. Raises EnvironmentUnready where the file is damaged."""
    lock = root / "dvc.lock"
    try:
        entry = ((read_yaml(lock.read_text()) or {}).get("stages") or {}).get(stage)
    except FileNotFoundError:
        return NONE
    except (OSError, ValueError, AttributeError, yaml.YAMLError) as e:
        said = str(e).splitlines()[0]
        raise EnvironmentUnready(f"{lock} is damaged ({said}); git checkout dvc.lock mends it") from None
    return hashlib.sha256(json.dumps(entry, sort_keys=True).encode()).hexdigest() if entry else NONE


def checkpoint_hash(root: Path, policy: str) -> str:
    """The weight hash on a model's card."""
    card = read_state(root / "models" / policy / "card.json", dict, "run the stage that makes it again")
    return (card or {}).get("hash") or NONE


def run_name(root: Path, params: Params) -> str:
    """What tells pipelines apart in a list: the experiment of `dvc exp run` or preset and size, what
    params.yaml says otherwise than at the last commit, and the time.
    """
    parts = [os.environ.get("DVC_EXP_NAME") or f"{params.method.preset}-{params.size}"]
    try:
        before = read_yaml(_git(root, "show", "HEAD:./params.yaml") or "") or {}
        now = read_yaml((root / "params.yaml").read_text()) or {}
        old, new = flatten(before), flatten(now)
        changed = [f"{k}={new[k]}" for k in new if old.get(k) != new[k]] if old else []
    except (OSError, yaml.YAMLError, AttributeError):
        changed = []  # load_checked has said what is wrong with the file, or this is no git
    parts += changed[:MOST_CHANGES] + ([f"+{len(changed) - MOST_CHANGES}"] if changed[MOST_CHANGES:] else [])
    return " ".join((*parts, time.strftime("%m-%d %H:%M:%S")))[:LONGEST_NAME]


@lru_cache(maxsize=1)
def versions() -> dict[str, str]:
    """Installed versions of what computes the result."""
    found = {}
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def lineage_tags(root: Path, params: Params, stage: str = "", policy: str = "") -> dict[str, str]:
    """Every lineage tag of one run."""
    tags = {
        "git.commit": git_commit(root),
        "git.dirty": git_dirty(root),
        "envace.lineage": lineage_key(root),
        "envace.preset": params.method.preset,
        "envace.size": params.size,
        "envace.seed": str(params.seed),
        "data.manifest": file_hash(root / "data" / "staged" / "manifest.json"),
        "prompts.hash": load_prompt_set(params.rollout.prompt_set).hash,
        **{f"version.{name}": version for name, version in versions().items()},
    }
    if stage:
        tags |= {"dvc.stage": stage, "dvc.lock_before": stage_hash(root, stage)}
        tags["checkpoint.hash"] = checkpoint_hash(root, policy) if policy else NONE
    for variable, tag in (("DVC_EXP_NAME", "dvc.exp_name"), ("DVC_EXP_BASELINE_REV", "dvc.exp_baseline")):
        if os.environ.get(variable):
            tags[tag] = os.environ[variable]
    return tags
