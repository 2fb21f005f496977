"""verl's FSDP2 engine on the CPU.

Invariant: the training arithmetic is verl's: same log-probabilities, same losses, same optimizer. What
differs is what a CPU would pay for and get nothing: pinned memory, masks over padding on the right of a
causal model, a second pass over what another row holds already, and log-probabilities of tokens nobody wrote
(verl takes them one token at a time where flash-attention is missing, which costs several times the model).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from tensordict import TensorDict
from transformers.modeling_outputs import CausalLMOutputWithPast
from verl.utils import tensordict_utils as tu
from verl.utils.metric import AggregationType, Metric
from verl.workers.engine.base import EngineRegistry
from verl.workers.engine.fsdp import transformer_impl
from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead

from envace.engine.microbatches import carriers, prepare_micro_batches
from envace.engine.step_metrics import gap_sums
from envace.types import JSON

# verl asks no method and no key how rows become micro-batches; its engine looks this name up in its own
# module
if not hasattr(transformer_impl, "prepare_micro_batches"):
    raise ImportError(
        "verl's FSDP engine no longer calls prepare_micro_batches; see envace/engine/microbatches.py"
    )
transformer_impl.prepare_micro_batches = prepare_micro_batches

Loss = Callable[..., tuple[torch.Tensor, dict[str, JSON]]]
"""verl's: of model_output, data and dp_group."""


@EngineRegistry.register(model_type="language_model", backend=["fsdp", "fsdp2"], device="cpu")
class CpuFsdpEngine(FSDPEngineWithLMHead):
    """The reference model is sharded like the trained one: verl would offload it into pinned memory."""

    def _build_fsdp_module(self, module: torch.nn.Module) -> torch.nn.Module:
        forward_only = self.engine_config.forward_only
        object.__setattr__(self.engine_config, "forward_only", False)
        try:
            return super()._build_fsdp_module(module)
        finally:
            object.__setattr__(self.engine_config, "forward_only", forward_only)

    def prepare_model_inputs(self, micro_batch: TensorDict) -> tuple[dict[str, JSON], dict[str, JSON]]:
        """Rows that begin another one are left to it. The rest start at position 0 and are padded on the
        right: a causal model needs neither mask nor positions.
        """
        carrier = carriers([row.tolist() for row in micro_batch["input_ids"].unbind()])
        kept = sorted(set(carrier))
        inputs, args = super().prepare_model_inputs(tu.index_select_tensor_dict(micro_batch, kept))
        place = torch.tensor([kept.index(c) for c in carrier])  # of its carrier among the rows of the model
        return {**inputs, "attention_mask": None, "position_ids": None}, {**args, "place": place}

    def prepare_model_outputs(
        self,
        output: CausalLMOutputWithPast,
        output_args: dict[str, JSON],
        micro_batch: TensorDict,
        logits_processor_func: Callable[..., torch.Tensor] | None,
    ) -> dict[str, torch.Tensor]:
        """Log-probabilities (and entropies) of the responses' tokens, nested like the rows; 0 on prompts."""
        offsets = micro_batch["input_ids"].offsets()
        row, column = predicting(micro_batch["prompts"].offsets().diff(), offsets.diff())
        packed, place = offsets[row] + column, output_args["place"][row]
        logits = output.logits.flatten(0, 1).index_select(0, place * output.logits.shape[1] + column)
        logp = (logits / output_args["temperature"][place].unsqueeze(1)).log_softmax(-1)
        own = logp.gather(1, micro_batch["input_ids"].values()[packed + 1].unsqueeze(1)).squeeze(1)
        wanted = tu.get_non_tensor_data(micro_batch, "calculate_entropy", default=False)
        with torch.set_grad_enabled(torch.is_grad_enabled() and wanted):
            entropy = -(logp.exp() * logp).sum(-1)
        found = {"log_probs": own, "seen_entropy": entropy.detach()} | (
            {"entropy": entropy} if wanted else {}
        )
        return {name: _nested(value, packed, offsets) for name, value in found.items()}

    def forward_step(self, micro_batch: TensorDict, loss_function: Loss | None, forward_only: bool) -> JSON:
        watched = loss_function if loss_function is None or forward_only else watching(loss_function)
        return super().forward_step(micro_batch, watched, forward_only)


def predicting(prompt_R: torch.Tensor, length_R: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(row, column) of every position whose next token belongs to a response, in order.

    prompt_R, length_R [R]: tokens of the prompt (at least one) and of the whole row.
    """
    response_R = length_R - prompt_R
    row = torch.arange(len(response_R)).repeat_interleave(response_R)
    within = torch.arange(len(row)) - (response_R.cumsum(0) - response_R)[row]
    return row, prompt_R[row] - 1 + within


def _nested(value: torch.Tensor, packed: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    full = value.new_zeros(int(offsets[-1])).index_put((packed,), value)
    return torch.nested.nested_tensor_from_jagged(full, offsets)


def watching(loss_function: Loss) -> Loss:
    """The loss, and beside its metrics what tells the server's probabilities from the trainer's."""

    def loss_and_gap(
        model_output: dict[str, torch.Tensor],
        data: TensorDict,
        dp_group: torch.distributed.ProcessGroup | None = None,
    ) -> tuple[torch.Tensor, dict[str, JSON]]:
        loss, metrics = loss_function(model_output=model_output, data=data, dp_group=dp_group)
        return loss, {**metrics, **seen(model_output, data)}

    return loss_and_gap


@torch.no_grad()
def seen(model_output: dict[str, torch.Tensor], data: TensorDict) -> dict[str, Metric]:
    """Sums over trained tokens: how many, their entropy, and how far they lie from what was sampled."""
    offsets = data["input_ids"].offsets()
    row, column = predicting(data["prompts"].offsets().diff(), offsets.diff())
    mask, sampled = (torch.cat(data[name].unbind()) for name in ("response_mask", "old_log_probs"))
    mask = mask.bool()
    at = (offsets[row] + column)[mask]
    sums = gap_sums(model_output["log_probs"].values()[at], sampled[mask])
    sums["entropy"] = float(model_output["seen_entropy"].values()[at].sum())
    kind = {True: AggregationType.MAX, False: AggregationType.SUM}
    return {f"seen/{name}": Metric(kind[name.endswith("_max")], value) for name, value in sums.items()}
