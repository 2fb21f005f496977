"""One episode inside verl: a registered agent loop around `envace.rollout.run_episode`.

A task's index and verl's handle to the rollout servers become one AgentLoopOutput for each training sequence,
with its role, its episode and its rows' rewards; the last one also carries the whole episode for the trainer
to save. Invariant: every dispatched episode comes back, one that produced no row as a single masked
placeholder; a reward that could not be had travels as None and never as a number.
"""

from __future__ import annotations

import hashlib
import json
from contextlib import closing, nullcontext
from functools import cache
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


@cache
def setup() -> tuple[RunFile, Method, Judge, PromptSet]:
    """What all episodes of a process share."""
    run = current()
    load_worlds(run.params.rollout.worlds)
    method = run.params.resolved_method(run.arm)
    judge = make_judge(run.params.judge, method.judge_mode)
    return run, method, judge, load_prompt_set(run.params.rollout.prompt_set)


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
        """What the server wrote, with a sign of life for the launcher."""
        s = request.sampling
        wanted = {"temperature": s.temperature, "top_p": s.top_p, "top_k": s.top_k}
        wanted |= {"max_tokens": s.max_tokens, "logprobs": True}
        wanted |= {} if s.seed is None else {"seed": s.seed}
        out = await self.server.generate(
            request.episode_id, prompt_ids=list(request.prompt_ids), sampling_params=wanted
        )
        beat(self.work)
        finish = FinishReason.LENGTH
        if out.stop_reason == "aborted":
            finish = FinishReason.ABORT
        elif out.token_ids and out.token_ids[-1] in self.renderer.end_ids:
            finish = FinishReason.STOP
        return Completion(
            text=self.renderer.decode(out.token_ids),
            output_ids=tuple(out.token_ids),
            logprobs=tuple(out.log_probs or ()),
            finish=finish,
            weight_version=out.extra_fields.get("global_steps"),
        )


def episode_seed(run_seed: int, step: int, group: str, member: int) -> int:
    """The same episode gets the same seed in a resumed run."""
    digest = hashlib.sha256(f"{run_seed}/{step}/{group}/{member}".encode()).digest()
    return int.from_bytes(digest[:4], "big")


@register(AGENT_LOOP)
class EpisodeLoop(AgentLoopBase):
    """verl makes one of these for each episode."""

    async def run(self, sampling_params: dict[str, JSON], **kwargs: JSON) -> list[AgentLoopOutput]:
        run, method, judge, prompt_set = setup()
        step, member, group = int(kwargs["global_steps"]), int(kwargs["session_id"]), str(kwargs["uid"])
        rollout, episode_id = run.params.rollout, f"{group}-{member}"
        tasks = tasks_of(run.tasks_file)
        task = lend(training_task(tasks[int(kwargs["index"])], method), tasks, method.few_shot)
        renderer = HFRenderer(self.tokenizer, rollout.enable_thinking)
        own = run.params.engine.rollout == "hf"
        sticky = closing(StickyServer(self.server_manager, episode_id)) if own else None
        with sticky or nullcontext(self.server_manager) as server:
            policy = ServerPolicy(server, renderer, Path(run.work))
            episode = await run_episode(
                task,
                policy=policy,
                source=make_source(task, method, policy, renderer, rollout),
                renderer=renderer,
                judge=judge,
                method=method,
                params=rollout,
                episode_id=episode_id,
                group_id=group,
                seed=episode_seed(run.seed, step, group, member),
                prompt_set=prompt_set,
                sampling=Sampling(
                    temperature=rollout.temperature, top_p=rollout.top_p, max_tokens=rollout.response_tokens
                ),
            )
        return outputs_of(episode, method, step, fallback_id=self.tokenizer.eos_token_id)


def outputs_of(episode: Episode, method: Method, step: int, fallback_id: int) -> list[AgentLoopOutput]:
    """Sequences of an episode as verl's records, at least one; the last carries the episode for the trainer
    to save, without the prompt ids and log-probabilities, which the rows hold and which would multiply its
    size by the number of generations.
    """
    outputs = [output_of(sequence, step) for sequence in sequences_of(episode, method)]
    if not outputs:
        about = {"group_id": episode.group_id, "episode_id": episode.id, "reward": episode.reward}
        row, ids = TrainingRow(role=Role.ACT, turn=0, length=1, trained=0, **about), (fallback_id,)
        nothing = TrainingSequence(
            prompt_ids=ids, response_ids=ids, loss_mask=(0,), logprobs=(0.0,), rows=(row,)
        )
        outputs = [output_of(nothing, step, placeholder=True)]
    light = [replace(g, prompt_ids=(), logprobs=()) for g in episode.generations]
    said = to_json(replace(episode, generations=tuple(light)))
    outputs[-1].extra_fields["episode_json"] = json.dumps(said, ensure_ascii=False)
    return outputs


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
