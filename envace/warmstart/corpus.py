"""What the tiny policy is warm-started on: the expert's words in exactly the prompts a run will show.

Flows in: desk tasks of the split "warm", a renderer. Flows out: `WarmSample`s, ids in and ids out, collected
from real episodes, private rehearsals and condensations that a scripted teacher plays.
Invariant: prompts come from the rollout and the rehearsal themselves, never from a copy of their text; what
the teacher does wrong on purpose is seen as history but never learnt as an answer.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass

from envace.chat.calls import render_calls
from envace.chat.renderer import Renderer, as_dicts
from envace.config import Params
from envace.config.method import Method
from envace.policy.protocol import Completion, GenerationRequest
from envace.rollout.episode import run_episode
from envace.rollout.prompts import PromptSet, load_prompt_set
from envace.rollout.rehearsal import RehearsalSource
from envace.tts import memory as notes
from envace.tts.rehearse import NoChecklist, rehearse
from envace.types import JSON, FinishReason, Memory, Message, Role, Task, ToolCall, replace
from envace.warmstart.tokenizer import TEMPLATE
from envace.worlds.expert import ExpertPolicy

PLAYED = "warm/"
"""How ids of episodes with records begin; private rehearsals have none."""
FAULTY_SHARE = 0.16
"""Of the ACT steps: the teacher makes a faulty call first."""
PRIVATE_SHARE = 0.25
"""Of the tasks: also rehearsed in private, evaluated and condensed."""
MEMORY_SHARE = 0.25
"""Of the tasks: played with a memory in the prompt."""
TRIED = re.compile(r"^(\w+) \{.* -> (.*)$", re.M)


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmSample:
    """One training sequence."""

    ids: tuple[int, ...]
    answer: tuple[bool, ...]
    """[len(ids)] True where the teacher wrote the token, which the policy must learn to write."""
    role: Role
    episode_id: str


class Teacher:
    """Plays every part of a run and keeps what it said: ACT and REHEARSE as the desk's expert,
    self-evaluation and condensation from the expert's own plan. Now and then an ACT step slips; that answer
    is not kept.
    """

    def __init__(self, tasks: Sequence[Task], renderer: Renderer, end_id: int, seed: int):
        self.expert = ExpertPolicy(tasks, renderer)
        self.tasks = {t.id: t for t in tasks}
        self.renderer, self.end_id, self.seed = renderer, end_id, seed
        self.kept: list[tuple[GenerationRequest, str]] = []

    async def generate(self, request: GenerationRequest) -> Completion:
        text, right = self._say(request)
        if right:
            self.kept.append((request, text))
        ids = (*self.renderer.encode(text), self.end_id)
        return Completion(text=text, output_ids=ids, logprobs=(0.0,) * len(ids), finish=FinishReason.STOP)

    def _say(self, request: GenerationRequest) -> tuple[str, bool]:
        """The text, and False where it is wrong on purpose."""
        rules = request.messages[0].content if request.messages else ""
        if request.role is Role.REHEARSE:
            return self.expert.speak(request), True
        if rules == notes.EVALUATE:
            return json.dumps(self._review(request)), True
        if rules == notes.CONDENSE:
            return json.dumps({"plan": self.plan(request.task_id), "avoid": []}), True
        rng = random.Random(f"{self.seed}/{request.episode_id}/{request.turn}/{request.step}")
        if rng.random() < FAULTY_SHARE and (call := faulty_call(rng, self.tasks[request.task_id])):
            return render_calls([call]), False
        return self.expert.speak(request), True

    def _review(self, request: GenerationRequest) -> dict[str, JSON]:
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
    offered = {t["function"]["name"]: set(t["function"]["parameters"]["properties"]) for t in task.tools}
    known = [r.call for r in task.records if r.call.name in offered]
    if not known:
        return None
    base = rng.choice(known)
    names = [n for n, value in base.named.items() if n.endswith("_id") and isinstance(value, str)]
    if not names:
        return None
    name = rng.choice(names)
    value = base.named[name]
    others = [r.call.named[name] for r in task.records if name in r.call.named]
    wrong = rng.choice([value.lstrip("#"), f"#{value.lstrip('#')[::-1]}", rng.choice(others)])
    tool = base.name
    if wrong in others:  # a known object, but the wrong thing done to it
        takes_it = [t for t, arguments in offered.items() if arguments == {name}]
        tool = rng.choice(takes_it) if takes_it else tool
    kept = base.named if tool == base.name else {}
    return ToolCall(name=tool, arguments={**kept, name: wrong})


async def play(tasks: Sequence[Task], teacher: Teacher, params: Params, prompt_set: PromptSet) -> None:
    """Every task once as training rolls it out; some also in private; the teacher keeps what it said."""
    method = params.resolved_method()
    for k, task in enumerate(tasks):
        rng = random.Random(f"{teacher.seed}/{task.id}")
        remembered = rng.random() < MEMORY_SHARE
        memory = _memory(rng, task, teacher, params.tts.memory_tokens) if remembered else None
        await _episode(task, teacher, params, method, prompt_set, k, memory)
        if rng.random() < PRIVATE_SHARE:
            mode, n = rng.choice(["parallel", "sequential"]), rng.choice([1, 2])
            await rehearse(
                task,
                policy=teacher,
                renderer=teacher.renderer,
                budget=params.tts,
                mode=mode,
                n=n,
                method=method,
                params=params.rollout,
                prompt_set=prompt_set,
                seed=teacher.seed,
            )


async def _episode(
    task: Task,
    teacher: Teacher,
    params: Params,
    method: Method,
    prompt_set: PromptSet,
    seed: int,
    memory: Memory | None,
) -> None:
    method = replace(method, source="rehearse")
    await run_episode(
        replace(task, checklist=((),) * task.n_turns),  # nobody judges: the reward is not used
        policy=teacher,
        source=RehearsalSource(teacher, teacher.renderer, prompt_set, method, params.rollout),
        renderer=teacher.renderer,
        judge=NoChecklist(),
        method=method,
        params=params.rollout,
        episode_id=PLAYED + task.id,
        group_id=task.id,
        seed=seed,
        prompt_set=prompt_set,
        memory=memory,
    )


def _memory(rng: random.Random, task: Task, teacher: Teacher, cap: int) -> Memory:
    """A memory like those a run will show, right most of the time."""
    tools, plan = notes.tool_names(task), teacher.plan(task.id)
    if plan and rng.random() < 0.3:
        plan[rng.randrange(len(plan))] = rng.choice(tools)
    failed = [f"{rng.choice(tools)} refused"] if rng.random() < 0.3 else []
    tries = rng.choice([1, 2])
    return notes.compose_lines({"plan": plan, "avoid": []}, failed, tries, task, teacher.renderer, cap)


def collect(
    tasks: Sequence[Task], renderer: Renderer, end_id: int, params: Params, seed: int
) -> list[WarmSample]:
    """Samples of all tasks. ACT generations of one token stream become one sample, as one sequence teaches
    them all at once. Prompt ids are those of the requests."""
    samples: list[WarmSample] = []
    latest: dict[str, int] = {}  # episode -> where its latest ACT sample stands
    for request, text in _played(tasks, renderer, end_id, params, seed):
        written = (*renderer.encode(text), end_id)
        marks = (False,) * len(request.prompt_ids) + (True,) * len(written)
        sample = WarmSample(
            ids=(*request.prompt_ids, *written),
            answer=marks,
            role=request.role,
            episode_id=request.episode_id,
        )
        at = latest.get(request.episode_id) if request.role is Role.ACT else None
        if at is not None and sample.ids[: len(samples[at].ids)] == samples[at].ids:
            earlier = samples[at].answer
            samples[at] = replace(sample, answer=earlier + sample.answer[len(earlier) :])
            continue
        if request.role is Role.ACT:
            latest[request.episode_id] = len(samples)
        samples.append(sample)
    return samples


def texts_of(tasks: Sequence[Task], params: Params, seed: int) -> list[str]:
    """The rendered text of the same plays, for making a tokenizer before there is one."""
    renderer = TextRenderer()
    wide = replace(params.rollout, prompt_tokens=10**6, response_tokens=10**6)
    roomy = replace(params.tts, memory_tokens=10**6, feedback_tokens=10**6)
    kept = _played(tasks, renderer, renderer.end_id, replace(params, rollout=wide, tts=roomy), seed)
    return [renderer.decode(r.prompt_ids) + text + "<|im_end|>\n" for r, text in kept]


def _played(
    tasks: Sequence[Task], renderer: Renderer, end_id: int, params: Params, seed: int
) -> list[tuple[GenerationRequest, str]]:
    """What a teacher was asked and answered right."""
    teacher = Teacher(tasks, renderer, end_id, seed)
    asyncio.run(play(tasks, teacher, params, load_prompt_set(params.rollout.prompt_set)))
    return teacher.kept


class TextRenderer:
    """The chat template with characters as ids: what the tokenizer will read, before it exists."""

    end_id = 0
    end_ids = frozenset({end_id})

    def __init__(self) -> None:
        from transformers.utils.chat_template_utils import _compile_jinja_template

        self._template = _compile_jinja_template(TEMPLATE.read_text(encoding="utf-8"))

    def render(self, messages: Sequence[Message], tools: Sequence[dict[str, JSON]] = ()) -> list[int]:
        switches = {"add_generation_prompt": True, "enable_thinking": False}
        return self.encode(self._template.render(messages=as_dicts(messages), tools=list(tools), **switches))

    def encode(self, text: str) -> list[int]:
        return [ord(c) for c in text]

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(chr(i) for i in ids if i != self.end_id)
