"""What the processes of one training run share: a JSON file named by envaceRUN_FILE.

Flows in: the launcher's parameters. Flows out: `RunFile`, read once per process by the agent loop and the
trainer.
Invariant: written whole before verl starts, never changed while it runs; holds no key and no secret.
"""

from __future__ import annotations

import dataclasses
import json
import os
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from envace.config import Params, parse, to_dict

ENV_NAME = "envaceRUN_FILE"


@dataclass(frozen=True, kw_only=True)
class RunFile:
    params: Params
    arm: str
    seed: int
    tasks_file: str  # parquet of training rows
    start: str  # folder of the start weights
    work: str  # checkpoints, episodes, metrics, log of this run

    def write(self, path: Path) -> None:
        data = {
            **{f.name: getattr(self, f.name) for f in dataclasses.fields(self)},
            "params": to_dict(self.params),
        }
        part = path.with_suffix(".part")
        part.write_text(json.dumps(data, indent=1), encoding="utf-8")
        os.replace(part, path)

    @classmethod
    def read(cls, path: str | Path) -> RunFile:
        data = json.loads(Path(path).read_text(encoding="utf-8"))
        return cls(**{**data, "params": parse(data["params"], str(path))})


@lru_cache(maxsize=1)
def current() -> RunFile:
    """The run this process belongs to. Raises KeyError outside a training run."""
    return RunFile.read(os.environ[ENV_NAME])
