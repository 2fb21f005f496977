"""A checkpoint -> a Hugging Face folder anybody can load.

Flows in: a step's shards. Flows out: `model.safetensors`, configuration, tokenizer and chat template of the
start policy, and card.json.
Invariant: the folder appears whole or not at all. The weights go through verl's model merger, which writes
bfloat16.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from envace.config import Params
from envace.engine import checkpoints
from envace.engine.overrides import interpreter
from envace.errors import StageFailed, UserError
from envace.policy.card import write_card
from envace.types import PolicyRef

TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
)


def export(
    params: Params, work: Path, start: Path, out: Path, *, name: str, step: int | None = None
) -> PolicyRef:
    """Merge the shards of `step` (default: the last) into `out`. Raises UserError without a checkpoint and
    StageFailed when the merger fails."""
    step = step or max(checkpoints.steps_saved(work), default=0)
    if not step:
        raise UserError(f"nothing to export: {work} holds no finished checkpoint; run the train stage first")
    part = out.with_name(out.name + ".part")
    shutil.rmtree(part, ignore_errors=True)
    _merge(params, checkpoints.folder_of(work, step) / "actor", part, work / "export.log")
    for file in (*TOKENIZER_FILES, "generation_config.json"):
        if (start / file).exists():
            shutil.copy2(start / file, part / file)
    ref = write_card(part, PolicyRef(kind="trained", uri=str(out), step=step, name=name))
    shutil.rmtree(out, ignore_errors=True)
    os.replace(part, out)
    return ref


def _merge(params: Params, shards: Path, target: Path, log: Path) -> None:
    argv = [interpreter(params), "-m", "verl.model_merger", "merge", "--backend", "fsdp"]
    argv += ["--local_dir", str(shards), "--target_dir", str(target)]
    env = {**os.environ, "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1", "PYTHONWARNINGS": "ignore"}
    env.pop("VERL_USE_EXTERNAL_MODULES", None)
    with log.open("wb") as f:
        streams = {"stdout": f, "stderr": subprocess.STDOUT, "stdin": subprocess.DEVNULL}
        done = subprocess.run(argv, env=env, timeout=3600, **streams)
    if done.returncode or not any(target.glob("*.safetensors")):
        raise StageFailed(f"verl's model merger ended with status {done.returncode} on {shards}", log)
