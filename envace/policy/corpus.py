"""What the tiny policy is warm-started on: the expert's words in exactly the prompts a run will show.

Flows in: desk tasks of the split "warm", a renderer. Flows out: `Sample`s, ids in and ids out, collected from
real episodes, private rehearsals and condensations that a scripted teacher plays.
Invariant: prompts come from the rollout and the rehearsal themselves, never from a copy of their text; what the
teacher does wrong on purpose is seen as history but never learnt as an answer.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from envace.config import Params, RolloutParams, TTSParams
from envace.config.method import Method
from envace.tts import memory as notes
from envace.types import Memory, Message, Role, Task, ToolCall, replace

if TYPE_CHECKING:
    from envace.policy.protocol import Completion, GenerationRequest

PLAYED = "warm/"  # how ids of episodes with records begin; private rehearsals have none
SLIP = 0.16  # share of ACT steps at which the teacher makes a faulty call first
PRIVATE = 0.25  # share of tasks also rehearsed in private, evaluated and condensed
WITH_MEMORY = 0.25  # share of tasks played with a memory in the prompt
TRIED = re.compile(r"^(\w+) \{.* -> (.*)$", re.M)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One training sequence: which of its ids the policy must learn to write."""

    ids: tuple[int, ...]
    answer: tuple[bool, ...]  # [len(ids)] True where the teacher wrote the token
    role: Role
    episode_id: str


class Teacher:
    """Plays every part of a run and keeps what it said: ACT and REHEARSE as the desk's expert, self-evaluation
    and condensation from the expert's own plan. Now and then an ACT step slips; that answer is not kept."""

    def __init__(self, tasks: Sequence[Task], renderer: Any, end_id: int, seed: int):
        from envace.worlds.expert import ExpertPolicy

        self.expert = ExpertPolicy(tasks, renderer)
        self.tasks = {t.id: t for t in tasks}
        self.renderer, self.end_id, self.seed = renderer, end_id, seed
        self.kept: list[tuple[GenerationRequest, str]] = []

    async def generate(self, request: GenerationRequest) -> Completion:
        from envace.policy.protocol import Completion
        from envace.types import FinishReason

        text, slipped = self._say(request)
        if not slipped:
            self.kept.append((request, text))
        ids = (*self.renderer.encode(text), self.end_id)
        return Completion(text=text, output_ids=ids, logprobs=(0.0,) * len(ids), finish=FinishReason.STOP)

    def _say(self, request: GenerationRequest) -> tuple[str, bool]:
        rules = request.messages[0].content if request.messages else ""
        if request.role is Role.REHEARSE:
            return self.expert.speak(request), False
        if rules == notes.EVALUATE:
            return json.dumps(self._review(request)), False
        if rules == notes.CONDENSE:
            return json.dumps({"plan": self.plan(request.task_id), "avoid": []}), False
        rng = random.Random(f"{self.seed}/{request.episode_id}/{request.turn}/{request.step}")
        if rng.random() < SLIP and (call := faulty_call(rng, self.tasks[request.task_id])):
            return _block(call), True
        return self.expert.speak(request), False

    def _review(self, request: GenerationRequest) -> dict[str, Any]:
        tried = TRIED.findall(request.messages[1].content)
        risky = sorted({name for name, answer in tried if '"error"' in answer})
        plan = self.plan(request.task_id)
        good = not risky and [name for name, _ in tried] == plan
        return {"success": 0.9 if good else 0.3, "risky": risky, "next": plan}

    def plan(self, task_id: str) -> list[str]:
        """The expert's tools in the first turn, in order."""
        return [c.name for m in self.tasks[task_id].reference if m.turn == 0 for c in m.calls]


def faulty_call(rng: random.Random, task: Task) -> ToolCall | None:
    """A call a weak agent might make: an id without its mark, an id that does not exist, a rushed change."""
    offered = {t["function"]["name"] for t in task.tools}
    known = [r for r in task.records if r.call.name in offered]
    if not known:
        return None
    base = rng.choice(known).call
    names = [
        name for name, value in base.arguments.items() if name.endswith("_id") and isinstance(value, str)
    ]
    if not names:
        return None
    name = rng.choice(names)
    value = base.arguments[name]
    others = [r.call.arguments[name] for r in task.records if name in r.call.arguments]
    wrong = rng.choice([value.lstrip("#"), f"#{value.lstrip('#')[::-1]}", rng.choice(others)])
    tool = base.name
    if wrong in others:  # a known object, but the wrong thing done to it
        takes = [
            t["function"] for t in task.tools if set(t["function"]["parameters"]["properties"]) == {name}
        ]
        tool = rng.choice(takes)["name"] if takes else tool
    return ToolCall(
        name=tool, arguments={**base.arguments, name: wrong} if tool == base.name else {name: wrong}
    )


def _block(call: ToolCall) -> str:
    return f"<tool_call>\n{json.dumps({'name': call.name, 'arguments': call.arguments})}\n</tool_call>"


async def play(tasks: Sequence[Task], teacher: Teacher, params: Params, prompt_set: Any) -> None:
    """Every task once as training rolls it out; some also in private; the teacher keeps what it said."""
    method = params.resolved_method()
    for k, task in enumerate(tasks):
        rng = random.Random(f"{teacher.seed}/{task.id}")
        memory = _memory(rng, task, teacher, params.tts) if rng.random() < WITH_MEMORY else None
        await _episode(
            task, teacher, params.rollout, replace(method, source="rehearse"), prompt_set, k, memory
        )
        if rng.random() < PRIVATE:
            await _private(rng, task, teacher, params, method, prompt_set)


