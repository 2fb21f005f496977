"""Staged rows as MLflow datasets of a run.

Flows in: `data/staged/`. Flows out: a dataset input a split on one run, named like `desk-train`, for training
or for evaluation; where MLflow takes none, the checksums as tags `data.<split>`.
Invariant: digest and source are those of the bytes on disk, and counts stand beside them only when the
manifest speaks of the same bytes; a store that is away stops no stage and loses no checksum.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from envace.track.run_log import RunLog, cause_of, outages
from envace.types import JSON

if TYPE_CHECKING:
    import pyarrow
    from mlflow.entities import DatasetInput
    from mlflow.types.schema import Array, DataType, Object

LONGEST_DIGEST = 36  # MLflow's own limit; the whole checksum is in the source
LONGEST_NAME = 200
COUNTS = ("read", "kept", "rejected")


@dataclass(frozen=True, slots=True)
class StagedSplit:
    """`StagedSplit("desk-train", "train", "data/staged/train.parquet", sha256="bb4e...", md5="90ab...")`."""

    name: str
    split: str
    path: str
    """Below the project's folder, as DVC names it."""
    sha256: str
    md5: str
    """Under which DVC's cache and remotes keep the file."""
    schema: str = ""
    """MLflow's JSON."""
    profile: dict[str, JSON] = field(default_factory=dict)
    """What MLflow shows beside it."""


def splits(staged: Path, names: Iterable[str]) -> list[StagedSplit]:
    """The splits of a staged folder that are there, by name."""
    try:
        data = json.loads((staged / "manifest.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        data = {}  # no manifest is no count; the bytes have their checksums anyway
    files = [staged / f"{name}.parquet" for name in names]
    return [_split(path, data if isinstance(data, dict) else {}) for path in files if path.is_file()]


def log_datasets(log: RunLog, staged: Path, names: Iterable[str]) -> None:
    """Say on a run which staged splits it uses. Never raises for a store that is away or refuses."""
    found = splits(staged, names)
    if not found:
        return  # whoever reads the rows says what is missing
    if not log.degraded:
        try:
            log.client.log_inputs(log.run_id, datasets=[_entity(log, s) for s in found])
            return
        except outages() as e:
            cause = log.redactor.text(cause_of(e))
    log.tags({f"data.{s.split}": f"{s.name} sha256 {s.sha256}" for s in found})
    if not log.degraded:  # a log that lost its store has said so itself
        print(
            f"warning: MLflow took no dataset ({cause}); the run's tags data.<split> name the rows instead",
            file=sys.stderr,
            flush=True,
        )


def _entity(log: RunLog, s: StagedSplit) -> DatasetInput:
    from mlflow.entities import Dataset, DatasetInput, InputTag
    from mlflow.utils.mlflow_tags import MLFLOW_DATASET_CONTEXT

    dataset = Dataset(
        name=log.redactor.text(s.name),
        digest=s.sha256[:LONGEST_DIGEST],
        source_type="local",
        source=json.dumps({"uri": s.path, "dvc_md5": s.md5, "sha256": s.sha256}),
        schema=s.schema or None,
        profile=log.redactor.text(json.dumps(s.profile)),
    )
    context = "training" if s.split == "train" else "evaluation"
    return DatasetInput(dataset, [InputTag(MLFLOW_DATASET_CONTEXT, context)])


def _split(path: Path, manifest: dict[str, JSON]) -> StagedSplit:
    """Named after the end of the source's address, else its kind: `desk-train`, `Some-Set-v1-held`."""
    data, source = path.read_bytes(), _part(manifest, "source")
    sha256 = hashlib.sha256(data).hexdigest()
    last = str(source.get("uri") or "").rstrip("/").rpartition("/")[2]
    origin = re.sub(r"[^A-Za-z0-9_.-]+", "-", last).strip("-.") or str(source.get("kind") or "staged")
    about = _part(_part(manifest, "outputs"), path.name)
    profile = {"bytes": len(data), "manifest": "is not of these rows"}
    if about.get("sha256") == sha256:
        counts = _part(manifest, "counts")
        profile = {"rows": about.get("rows"), "bytes": about.get("bytes")}
        profile |= {k: source[k] for k in ("kind", "uri", "revision", "licence") if source.get(k)}
        profile |= {f"source_{k}": counts[k] for k in COUNTS if k in counts}
    return StagedSplit(
        name=f"{origin[:LONGEST_NAME]}-{path.stem}",
        split=path.stem,
        path=f"data/staged/{path.name}",
        sha256=sha256,
        md5=hashlib.md5(data, usedforsecurity=False).hexdigest(),
        schema=_schema(path),
        profile=profile,
    )


def _part(data: dict[str, JSON], key: str) -> dict[str, JSON]:
    value = data.get(key)
    return value if isinstance(value, dict) else {}


def _schema(path: Path) -> str:
    """The columns of a parquet file as MLflow writes them; "" for a file that is none."""
    import pyarrow as pa
    import pyarrow.parquet as pq
    from mlflow.types import ColSpec, Schema

    try:
        columns = pq.read_schema(path)
    except pa.ArrowException:
        return ""  # whoever reads the rows says what is wrong with them
    schema = Schema([ColSpec(_type(f.type), f.name, required=False) for f in columns])
    return json.dumps({"mlflow_colspec": schema.to_dict()})


def _type(kind: pyarrow.DataType) -> Array | Object | DataType:
    import pyarrow.types as t
    from mlflow.types.schema import Array, DataType, Object, Property

    if t.is_list(kind):
        return Array(_type(kind.value_type))
    if t.is_struct(kind):
        return Object([Property(f.name, _type(f.type), required=False) for f in kind])
    names = (
        (t.is_boolean, DataType.boolean),
        (t.is_integer, DataType.long),
        (t.is_floating, DataType.double),
    )
    return next((name for holds, name in names if holds(kind)), DataType.string)
