"""One episode inside verl: a registered agent loop around `envace.rollout.run_episode`.

Flows in: a task index, the prompt group's id and verl's handle to the rollout servers. Flows out: one
AgentLoopOutput for each training sequence, with its role, its episode and its rows' rewards; the last one
also carries the whole episode for the trainer to save.
Invariant: every dispatched episode comes back, one that produced no row as a single masked placeholder; a
reward that could not be had travels as None and never as a number.
"""

from __future__ import annotations

import hashlib
import json
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from verl.experimental.agent_loop.agent_loop import AgentLoopBase, AgentLoopMetrics, AgentLoopOutput, register

from envace.chat.renderer import HFRenderer
from envace.config.method import Method
from envace.engine.dataset import tasks_of
from envace.engine.overrides import AGENT_LOOP
from envace.engine.run_files import RunFile, beat, current
from envace.judge import Judge, make_judge
from envace.judge.checklist import training_task
from envace.learn.sequences import TrainingRow, TrainingSequence, sequences_of
from envace.policy.protocol import Completion, GenerationRequest
from envace.rollout.episode import run_episode
from envace.rollout.few_shot import lend
from envace.rollout.prompts import PromptSet, load_prompt_set
from envace.rollout.sources import make_source
from envace.types import JSON, Episode, FinishReason, Role, Sampling, replace, to_json
from envace.worlds.registry import load as load_worlds

if TYPE_CHECKING:
    from ray.actor import ActorHandle
    from verl.workers.rollout.llm_server import LLMServerClient
    from verl.workers.rollout.replica import TokenOutput


@dataclass(frozen=True)
class ProcessSetup:
    """What all episodes of a process share."""

    run: RunFile
    method: Method
    judge: Judge
    prompts: PromptSet


@lru_cache(maxsize=1)
def setup() -> ProcessSetup:
    run = current()
    load_worlds(run.params.rollout.worlds)
    method = run.params.resolved_method(run.arm)
    judge = make_judge(run.params.judge, method.judge_mode)
    return ProcessSetup(run, method, judge, load_prompt_set(run.params.rollout.prompt_set))


class RolloutServer(Protocol):
    """verl's rollout servers as an episode asks them."""

    async def generate(self, request_id: str, **request: JSON) -> TokenOutput: ...


class StickyServer:
    """verl's client for one episode on `hf` servers: its server is chosen once. verl asks its load balancer,
    an actor of its own, before and after every request, which costs a CPU more than the answer of a small
    model.
    """

    def __init__(self, client: LLMServerClient, episode_id: str):
        self.client, self.episode_id = client, episode_id
        self.chosen: tuple[str, ActorHandle] | None = None

    async def generate(self, request_id: str, **request: JSON) -> TokenOutput:
        if self.chosen is None:
            self.chosen = await self.client._acquire_server(self.episode_id)
        return await self.chosen[1].generate.remote(request_id=request_id, **request)

    def close(self) -> None:
        if self.chosen is not None:
            self.client._release_server(self.chosen[0], request_id=self.episode_id)


class ServerPolicy:
    """The policy served by verl's rollout servers. All calls of an episode go to one server, whose prefix
    cache then holds its history."""

    def __init__(self, server: RolloutServer, renderer: HFRenderer, work: Path):
        self.server, self.renderer, self.work = server, renderer, work

    async def generate(self, request: GenerationRequest) -> Completion:
        s = request.sampling
        wanted = {"temperature": s.temperature, "top_p": s.top_p, "top_k": s.top_k}
        wanted |= {"max_tokens": s.max_tokens, "logprobs": True}
        if s.seed is not None:
            wanted["seed"] = s.seed
        out = await self.server.generate(
            request.episode_id, prompt_ids=list(request.prompt_ids), sampling_params=wanted
        )
        beat(self.work)
        return Completion(
            text=self.renderer.decode(out.token_ids),
            output_ids=tuple(out.token_ids),
            logprobs=tuple(out.log_probs or ()),
            finish=self._finish(out),
            weight_version=out.extra_fields.get("global_steps"),
        )

    def _finish(self, out: TokenOutput) -> FinishReason:
        if out.stop_reason == "aborted":
            return FinishReason.ABORT
        ended = bool(out.token_ids) and out.token_ids[-1] in self.renderer.end_ids
        return FinishReason.STOP if ended else FinishReason.LENGTH


