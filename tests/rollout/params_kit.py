"""From params.yaml to rows: a scripted group of three episodes, and what is learned from it under some
switches.

Flows in: switches, sections of the parameters and who says what. Flows out: `Played`, the episodes, their
rows with advantages, and the streams they are trained in.
Invariant: what is called is what a training calls, in its order; only the words and the verdicts are
scripted.
"""

import asyncio
import json
import threading
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
from rollout_kit import PARAMS, RECORDS, RENDERER, TASK, TableJudge, call, record, rows_of, two_roles

from envace.chat.contract import render_result
from envace.config import parse, to_dict
from envace.judge import make_judge
from envace.judge.checklist import training_task
from envace.learn.advantage import advantages
from envace.learn.rewards import trained_rewards
from envace.learn.running import updated
from envace.learn.sequences import batch_rows, copies, generation_sequences, sequences_of, token_advantages
from envace.learn.weights import LOSS_AGG_MODE, verl_weights
from envace.rollout.episode import run_episode
from envace.rollout.few_shot import lend
from envace.rollout.prompts import load_prompt_set
from envace.rollout.sources import make_source
from envace.types import Observation, Role, Source
from envace.worlds.registry import load as load_worlds

SEED = 1
OTHER = replace(TASK, id="t-1", records=(record(0, "get", "#z", {"id": "#z", "state": "lent"}),))


def echo(request):
    return render_result({"of": request.call.arguments.get("id")})


@dataclass(frozen=True)
class Member:
    """One episode's words and verdicts: `no` lists (turn, item) that the judge denies."""

    act: list
    no: tuple = ()
    rehearse: Callable = echo
    unscored: tuple = ()


GOOD = [call("get"), "it is new", call("drop"), "dropped"]
# Rewards 1, (1/4 + 1)/2 = 5/8 and (1 + 0)/2 = 1/2.
GROUP = {"A": Member(GOOD), "B": Member(GOOD, no=((0, "C1"),)), "C": Member(["hi", "bye"], no=((1, "C0"),))}


@dataclass
class Played:
    params: object
    method: object
    episodes: dict
    rows: list  # of all episodes in order, copies behind them
    n_streams: dict  # sequences an episode is trained in, ACT's and REHEARSE's
    weights: dict  # (episode, role) -> weight in the loss of one token of each row

    def rows_of(self, name, role):
        return [r for r in self.rows if (r.episode_id, r.role) == (name, Role(role))]

    def advantages(self):
        """{episode: (ACT's, REHEARSE's)} in order."""
        return {
            name: tuple([r.advantage for r in self.rows_of(name, role)] for role in Role)
            for name in self.episodes
        }

    def prompts(self, name, role):
        return [RENDERER.decode(s.prompt_ids) for s in self._written(name, role)]

    def said(self, name, role):
        return [RENDERER.decode(s.response_ids) for s in self._written(name, role)]

    def _written(self, name, role):
        found = generation_sequences(self.episodes[name], self.method)
        return [s for s in found if s.rows[0].role is Role(role)]


def params_of(switches, **sections):
    """Parameters that override these switches."""
    rollout = {**to_dict(PARAMS), **sections.pop("rollout", {})}
    rest = {"train": {"runs": ["envace-1"]}, "eval": {"policies": ["start"]}, "tts": {"policy": "start"}}
    data = {"method": {"override": switches}, "rollout": rollout, "fidelity": {"policies": ["start"]}}
    return parse({"arms": {}, **rest, **data, **sections})


def learn(switches, members=None, *, task=TASK, renderer=RENDERER, means=None, steps=1, **sections):
    """Play the group and learn from it; `means` is the running mean before the first of `steps` steps."""
    params = params_of(switches, **sections)
    method = params.resolved_method("envace")
    load_worlds(params.rollout.worlds)
    members = members or GROUP
    task = lend(training_task(task, method), [task, OTHER], method.few_shot)
    episodes = asyncio.run(_all(params, method, task, members, renderer))
    rows = [replace(r, source=task.source) for e in episodes.values() for r in rows_of(e, method)]
    rows += [rows[i] for i in copies(method.padding, len(rows), 1, SEED, 1)]
    judged = {e.id: e.reward for e in episodes.values()}
    reward_R = trained_rewards(
        [r.reward for r in rows],
        [r.episode_id for r in rows],
        judged,
        scheme=method.reward,
        seed=SEED,
        step=1,
    )
    rows, means = [replace(r, reward=reward) for r, reward in zip(rows, reward_R)], dict(means or {})
    for _ in range(steps - 1):
        means = updated(means, rows, method)
    rows, _ = advantages(rows, method, means)
    streams = {name: sequences_of(e, method) for name, e in episodes.items()}
    counted = {
        name: tuple(sum(s.rows[0].role is role for s in found) for role in Role)
        for name, found in streams.items()
    }
    every = [s for found in streams.values() for s in found]
    return Played(params, method, episodes, rows, counted, _weights(every, method))


async def _all(params, method, task, members, renderer):
    return {name: await _one(params, method, task, name, m, renderer) for name, m in members.items()}


async def _one(params, method, task, name, member, renderer):
    policy = two_roles(member.act, member.rehearse)
    policy.renderer = renderer
    table = {key: "no" for key in member.no} | {key: "unscored" for key in member.unscored}
    judge = make_judge(params.judge, method.judge_mode) if params.judge.kind == "llm" else TableJudge(table)
    try:
        return await run_episode(
            task,
            policy=policy,
            source=make_source(task, method, policy, renderer, params.rollout),
            renderer=renderer,
            judge=judge,
            method=method,
            params=params.rollout,
            episode_id=name,
            group_id="g",
            seed=SEED,
            prompt_set=load_prompt_set(params.rollout.prompt_set),
        )
    finally:
        if params.judge.kind == "llm":
            await judge.aclose()


def _weights(streams, method):
    if not streams:
        return {}
    masks = [np.array(s.loss_mask) for s in streams]
    rows = batch_rows([s.rows for s in streams], masks, [True] * len(streams))
    given = verl_weights([int(m.sum()) for m in masks], LOSS_AGG_MODE[method.loss_weight])
    ones = token_advantages([replace(r, advantage=1.0) for r in rows], masks, method)
    found = {}
    for row in rows:
        weight = float(ones[row.sequence][row.start] * given[row.sequence])
        found.setdefault((row.episode_id, row.role.value), []).append(weight)
    return found


@dataclass
class Shop:
    """The world of `rollout.worlds: {params_shop: params_kit:Shop}`."""

    calls: list = field(default_factory=list)

    @classmethod
    def from_task(cls, task):
        return cls()

    def call(self, call):
        self.calls.append(call)
        return Observation(content={"true": len(self.calls)}, source=Source.ENVIRONMENT)

    def state(self):
        return len(self.calls)


IN_SHOP = replace(TASK, world={"kind": "params_shop"})
GROUNDED = replace(  # C1 of the first turn is about tool responses
    TASK,
    checklist=(
        (TASK.checklist[0][0], replace(TASK.checklist[0][1], focus_on="tool.content")),
        TASK.checklist[1],
    ),
)
RESULTS = [json.dumps(r.result) for r in RECORDS] + ['{"id": "#z", "state": "lent"}']


@contextmanager
def chat_server(answer):
    """The address of an OpenAI-compatible server that says what `answer(messages)` gives."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            choice = {
                "message": {"role": "assistant", "content": answer(body["messages"])},
                "finish_reason": "stop",
            }
            data = json.dumps({"choices": [choice], "usage": {"total_tokens": 1}}).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *args):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
