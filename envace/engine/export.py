"""A checkpoint -> a Hugging Face folder anybody can load, with card.json.

Invariant: the folder appears whole or not at all, and everything but the weights' values is as in the start
policy: configuration, tokenizer, chat template, precision.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from envace.config import Params
from envace.engine import checkpoints
from envace.engine.overrides import ROOT, interpreter
from envace.errors import StageFailed, UserError
from envace.policy.card import write_card
from envace.types import PolicyRef

COPIED = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "generation_config.json",
)


def export(
    params: Params, work: Path, start: Path, out: Path, *, name: str, step: int | None = None
) -> PolicyRef:
    """Merge the shards of `step` (default: the last) into `out`. Raises UserError without a checkpoint and
    StageFailed when the merger fails."""
    step = step or max(checkpoints.steps_saved(work), default=0)
    if not step:
        raise UserError(f"nothing to export: {work} holds no finished checkpoint; run the train stage first")
    shards, part = checkpoints.folder_of(work, step) / "actor", out.with_name(out.name + ".part")
    shutil.rmtree(part, ignore_errors=True)
    argv = [interpreter(params), "-m", "envace.engine.merge", str(shards), str(start), str(part)]
    env = {**os.environ, "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1", "PYTHONWARNINGS": "ignore"}
    env["PYTHONPATH"] = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    log = work / "export.log"
    with log.open("wb") as output:
        streams = {"stdout": output, "stderr": subprocess.STDOUT, "stdin": subprocess.DEVNULL}
        done = subprocess.run(argv, env=env, timeout=3600, **streams)
    if done.returncode or not any(part.glob("*.safetensors")):
        raise StageFailed(f"merging {shards} ended with status {done.returncode}", log)
    for file in COPIED:
        if (start / file).exists():
            shutil.copy2(start / file, part / file)
    ref = write_card(part, PolicyRef(kind="trained", uri=str(out), step=step, name=name))
    shutil.rmtree(out, ignore_errors=True)
    os.replace(part, out)
    return ref