def episode_seed(run_seed: int, step: int, group: str, member: int) -> int:
    """The same episode gets the same seed in a resumed run."""
    digest = hashlib.sha256(f"{run_seed}/{step}/{group}/{member}".encode()).digest()
    return int.from_bytes(digest[:4], "big")


@register(AGENT_LOOP)
class EpisodeLoop(AgentLoopBase):
    """verl makes one of these for each episode."""

    async def run(self, sampling_params: dict[str, JSON], **kwargs: JSON) -> list[AgentLoopOutput]:
        s, step, member = setup(), int(kwargs["global_steps"]), int(kwargs["session_id"])
        rollout, group = s.run.params.rollout, str(kwargs["uid"])
        episode_id = f"{group}-{member}"
        tasks = tasks_of(s.run.tasks_file)
        task = lend(training_task(tasks[int(kwargs["index"])], s.method), tasks, s.method.few_shot)
        renderer = HFRenderer(self.tokenizer, rollout.enable_thinking)
        with self._server(episode_id, s.run.params.engine.rollout) as server:
            policy = ServerPolicy(server, renderer, Path(s.run.work))
            episode = await run_episode(
                task,
                policy=policy,
                source=make_source(task, s.method, policy, renderer, rollout),
                renderer=renderer,
                judge=s.judge,
                method=s.method,
                params=rollout,
                episode_id=episode_id,
                group_id=group,
                seed=episode_seed(s.run.seed, step, group, member),
                prompt_set=s.prompts,
                sampling=Sampling(
                    temperature=rollout.temperature, top_p=rollout.top_p, max_tokens=rollout.response_tokens
                ),
            )
        return outputs_of(episode, s.method, step, fallback_id=self.tokenizer.eos_token_id)

    def _server(self, episode_id: str, rollout: str) -> AbstractContextManager[RolloutServer]:
        if rollout == "hf":
            return closing(StickyServer(self.server_manager, episode_id))
        return nullcontext(self.server_manager)


def outputs_of(episode: Episode, method: Method, step: int, fallback_id: int) -> list[AgentLoopOutput]:
    """Sequences of an episode as verl's records, at least one; the last carries the episode for the trainer
    to save.
    """
    outputs = [output_of(sequence, step) for sequence in sequences_of(episode, method)]
    outputs = outputs or [_placeholder(episode, step, fallback_id)]
    outputs[-1].extra_fields["episode_json"] = json.dumps(to_json(light(episode)), ensure_ascii=False)
    return outputs


def light(episode: Episode) -> Episode:
    """The episode without the prompt ids and log-probabilities, which the rows hold and which would multiply
    its size by the number of generations.
    """
    generations = (replace(g, prompt_ids=(), logprobs=()) for g in episode.generations)
    return replace(episode, generations=tuple(generations))


def output_of(sequence: TrainingSequence, step: int, placeholder: bool = False) -> AgentLoopOutput:
    """One sequence as verl's record. Tokens nobody sampled have a log-probability of 0 and are masked: a NaN
    there would reach the gradient.
    """
    last, mask = sequence.rows[-1], sequence.loss_mask
    sampled = sequence.logprobs or (0.0,) * len(sequence.response_ids)
    return AgentLoopOutput(
        prompt_ids=list(sequence.prompt_ids),
        response_ids=list(sequence.response_ids),
        response_mask=list(mask),
        response_logprobs=[logprob if m else 0.0 for logprob, m in zip(sampled, mask, strict=True)],
        reward_score=last.reward or 0.0,  # verl's own statistics; the advantage reads the rows
        num_turns=last.turn + 1,
        metrics=AgentLoopMetrics(),
        extra_fields={
            # text: no container of verl's looks into it
            "rows": json.dumps([to_json(row) for row in sequence.rows]),
            "placeholder": placeholder,
            "reward_extra_info": {},
            "min_global_steps": step - 1,
            "max_global_steps": step - 1,
        },
    )


def _placeholder(episode: Episode, step: int, fallback_id: int) -> AgentLoopOutput:
    row = TrainingRow(
        role=Role.ACT,
        group_id=episode.group_id,
        episode_id=episode.id,
        turn=0,
        reward=episode.reward,
        length=1,
        trained=0,
    )
    ids = (fallback_id,)
    sequence = TrainingSequence(
        prompt_ids=ids, response_ids=ids, loss_mask=(0,), logprobs=(0.0,), rows=(row,)
    )
    return output_of(sequence, step, placeholder=True)
