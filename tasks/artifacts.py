"""What a person opens on an MLflow run: cards, curves, scores, failing samples, and registered policies.

Flows in: the files a stage published. Flows out: small text artifacts, and a version of a registered model.
Invariant: DVC keeps the bytes; an artifact is a redacted view of them, and a store that is away stops no
stage.
"""

from __future__ import annotations

import hashlib
import html
import json
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path

import yaml
from prefect import task
from prefect.cache_policies import NO_CACHE

from envace.config import to_dict
from envace.io.files import plain
from envace.track.run_log import RunLog
from envace.types import JSON, PolicyRef, SampleRecord, SampleStatus
from tasks.run import Run

MOST_EPISODES = 20
MOST_SAMPLES = 100
LOADER = "tasks.registered"
"""What MLflow imports to load a registered policy."""
MLMODEL = {
    "artifact_path": "policy",
    "flavors": {"python_function": {"loader_module": LOADER, "data": "policy.json"}},
}


def log_scored(run: Run, folder: Path, samples: Sequence[SampleRecord]) -> None:
    """Scores, and the samples that failed as lines and as a page."""
    run.artifact("scores.json", folder / "scores.json")
    failing = [s for s in samples if s.status is not SampleStatus.SCORED or s.metrics.get("success", 1) < 1]
    rows = [plain(s) for s in failing[:MOST_SAMPLES]]
    run.artifact("failing.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    run.artifact("failing.html", page(f"{len(failing)} of {len(samples)} samples failed", rows))


def page(title: str, rows: Sequence[Mapping[str, JSON]]) -> str:
    """A plain HTML table."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    head = "".join(f"<th>{html.escape(name)}</th>" for name in names)
    body = "".join(
        "<tr>" + "".join(f"<td>{html.escape(str(row.get(name, '')))}</td>" for name in names) + "</tr>\n"
        for row in rows
    )
    title = html.escape(title)
    return (
        f"<!doctype html><meta charset=utf-8><title>{title}</title><h1>{title}</h1>\n"
        f"<table border=1 cellspacing=0 cellpadding=3><tr>{head}</tr>\n{body}</table>\n"
    )


def log_training(run: Run, folder: Path, arm: str) -> None:
    """Resolved parameters, metrics, curve and a sample of episodes of a training."""
    resolved = {**to_dict(run.params), "method": plain(run.params.resolved_method(arm))}
    run.artifact("config.yaml", yaml.safe_dump(resolved, sort_keys=False))
    for name in ("train.json", "metrics.jsonl", "curve.csv"):
        run.artifact(name, folder / name)
    with (folder / "episodes.jsonl").open(encoding="utf-8") as lines:
        run.artifact("episodes.jsonl", "".join(islice(lines, MOST_EPISODES)))


def log_report(parent: RunLog, root: Path) -> None:
    """The pages of the report, on the pipeline's run."""
    for name in ("index.html", "report.md", "summary.json"):
        if (path := root / "report" / name).is_file():
            parent.artifact(f"report/{name}", path)


def tag_policy(run: Run, ref: PolicyRef) -> None:
    """Tags that find the weights a run used or made."""
    run.log.tags({f"model.{k}": getattr(ref, k) for k in ("name", "uri", "hash", "step", "kind")})


@task(cache_policy=NO_CACHE)
def record_policy(run: Run, ref: PolicyRef) -> None:
    """Point MLflow at a policy: its card as an artifact and as tags; weights of ours as a registered model.

    A version's source is a small folder among the run's artifacts: what MLflow needs to load it, the card,
    path and MD5 of each file that DVC keeps.
    """
    tag_policy(run, ref)
    card = json.dumps(plain(ref), indent=1)
    folder = run.path("models", ref.name)
    run.artifact("policy_card.json", card)
    if not any(folder.glob("*.safetensors")):
        return  # on a hub or behind a server
    files = {p.name: _md5(p) for p in sorted(folder.iterdir()) if p.is_file()}
    where = {"path": f"models/{ref.name}", "hash": ref.hash, "md5": files}
    run.artifact("policy/MLmodel", yaml.safe_dump(MLMODEL))
    run.artifact("policy/policy.json", json.dumps(where, indent=1))
    run.artifact("policy/card.json", card)
    version = run.log.register(ref.name, "policy", {"model.hash": ref.hash, "dvc.path": where["path"]})
    if version:
        run.say(f"registered in MLflow as models:/{ref.name}/{version}, alias current")


def _md5(path: Path) -> str:
    with path.open("rb") as f:
        return hashlib.file_digest(f, "md5").hexdigest()
