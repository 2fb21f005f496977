"""Role-wise GRPO as a subclass of verl's synchronous trainer.

From the sequences that the agent loops put into verl's queue come their advantages, one optimizer update, and
a record of the step (metrics, episodes, signs of life) in the run's work folder.
Invariant: the advantage arithmetic is `envace.learn.advantage`'s, the update is verl's; rows of zero mask
that fill a batch never enter a group and carry no weight, copies (`padding: duplicates`) count like any row;
what a step trains on is a function of the seed and the step number.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import ray
import torch
import transfer_queue as tq
from omegaconf import DictConfig, open_dict
from tensordict import TensorDict
from transfer_queue import KVBatchMeta
from verl.trainer.ppo.core_algos import register_adv_est
from verl.trainer.ppo.utils import Role as VerlRole
from verl.trainer.ppo.v1 import PPOTrainerSync, register_trainer
from verl.utils import tensordict_utils as tu
from verl.utils.dataset.rl_dataset import collate_fn
from verl.utils.metric import reduce_metrics
from verl.utils.py_functional import rename_dict

from envace.chat.append_only import described, shape_of
from envace.chat.probes import check_same_prompts
from envace.chat.renderer import HFRenderer
from envace.engine.dataset import step_indices, tasks_of
from envace.engine.overrides import ESTIMATOR, TRAINER
from envace.engine.padding import with_copies
from envace.engine.run_files import Progress, current, emit, write_episodes
from envace.engine.step_metrics import (
    check_gaps,
    check_unscored,
    check_weights,
    gap_metrics,
    gap_sums,
    gap_warning,
    seen_sums,
    server_metrics,
    step_seconds,
    verl_metrics,
)
from envace.io.files import append_jsonl
from envace.judge.checklist import training_task
from envace.learn.advantage import Diagnostics, advantages
from envace.learn.collapse import collapse_metrics
from envace.learn.metrics import rehearsed_success, step_metrics
from envace.learn.rewards import trained_rewards
from envace.learn.running import read_means, updated, write_means
from envace.learn.sequences import TrainingRow, batch_rows, token_advantages
from envace.types import JSON, Episode, from_json, replace
from envace.worlds.registry import load as load_worlds


@register_adv_est(ESTIMATOR)
def _named_only(*args: JSON, **kwargs: JSON) -> None:
    """verl wants the estimator's name registered; roles and episodes are known to the trainer alone."""
    raise RuntimeError(f"{ESTIMATOR} is computed by the {TRAINER!r} trainer")


