"""Rows in, staged tasks out.

Flows in: the configured source. Flows out: `data/staged/` (complete or absent), its files in `data/raw/`.
"""

from __future__ import annotations

import json
from pathlib import Path

from prefect import task
from prefect.cache_policies import NO_CACHE

from envace.io.files import publish
from envace.types import JSON
from tasks.rows import note_rows
from tasks.run import Run


@task(cache_policy=NO_CACHE)
def stage_rows(run: Run, out: Path) -> dict[str, JSON]:
    """Read, check, select, split; returns the manifest. Raises DataError naming the first bad field."""
    from envace.data.raw_files import adopt_raw, keep_raw
    from envace.data.stage import stage
    from envace.worlds import registry as worlds

    worlds.load(run.params.rollout.worlds)
    raw = out.parent / "raw"
    adopt_raw(raw, run.state, run.say)
    with publish(out) as scratch:
        manifest = stage(run.params, scratch, state=run.state, say=run.say)
    keep_raw(run.params, raw, run.state)
    return manifest


@task(cache_policy=NO_CACHE)
def report_manifest(run: Run, manifest: dict[str, JSON]) -> None:
    """Counts to the terminal and to MLflow, the manifest as an artifact and its hash as a tag, the splits as
    datasets.
    """
    from envace.track.lineage import file_hash

    splits = [name.removesuffix(".parquet") for name in manifest["outputs"] if name.endswith(".parquet")]
    counts = {k: manifest["counts"][k] for k in ("read", *splits, "rejected")}
    reasons = manifest["counts"]["rejected_by_reason"]
    run.say(", ".join(f"{v} {k}" for k, v in counts.items()))
    if reasons:
        largest = sorted(reasons.items(), key=lambda item: (-item[1], item[0]))
        run.say(f"left out: {', '.join(f'{n} {r}' for r, n in largest)}; data/staged/rejects.jsonl says why")
    run.metrics(
        {f"data/{k}": v for k, v in counts.items()} | {f"data/left_out.{r}": n for r, n in reasons.items()}
    )
    run.log.tags({"data.manifest": file_hash(run.path("data", "staged", "manifest.json"))})
    run.artifact("manifest.json", json.dumps(manifest, indent=1))
    run.artifact("data_card.md", data_card(manifest))
    note_rows(run, *splits)


def data_card(manifest: dict[str, JSON]) -> str:
    """Where the rows are from and what became of them, for people."""
    source, counts = manifest.get("source") or {}, manifest["counts"]
    lines = [f"# Rows of {source.get('uri') or source.get('kind') or 'this project'}", ""]
    lines += [f"* {key}: {source[key]}" for key in ("kind", "revision", "licence") if source.get(key)]
    lines += ["", "| file | rows | sha256 |", "|---|---|---|"]
    for name, about in manifest["outputs"].items():
        lines.append(f"| {name} | {about.get('rows', '')} | {str(about.get('sha256', ''))[:16]} |")
    lines += ["", f"{counts['read']} rows read, {counts['rejected']} rejected."]
    lines += [f"* {n} {reason}" for reason, n in counts["rejected_by_reason"].items()]
    return "\n".join(lines) + "\n"
