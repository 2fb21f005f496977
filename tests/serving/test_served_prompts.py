"""The same prompts in training and when served: the probes as JSON through the real server."""

import asyncio
import shutil
from pathlib import Path

import pytest
from aiohttp.test_utils import TestClient, TestServer

import envace.policy
from envace.chat.probes import TOOL, check_same_prompts, probe_dialogues, prompts_in
from envace.chat.renderer import HFRenderer
from envace.config import parse
from envace.errors import EnvironmentUnready, ParamsError
from envace.policy.local import LocalPolicy
from envace.serving.checks import chat_body, check_served_prompts
from envace.serving.server import PolicyServer
from envace.types import Endpoint
from tasks.agents import agent_of
from tasks.run import Run

START = Path(envace.policy.__file__).parent / "start"


@pytest.fixture(scope="module")
def policy():
    return LocalPolicy(START, concurrency=4)


def check(policy, training, thinking, path="/v1", servers=False):
    """Run the start-up check against a server on a port of its own."""

    async def go():
        async with TestServer(PolicyServer(policy, ["tiny"], thinking=servers).app()) as server:
            endpoint = Endpoint(base_url=f"http://127.0.0.1:{server.port}{path}", model="tiny")
            await asyncio.to_thread(check_served_prompts, endpoint, training, thinking)

    asyncio.run(go())


@pytest.mark.parametrize("thinking", [False, True])
def test_the_server_shows_the_prompts_of_training(policy, thinking):
    check(policy, HFRenderer.of(START, thinking), thinking)
    check(policy, HFRenderer.of(START, thinking), thinking, servers=not thinking)  # the request decides


def test_a_server_that_thinks_otherwise_is_refused(policy):
    with pytest.raises(ParamsError, match="evaluation of tiny shows the policy other .* than training"):
        check(policy, HFRenderer.of(START, True), False)


def test_a_server_with_another_template_is_refused(policy, tmp_path):
    other = shutil.copytree(START, tmp_path / "other")
    template = other / "chat_template.jinja"
    text = template.read_text(encoding="utf-8")
    assert "loop.index0 > ns.last_user" in text
    template.write_text(
        text.replace("loop.index0 > ns.last_user", "true")
    )  # keeps the thoughts of earlier turns
    with pytest.raises(ParamsError, match="shows the policy other thoughts than training"):
        check(policy, HFRenderer.of(other, True), True)


def test_a_server_that_does_not_show_its_prompts_is_named(policy):
    with pytest.raises(
        EnvironmentUnready, match="/elsewhere/tokenize answers without token ids|cannot be asked"
    ):
        check(policy, HFRenderer.of(START), False, path="/elsewhere/v1")
    nobody = Endpoint(base_url="http://127.0.0.1:9/v1", model="tiny")
    with pytest.raises(EnvironmentUnready, match="ConnectError"):
        check_served_prompts(nobody, HFRenderer.of(START), False)


@pytest.mark.parametrize("thinking", [False, True])
def test_a_chat_request_puts_these_very_ids_into_the_policy(policy, monkeypatch, thinking):
    """Not only what /tokenize says: what the generator is handed."""
    handed = []
    submit = policy.batcher.submit

    async def watched(job):
        handed.append(list(job.prompt_ids))
        return await submit(job)

    monkeypatch.setattr(policy.batcher, "submit", watched)
    training = HFRenderer.of(START, thinking)
    prompts = [chat[:n] for chat in probe_dialogues() for n in prompts_in(chat)]

    async def ask():
        async with TestClient(TestServer(PolicyServer(policy, ["tiny"]).app())) as client:
            for messages in prompts:
                body = chat_body("tiny", messages, [TOOL], thinking) | {"max_tokens": 1, "temperature": 0}
                assert (await client.post("/v1/chat/completions", json=body)).status == 200

    asyncio.run(ask())
    shown = iter(handed)
    check_same_prompts(training, lambda messages, tools: next(shown))
    assert len(handed) == len(prompts) == 32


def test_thinking_otherwise_than_in_training_must_be_meant():
    bench = {"policies": ["start"], "benchmarks": ["bfcl"], "thinking": True}
    with pytest.raises(ParamsError, match="bench.thinking is true and rollout.enable_thinking is false"):
        parse({"bench": bench})
    assert parse({"bench": bench | {"other_thinking": True}}).bench.thinking
    assert parse({"bench": bench, "rollout": {"enable_thinking": True}}).bench.thinking
    other = {"q": {"base_url": "http://h/v1", "model": "m"}}
    baseline = {"bench": bench | {"policies": ["q"], "baselines": other}}
    assert parse(baseline).bench.thinking  # not trained here
    curve = {"runs": ["envace-1"], "steps": [0], "benchmarks": ["bfcl"]}  # of a policy that is
    with pytest.raises(ParamsError, match="bench.thinking is true and rollout.enable_thinking is false"):
        parse(baseline | {"dynamics": curve})
    assert parse(baseline | {"dynamics": curve | {"benchmarks": ["desk"]}}).bench.thinking


@pytest.mark.heavy
def test_the_bench_stage_refuses_weights_with_another_template_before_any_harness(tmp_path, monkeypatch):
    monkeypatch.setenv("ENVACE_STATE", str(tmp_path / ".state"))
    for name in ("start", "kept", "other"):
        shutil.copytree(START, tmp_path / "models" / name)
    template = tmp_path / "models/other/chat_template.jinja"
    text = template.read_text(encoding="utf-8")
    template.write_text(text.replace("loop.index0 > ns.last_user", "true"), encoding="utf-8")
    run = Run("bench@other-bfcl", parse({}), tmp_path)
    with agent_of(run, "kept") as (endpoint, _):
        assert endpoint.extra_body == {"top_k": -1} and endpoint.sampling.top_p == 1.0
    with (
        pytest.raises(ParamsError, match="evaluation of other shows the policy other thoughts"),
        agent_of(run, "other"),
    ):
        pytest.fail("a harness could have started")
    assert "kept is shown the prompts of training" in run.log_file.read_text()
