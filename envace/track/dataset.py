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

    @property
    def context(self) -> str:
        """What MLflow says the rows are for."""
        return "training" if self.split == "train" else "evaluation"


def splits(staged: Path, names: Iterable[str]) -> list[StagedSplit]:
    """The splits of a staged folder that are there, by name."""
    manifest = _manifest(staged)
    return [
        _split(staged / f"{n}.parquet", n, manifest) for n in names if (staged / f"{n}.parquet").is_file()
    ]


def log_datasets(log: RunLog, staged: Path, names: Iterable[str]) -> None:
    """Say on a run which staged splits it uses. Never raises for a store that is away or refuses."""
    found = splits(staged, names)
    if not found:
        return  # whoever reads the rows says what is missing
    if not log.degraded and not (cause := _refusal(log, found)):
        return
    log.tags({f"data.{s.split}": f"{s.name} sha256 {s.sha256}" for s in found})
    if not log.degraded:  # a log that lost its store has said so itself
        print(
            f"warning: MLflow took no dataset ({cause}); the run's tags data.<split> name the rows instead",
            file=sys.stderr,
            flush=True,
        )


def _refusal(log: RunLog, found: list[StagedSplit]) -> str | None:
    """None when the datasets arrived, else why they did not."""
    try:
        log.client.log_inputs(log.run_id, datasets=[_entity(log, s) for s in found])
    except outages() as e:
        return log.redactor.text(cause_of(e))
    return None


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
    return DatasetInput(dataset, [InputTag(MLFLOW_DATASET_CONTEXT, s.context)])


def _manifest(staged: Path) -> dict[str, JSON]:
    try:
        data = json.loads((staged / "manifest.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}  # no manifest is no count; the bytes have their checksums anyway
    return data if isinstance(data, dict) else {}


def _split(path: Path, split: str, manifest: dict[str, JSON]) -> StagedSplit:
    md5, sha256 = _hashes(path)
    return StagedSplit(
        name=f"{_origin(_part(manifest, 'source'))}-{split}",
        split=split,
        path=f"data/staged/{path.name}",
        sha256=sha256,
        md5=md5,
        schema=_schema(path),
        profile=_profile(path, sha256, manifest),
    )


def _origin(source: dict[str, JSON]) -> str:
    """The last part of a source's address, else its kind: `desk`, `Nemotron-Agentic-v1`."""
    last = str(source.get("uri") or "").rstrip("/").rpartition("/")[2]
    name = re.sub(r"[^A-Za-z0-9_.-]+", "-", last).strip("-.")
    return (name or str(source.get("kind") or "staged"))[:LONGEST_NAME]


def _profile(path: Path, sha256: str, manifest: dict[str, JSON]) -> dict[str, JSON]:
    """What MLflow shows beside a dataset."""
    about = _part(_part(manifest, "outputs"), path.name)
    if about.get("sha256") != sha256:
        return {"bytes": path.stat().st_size, "manifest": "is not of these rows"}
    source, counts = _part(manifest, "source"), _part(manifest, "counts")
    origin = {k: source[k] for k in ("kind", "uri", "revision", "licence") if source.get(k)}
    read = {f"source_{k}": counts[k] for k in COUNTS if k in counts}
    return {"rows": about.get("rows"), "bytes": about.get("bytes"), **origin, **read}


def _part(data: dict[str, JSON], key: str) -> dict[str, JSON]:
    value = data.get(key)
    return value if isinstance(value, dict) else {}


def _hashes(path: Path) -> tuple[str, str]:
    """(md5, sha256) of a file, read once."""
    md5, sha256 = hashlib.md5(usedforsecurity=False), hashlib.sha256()
    with path.open("rb") as f:
        while block := f.read(1 << 20):
            md5.update(block)
            sha256.update(block)
    return md5.hexdigest(), sha256.hexdigest()


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