@register_trainer(TRAINER)
class RolewiseTrainer(PPOTrainerSync):
    def __init__(self, config: DictConfig):
        with open_dict(config):  # verl branches on the literal name of the mode we extend
            config.trainer.v1.trainer_mode = "sync"
        super().__init__(config)
        self.run = current()
        self.work = Path(self.run.work)
        self.method = self.run.params.resolved_method(self.run.arm)
        load_worlds(self.run.params.rollout.worlds)
        self.tasks = {task.id: task for task in tasks_of(self.run.tasks_file)}
        self.began = time.time()
        self.first_step = 0
        self.server_totals: list[dict[str, float]] = []
        self.step_server: dict[str, float] = {}
        self.step_gap: dict[str, float] = {}
        self.alarms = 0
        """Steps in a row."""

    def _init_tokenizer(self) -> None:
        """What training will show is held against what an evaluation of the start weights shows. Raises
        ParamsError.
        """
        super()._init_tokenizer()
        params = self.run.params
        shown = HFRenderer(self.tokenizer, params.rollout.enable_thinking)
        check_same_prompts(shown, HFRenderer.of(self.run.start, params.rollout.enable_thinking).render)
        note = described(shape_of(shown), self.method.old_thoughts)
        emit(self.work, Progress(phase="template", step=0, steps=params.train.steps, note=note))

    def _init_resource_pool_mgr(self) -> None:
        super()._init_resource_pool_mgr()
        if self.config.trainer.device == "cpu":
            from envace.engine.cpu_worker import CpuWorker

            for role in (VerlRole.ActorRollout, VerlRole.ActorRolloutRef):
                if role in self.role_worker_mapping:
                    self.role_worker_mapping[role] = ray.remote(CpuWorker)

    def on_train_begin(self) -> None:
        super().on_train_begin()
        self.replay_buffer.workers = self.agent_loop_manager.agent_loop_workers
        self.first_step = self.global_steps  # 1 + the steps a checkpoint brought
        self.began = self.ended = time.time()
        self._emit("ready", self.global_steps - 1)

    def on_step_begin(self) -> None:
        super().on_step_begin()
        self.between = time.time() - self.ended
        self._emit("rollout", self.global_steps - 1)

    def on_sample_end(self) -> None:
        super().on_sample_end()
        if self.run.params.engine.rollout == "hf":
            from envace.engine.hf_rollout import server_stats

            totals = server_stats(self.run.params.engine)
            self.step_server = server_metrics(totals, self.server_totals)
            self.server_totals = totals

    def _next_train_batch(self, num_prompts: int | None = None) -> TensorDict:
        """Prompts of this step, chosen by seed and step: no sampler state to lose. The group id
        names both."""
        n, step = self.config.data.train_batch_size, self.global_steps
        chosen = step_indices(step, n, len(self.train_dataset), self.run.seed, self.run.params.train.shuffle)
        batch = collate_fn([self.train_dataset[i] for i in chosen])
        batch["uid"] = np.array([f"s{step}p{k}" for k in range(n)], dtype=object)
        batch = tu.get_tensordict(batch)
        tu.assign_non_tensor_data(batch, "global_steps", step)
        return batch

    def _balance_batch(self, batch: KVBatchMeta, *args: JSON, **more: JSON) -> KVBatchMeta:
        engine, about = self.run.params.engine, {"seed": self.run.seed, "step": self.global_steps}
        ranks = engine.nodes * engine.gpus_per_node
        batch = with_copies(batch, tq, self.method.padding, ranks=ranks, **about)
        return super()._balance_batch(batch, *args, **more)

    def _get_required_batch_multiple(self, dp_size: int) -> int:
        return dp_size  # one update a step: rows need only divide over the ranks

    def _columns(self, batch: KVBatchMeta, *names: str) -> TensorDict:
        """Fields of the batch's rows in verl's queue."""
        return tq.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=list(names))

    def _compute_old_log_prob(self, batch: KVBatchMeta, metrics: dict[str, JSON]) -> KVBatchMeta:
        """With the gap between these and the sampled ones, which the update sees if no pass is made here."""
        batch = super()._compute_old_log_prob(batch, metrics)
        correction = self.config.algorithm.get("rollout_correction") or {}
        if not correction.get("bypass_mode", False):
            names = ("response_mask", "old_log_probs", "rollout_log_probs")
            data = self._columns(batch, *names)
            mask, own, sampled = (torch.cat(data[name].unbind()) for name in names)
            sums = gap_sums(own[mask.bool()], sampled[mask.bool()])
            self.step_gap = gap_metrics(sums, self.run.params.train.max_logprob_gap)
        return batch

    def _compute_advantage(self, batch: KVBatchMeta, metrics: dict[str, JSON]) -> KVBatchMeta:
        data = self._columns(batch, "extra_fields", "response_mask")
        fields = [dict(f) for f in data["extra_fields"]]
        masks = [mask.numpy() for mask in data["response_mask"].unbind()]
        padding = [bool(tag.get("is_padding")) for tag in batch.tags]
        copied = [bool(tag.get("is_copy")) for tag in batch.tags]
        live = [not pad and not f["placeholder"] for f, pad in zip(fields, padding)]
        originals = [f for f, pad, copy in zip(fields, padding, copied) if not pad and not copy]
        episodes = self._episodes([json.loads(f["episode_json"]) for f in originals if "episode_json" in f])
        sent = [[from_json(TrainingRow, row) for row in json.loads(f["rows"])] for f in fields]
        rows, found = self._advantages(batch_rows(sent, masks, live), episodes)
        self.step_metrics = {**step_metrics(episodes, rows, found), **self._honesty(episodes)}
        self.step_metrics["train/copies"] = float(sum(copied))
        self.step_metrics["train/sequences"] = float(sum(alive and m.any() for alive, m in zip(live, masks)))
        metrics.update(self.step_metrics)
        check_unscored(episodes, self.run.params.judge.max_unscored, self.global_steps)
        values = [torch.from_numpy(v).float() for v in token_advantages(rows, masks, self.method)]
        nested = torch.nested.as_nested_tensor(values, layout=torch.jagged)
        output = TensorDict({"advantages": nested, "returns": nested.clone()}, batch_size=len(batch))
        return tq.kv_batch_put(keys=batch.keys, partition_id=batch.partition_id, fields=output)

    def _episodes(self, records: list[dict[str, JSON]]) -> list[Episode]:
        """The step's episodes, saved before anything can fail. Raises RuntimeError when one is missing."""
        records.sort(key=lambda r: r["id"])
        step, prompts = self.global_steps, self.config.data.train_batch_size
        write_episodes(self.work, step, records)
        members = range(self.config.actor_rollout_ref.rollout.n)
        wanted = {f"s{step}p{k}-{i}" for k in range(prompts) for i in members}
        if missing := wanted - {r["id"] for r in records}:
            raise RuntimeError(
                f"step {step}: {len(missing)} of {len(wanted)} episodes never came back, e.g. {min(missing)}"
            )
        episodes = [from_json(Episode, r) for r in records]
        check_weights(episodes, step)
        return episodes

    def _advantages(
        self, rows: Sequence[TrainingRow], episodes: Sequence[Episode]
    ) -> tuple[list[TrainingRow], Diagnostics]:
        """The rows of the step with what they are trained on and how it compares."""
        step, source = self.global_steps, {e.id: self.tasks[e.task_id].source for e in episodes}
        reward_R = trained_rewards(
            [row.reward for row in rows],
            [row.episode_id for row in rows],
            {e.id: e.reward for e in episodes},
            scheme=self.method.reward,
            seed=self.run.seed,
            step=step,
        )
        rewarded = zip(rows, reward_R, strict=True)
        rows = [replace(row, reward=reward, source=source[row.episode_id]) for row, reward in rewarded]
        if self.method.baseline != "shrinkage":
            return advantages(rows, self.method)
        means = read_means(self.work, step - 1)
        write_means(self.work, step, updated(means, rows, self.method))
        return advantages(rows, self.method, means)

    def _honesty(self, episodes: Sequence[Episode]) -> dict[str, float]:
        """Success on the policy's own terms, and whether its rehearsals still look like the world."""
        played = {e.task_id: self.tasks[e.task_id] for e in episodes}
        judged_by = {name: training_task(task, self.method) for name, task in played.items()}
        found, success = collapse_metrics(episodes, played), rehearsed_success(episodes, judged_by)
        return found if success is None else {"train/rehearsed_success": success, **found}

    def _update_actor(self, batch: KVBatchMeta, metrics: dict[str, JSON]) -> KVBatchMeta:
        """One update on the whole batch. verl's means over rows count the rows that have a trained token, as
        `envace.learn.weights.verl_weights` does."""
        actor = self.config.actor_rollout_ref.actor
        masks = self._columns(batch, "response_mask")["response_mask"]
        batch.extra_info.update(
            calculate_entropy=actor.calculate_entropy or actor.entropy_coeff != 0.0,
            distillation_use_topk=False,
            distillation_only=False,
            global_batch_size=max(1, sum(bool(m.any()) for m in masks.unbind())),
            mini_batch_size=len(batch),
            epochs=1,
            seed=actor.data_loader_seed,
            dataloader_kwargs={"shuffle": False},
            temperature=self.config.actor_rollout_ref.rollout.temperature,
            skip_unmoved=not actor.use_kl_loss and actor.entropy_coeff == 0.0,  # read by the CPU engine
        )
        output = rename_dict(self.actor_rollout_wg.update_actor(batch)["metrics"], "actor/")
        output["perf/mfu/actor"] = output.pop("actor/mfu")
        output = reduce_metrics(output)
        metrics.update(output)
        if (sums := seen_sums(output)).get("tokens"):  # the CPU engine's
            metrics["actor/entropy"] = sums["entropy"] / sums["tokens"]
            self.step_gap = gap_metrics(sums, self.run.params.train.max_logprob_gap)
        return batch

    def _compute_metrics(
        self,
        batch: KVBatchMeta,
        metrics: dict[str, JSON],
        timing_raw: dict[str, float],
        global_steps: int,
        epoch: int,
    ) -> None:
        self.ended = time.time()
        super()._compute_metrics(batch, metrics, timing_raw, global_steps, epoch)
        own = {**verl_metrics(metrics), **step_seconds(timing_raw), "seconds/between": self.between}
        found = {**self.step_metrics, **self.step_server, **self.step_gap, **own}
        append_jsonl(self.work / "metrics.jsonl", {"step": global_steps, **found})
        self._emit("step", global_steps, found)
        self.step_gap = {}
        params = self.run.params
        # a distribution cut by top_p differs from the trainer's also while the weights agree
        self.alarms = self.alarms + 1 if found.get("gap/alarms") and params.rollout.top_p == 1.0 else 0
        check_gaps(self.alarms, gap_warning(found, params.train.max_logprob_gap))
        if global_steps >= self.total_training_steps:
            self._emit("done", global_steps)

    def _emit(self, phase: str, step: int, metrics: Mapping[str, float] | None = None) -> None:
        done, total, found = step - self.first_step + 1, self.total_training_steps, dict(metrics or {})
        eta = (time.time() - self.began) / done * (total - step) if phase == "step" and done > 0 else None
        warning = gap_warning(found, self.run.params.train.max_logprob_gap)
        more = {"metrics": found, "eta_s": eta, "warning": warning}
        emit(self.work, Progress(phase=phase, step=step, steps=total, **more))
