"""Loads a registered policy: `mlflow.pyfunc.load_model("models:/envace-1@current").predict(["Hello"])`.

Flows in: `policy.json` of a model version. Flows out: the policy whose bytes DVC keeps, in this process.
Invariant: weights that are not those of the version are refused.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path

from envace.errors import DataError
from envace.policy.card import weights_hash
from envace.policy.local import LocalPolicy
from envace.policy.protocol import GenerationRequest
from envace.types import JSON, Message, Role, Sampling

LONGEST_REPLY = 256  # tokens


class RegisteredPolicy:
    """A policy that answers texts."""

    def __init__(self, folder: Path):
        self.policy = LocalPolicy(folder)

    def predict(self, texts: Sequence[str], params: dict[str, JSON] | None = None) -> list[str]:
        """The policy's greedy reply to each text as a user's first message; params: `max_tokens`."""
        sampling = Sampling(temperature=0.0, **{"max_tokens": LONGEST_REPLY, **(params or {})})

        async def all_of_them() -> list[str]:
            return list(await asyncio.gather(*(self._reply(text, sampling) for text in texts)))

        return asyncio.run(all_of_them())

    async def _reply(self, text: str, sampling: Sampling) -> str:
        messages = (Message(role="user", content=text),)
        request = GenerationRequest(
            role=Role.ACT,
            messages=messages,
            prompt_ids=self.policy.renderer.render(messages),
            sampling=sampling,
            episode_id="",
            task_id="",
            turn=0,
            step=0,
        )
        return (await self.policy.generate(request)).text


def _load_pyfunc(data_path: str) -> RegisteredPolicy:
    """What MLflow calls. Raises DataError where the folder of the weights holds others, or none."""
    said = json.loads(Path(data_path).read_text(encoding="utf-8"))
    folder = Path(__file__).parents[1] / said["path"]
    if weights_hash(folder) != said["hash"]:
        raise DataError(
            f"{folder} holds other weights than this version; git and dvc checkout of the tag git.commit help"
        )
    return RegisteredPolicy(folder)
