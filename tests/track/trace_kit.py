"""Episodes made by hand (two turns, two calls at once, a rehearsed and a refused one, verdicts of a model)
and a real MLflow store to write them to.
"""

import pytest

from envace.io.redact import Redactor
from envace.track import traces
from envace.track.store import Store, default_uri
from envace.types import (
    Answer,
    Episode,
    FailureReason,
    FinishReason,
    Generation,
    Message,
    Observation,
    Role,
    Sampling,
    Source,
    StopReason,
    ToolCall,
    Verdict,
    replace,
)

GET = ToolCall(name="get_order", arguments={"id": "#kite"})
SEND = ToolCall(name="send", arguments={"to": "north"})
MESSAGES = (
    Message(role="system", content="You work at a desk."),
    Message(role="user", content="Where is #kite?"),
    Message(role="assistant", content="", thinking="I look.", calls=(GET, SEND)),
    Message(role="tool", name="get_order", content='{"state": "sent"}'),
    Message(role="tool", name="send", content='{"error": "no such tool"}'),
    Message(role="assistant", content="It was sent."),
    Message(role="user", content="Thanks, cancel it.", turn=1),
    Message(role="assistant", content="<tool_call>{", turn=1),
    Message(role="tool", content='{"error": "not JSON"}', turn=1),
    Message(role="assistant", content="I could not.", turn=1),
)
OBSERVATIONS = (
    Observation(content={"state": "sent"}, source=Source.REHEARSAL),
    Observation(
        content={"error": "no such tool"},
        source=Source.VALIDATOR,
        error=True,
        failure=FailureReason.UNKNOWN_TOOL,
    ),
    Observation(
        content={"error": "not JSON"}, source=Source.VALIDATOR, error=True, failure=FailureReason.BAD_JSON
    ),
)


def written(role, step, tokens, turn=0, **more):
    return Generation(
        role=role,
        turn=turn,
        step=step,
        prompt_ids=(1,) * 10,
        output_ids=(2,) * tokens,
        logprobs=(),
        text=f"words of {role.value} {step}",
        sampling=Sampling(),
        finish=FinishReason.STOP,
        **more,
    )


GENERATIONS = (
    written(Role.ACT, 0, 30),
    written(Role.REHEARSE, 0, 10),
    written(Role.ACT, 1, 20),
    written(Role.ACT, 2, 15, turn=1, failure=FailureReason.BAD_JSON),
    written(Role.ACT, 3, 25, turn=1),
)
VERDICTS = (
    Verdict(
        item_id="C0",
        turn=0,
        answer=Answer.YES,
        cost_tokens=90,
        seconds=0.5,
        cost=0.25,
        endpoint="judge:1",
        requests=2,
        retries=1,
        faults={"judge_timeout": 1},
    ),
    Verdict(item_id="C1", turn=0, answer=Answer.NO, seconds=0.5, endpoint="judge:1"),
    Verdict(item_id="C0", turn=1, answer=Answer.YES, seconds=1.0, cached=True),
)
EPISODE = Episode(
    id="s3p1-0",
    task_id="desk-train-7",
    group_id="s3p1",
    seed=5,
    prompt_set="abc",
    generations=GENERATIONS,
    messages=MESSAGES,
    observations=OBSERVATIONS,
    verdicts=VERDICTS,
    turn_rewards=(0.5, 1.0),
    reward=0.75,
    stop=StopReason.DONE,
    counters={"act": 4, "rehearse": 1, "calls": 2, "errors": 2},
    seconds=4.0,
)


def unscored(**changes):
    lost = replace(VERDICTS[2], answer=Answer.UNSCORED, reason="judge_timeout: 5 s", cached=False, requests=3)
    return replace(
        EPISODE,
        **{
            "verdicts": (*VERDICTS[:2], lost),
            "turn_rewards": (0.5,),
            "reward": None,
            "stop": StopReason.JUDGE_FAILED,
            "unscored_reason": "judge_failed: C0: judge_timeout: 5 s",
            "stop_detail": "C0: judge_timeout: 5 s",
            **changes,
        },
    )


def episodes(groups, members, **changes):
    return [
        replace(EPISODE, id=f"g{g}-{m}", group_id=f"g{g}", **changes)
        for g in range(groups)
        for m in range(members)
    ]


@pytest.fixture(scope="session")
def store(tmp_path_factory):
    state = tmp_path_factory.mktemp("store")
    return Store(default_uri(state), "envace", state, Redactor(environ={}))


@pytest.fixture
def log(store):
    return store.start_run("evaluate@a-b", kind="stage")


def write(log, found, sample=100, failed=100, tags=None, **more):
    candidates = traces.of_episodes(found, {"envace.policy": "start"})
    return traces.log_traces(log, candidates, sample=sample, failed=failed, tags=tags or {}, **more)


def read(log):
    """The traces of a run, as MLflow finds them."""
    experiment = log.client.get_run(log.run_id).info.experiment_id
    return list(log.client.search_traces(locations=[experiment], run_id=log.run_id, max_results=500))


def named(trace):
    return {s.name: s for s in trace.data.spans}
