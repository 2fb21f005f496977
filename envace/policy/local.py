"""A policy served from a folder of weights inside this process. The ids a request brings are what the model
reads; nothing is rendered or cut again here."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from envace.chat.renderer import HFRenderer
from envace.errors import EnvironmentUnready
from envace.policy.batcher import AsyncBatcher
from envace.policy.generator import BatchGenerator, GenerationJob
from envace.policy.protocol import Completion, GenerationRequest


class LocalPolicy:
    """Implements `Policy` over the Hugging Face folder `path`; concurrent requests share batches.

    concurrency: most sequences decoded together; enable_thinking reaches the chat template. Raises
    EnvironmentUnready when the folder cannot be loaded.
    """

    def __init__(
        self, path: str | Path, *, concurrency: int = 64, enable_thinking: bool = False, seed: int = 0
    ):
        model, tokenizer = load(path)
        self.renderer = HFRenderer(tokenizer, enable_thinking)
        ends = end_ids(model, tokenizer)
        try:
            self.generator = BatchGenerator(model, ends, max_batch=concurrency, seed=seed)
        except ValueError as e:
            raise EnvironmentUnready(f"{path}: {e}; serve it with vLLM (engine.rollout: vllm)") from None
        self.batcher = AsyncBatcher(self.generator)

    async def generate(self, request: GenerationRequest) -> Completion:
        """One completion; raises what the model raises."""
        job = GenerationJob(prompt_ids=tuple(request.prompt_ids), sampling=request.sampling)
        result = await self.batcher.submit(job)
        return Completion(
            text=self.renderer.decode(result.output_ids),
            output_ids=result.output_ids,
            logprobs=result.logprobs,
            finish=result.finish,
            weight_version=result.weight_version,
        )


def load(path: str | Path) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Model and tokenizer of a folder: bfloat16 on a GPU, float32 on CPU."""
    if not (Path(path) / "config.json").is_file():
        raise EnvironmentUnready(f"{path} holds no model (no config.json): run the stage that makes it")
    gpu = torch.cuda.is_available()
    dtype = torch.bfloat16 if gpu else torch.float32
    try:
        tokenizer = AutoTokenizer.from_pretrained(str(path), local_files_only=True)
        model = AutoModelForCausalLM.from_pretrained(str(path), local_files_only=True, dtype=dtype)
    except (OSError, ValueError) as e:
        raise EnvironmentUnready(f"{path} cannot be loaded as a model: {e}") from e
    return model.to("cuda") if gpu else model, tokenizer


def end_ids(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    """Tokens that close a turn, as the generation config and the tokenizer name them."""
    named = model.generation_config.eos_token_id
    ends = set(named) if isinstance(named, (list, tuple)) else {named}
    return frozenset(int(i) for i in ends | {tokenizer.eos_token_id} if i is not None)