async def _episode(
    task: Task,
    teacher: Teacher,
    rollout: RolloutParams,
    method: Method,
    prompt_set: Any,
    k: int,
    memory: Memory | None,
) -> None:
    from envace.rollout.episode import run_episode
    from envace.rollout.rehearsal import RehearsalSource
    from envace.tts.rehearse import NoChecklist

    await run_episode(
        replace(task, checklist=((),) * task.n_turns),  # nobody judges: the reward is not used
        policy=teacher,
        source=RehearsalSource(teacher, teacher.renderer, prompt_set, method, rollout),
        renderer=teacher.renderer,
        judge=NoChecklist(),
        method=method,
        params=rollout,
        episode_id=PLAYED + task.id,
        group_id=task.id,
        seed=k,
        prompt_set=prompt_set,
        memory=memory,
    )


async def _private(
    rng: random.Random, task: Task, teacher: Teacher, params: Params, method: Method, prompt_set: Any
) -> None:
    from envace.tts.rehearse import rehearse

    await rehearse(
        task,
        policy=teacher,
        renderer=teacher.renderer,
        budget=params.tts,
        mode=rng.choice(["parallel", "sequential"]),
        n=rng.choice([1, 2]),
        method=method,
        params=params.rollout,
        prompt_set=prompt_set,
        seed=teacher.seed,
    )


def _memory(rng: random.Random, task: Task, teacher: Teacher, budget: TTSParams) -> Memory | None:
    """A memory like those a run will show, right most of the time."""
    tools = notes.tool_names(task)
    plan = teacher.plan(task.id)
    if plan and rng.random() < 0.3:
        plan[rng.randrange(len(plan))] = rng.choice(tools)
    failed = [f"{rng.choice(tools)} refused"] if rng.random() < 0.3 else []
    found = {"plan": plan, "avoid": []}
    return notes.compose_lines(
        found, failed, rng.choice([1, 2]), task, teacher.renderer, budget.memory_tokens
    )


def collect(tasks: Sequence[Task], renderer: Any, end_id: int, params: Params, seed: int) -> list[Sample]:
    """Samples of all tasks. ACT generations of one token stream become one sample, as one sequence teaches
    them all at once. Prompt ids are those of the requests."""
    from envace.rollout.prompts import load_prompt_set

    teacher = Teacher(tasks, renderer, end_id, seed)
    asyncio.run(play(tasks, teacher, params, load_prompt_set(params.rollout.prompt_set)))
    samples: list[Sample] = []
    stream: dict[str, int] = {}  # episode -> its latest ACT sample
    for request, text in teacher.kept:
        sample = _sample(request, (*renderer.encode(text), end_id))
        at = stream.get(request.episode_id) if request.role is Role.ACT else None
        if at is not None and sample.ids[: len(samples[at].ids)] == samples[at].ids:
            samples[at] = _merged(samples[at], sample)
            continue
        if request.role is Role.ACT:
            stream[request.episode_id] = len(samples)
        samples.append(sample)
    return samples


def _sample(request: GenerationRequest, answer: tuple[int, ...]) -> Sample:
    ids = (*request.prompt_ids, *answer)
    marks = (False,) * len(request.prompt_ids) + (True,) * len(answer)
    return Sample(ids=ids, answer=marks, role=request.role, episode_id=request.episode_id)


def _merged(earlier: Sample, sample: Sample) -> Sample:
    return replace(sample, answer=earlier.answer + sample.answer[len(earlier.answer) :])


def texts_of(tasks: Sequence[Task], params: Params, seed: int) -> list[str]:
    """The rendered text of the same plays, for making a tokenizer before there is one."""
    renderer = TextRenderer()
    wide = replace(params.rollout, prompt_tokens=10**6, response_tokens=10**6)
    roomy = replace(params.tts, memory_tokens=10**6, feedback_tokens=10**6)
    from envace.rollout.prompts import load_prompt_set

    teacher = Teacher(tasks, renderer, TextRenderer.END, seed)
    prompts = load_prompt_set(wide.prompt_set)
    asyncio.run(play(tasks, teacher, replace(params, rollout=wide, tts=roomy), prompts))
    return [renderer.decode(r.prompt_ids) + text + "<|im_end|>\n" for r, text in teacher.kept]


class TextRenderer:
    """The chat template with characters as ids: what the tokenizer will read, before it exists."""

    END = end_id = 0
    end_ids = frozenset({END})

    def __init__(self) -> None:
        from transformers.utils.chat_template_utils import _compile_jinja_template

        from envace.policy.tokenizer import TEMPLATE

        self._template = _compile_jinja_template(TEMPLATE.read_text(encoding="utf-8"))

    def render(self, messages: Sequence[Message], tools: Sequence[dict[str, Any]] = ()) -> list[int]:
        from envace.chat.renderer import as_dicts

        return self.encode(
            self._template.render(
                messages=as_dicts(messages),
                tools=list(tools),
                add_generation_prompt=True,
                enable_thinking=False,
            )
        )

    def encode(self, text: str) -> list[int]:
        return [ord(c) for c in text]

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(chr(i) for i in ids if i != self.END)
