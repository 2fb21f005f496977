"""The `hf` rollout server: verl's rollout protocol answered by transformers on this machine.

Answers hold token ids with the log-probabilities of the distribution they were sampled from. Invariant: the
weights change only between two batches, and every answer names the optimizer step behind the weights that
wrote it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

import ray
import torch
from omegaconf import DictConfig
from torch.distributed.device_mesh import DeviceMesh
from transformers import AutoModelForCausalLM
from verl.utils.config import omega_conf_to_dataclass
from verl.workers.rollout.base import BaseRollout
from verl.workers.rollout.replica import RolloutReplica, TokenOutput

from envace.config import EngineParams
from envace.engine.cpu_platform import cores
from envace.engine.run_files import current
from envace.policy.batcher import AsyncBatcher
from envace.policy.generator import BatchGenerator, GenerationJob
from envace.types import JSON, Sampling


class HFServer:
    """One Ray actor holding a copy of the policy."""

    def __init__(self, config: DictConfig, model_config: DictConfig, rank: int):
        engine = current().params.engine
        # the episodes themselves and verl's queues want a core beside it
        torch.set_num_threads(max(1, cores(engine.gpus_per_node) - 1))
        self.config = config
        folder = omega_conf_to_dataclass(model_config).local_path
        shape = {"dtype": torch.float32, "attn_implementation": "sdpa"}
        model = AutoModelForCausalLM.from_pretrained(folder, **shape)
        ends = model.generation_config.eos_token_id
        ends, seed = ends if isinstance(ends, list) else [ends], config.seed + rank
        self.generator = BatchGenerator(model, ends, max_batch=engine.concurrency, seed=seed)
        self.batcher = AsyncBatcher(self.generator)

    async def ready(self) -> str:
        return f"hf:{os.getpid()}"

    async def generate(
        self, prompt_ids: list[int], sampling_params: dict[str, JSON], request_id: str, **kwargs: JSON
    ) -> TokenOutput:
        room = self.config.prompt_length + self.config.response_length - len(prompt_ids)
        sampling = Sampling(
            temperature=sampling_params.get("temperature", 1.0),
            top_p=sampling_params.get("top_p", 1.0),
            top_k=sampling_params.get("top_k", -1),
            max_tokens=max(1, min(sampling_params.get("max_tokens") or self.config.response_length, room)),
            seed=sampling_params.get("seed"),
        )
        result = await self.batcher.submit(GenerationJob(prompt_ids=tuple(prompt_ids), sampling=sampling))
        return TokenOutput(
            token_ids=list(result.output_ids),
            log_probs=list(result.logprobs),
            stop_reason="completed",
            extra_fields={"global_steps": result.weight_version},
        )

    async def update_weights(self, state: dict[str, torch.Tensor], step: int | None) -> None:
        self.generator.load_state_dict(state, step)

    async def stats(self) -> dict[str, float]:
        """What was done since the server started, see `BatchGenerator.counters`."""
        return dict(self.generator.counters)

    async def set_global_steps(self, step: int) -> None:
        self.generator.version = step

    async def _nothing(self, *args: JSON, **kwargs: JSON) -> None: ...

    # verl's life cycle of a server that shares an accelerator with the trainer; there is nothing to hand over
    # on a CPU
    wake_up = sleep = clear_kv_cache = release_kv_cache = resume_kv_cache = _nothing
    abort_all_requests = resume_generation = start_profile = stop_profile = _nothing


class HFReplica(RolloutReplica):
    """Starts the server actor of one replica."""

    async def launch_servers(self) -> None:
        name = server_name(self.replica_rank)
        server = ray.remote(HFServer).options(name=name, max_concurrency=1000, num_cpus=0)
        self._server_handle = server.remote(self.config, self.model_config, self.replica_rank)
        self.servers = [self._server_handle]
        self._server_address = await self._server_handle.ready.remote()


class HFAdapter(BaseRollout):
    """Lives in the trainer's worker and hands its weights to the server."""

    def __init__(self, config: DictConfig, model_config: DictConfig, device_mesh: DeviceMesh, **kwargs: JSON):
        super().__init__(config, model_config, device_mesh)
        self.rank = int(os.environ["RANK"])
        self.replica = self.rank // self.config.tensor_model_parallel_size

    async def resume(self, tags: list[str]) -> None: ...
    async def release(self) -> None: ...

    async def update_weights(
        self,
        weights: Iterable[tuple[str, torch.Tensor]],
        global_steps: int | None = None,
        **kwargs: JSON,
    ) -> None:
        state = {name: tensor.detach().cpu().float().clone() for name, tensor in weights}
        await ray.get_actor(server_name(self.replica)).update_weights.remote(state, global_steps)


def server_name(replica: int) -> str:
    return f"hf_server_{replica}"


def server_stats(engine: EngineParams) -> list[dict[str, float]]:
    """`HFServer.stats` of every server of the run."""
    replicas = engine.nodes * engine.gpus_per_node // engine.tensor_parallel
    return ray.get([ray.get_actor(server_name(k)).stats.remote() for k in range(replicas)])
