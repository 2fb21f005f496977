"""Small inputs after public reports on other projects, with the outcome a user is owed.

Each test names the report it was made after; a fault found so stands for its kind."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from chat_server_kit import serving

from envace.bench.tau2.parse import parse_folder
from envace.chat.calls import parse_assistant
from envace.chat.validate import validate_call
from envace.config import JudgeParams, load
from envace.engine.overrides import trainer_env
from envace.io.addresses import base_address, below
from envace.io.files import append_jsonl
from envace.judge.llm import LLMJudge
from envace.judge.llm_requests import read_turn
from envace.policy.protocol import Completion, GenerationRequest
from envace.rollout.endpoint import EndpointPolicy
from envace.serving.requests import ChatRequest, RequestRefused, read
from envace.types import Answer, Endpoint, FinishReason, Item, Message, Role, Sampling, Task, ToolCall

HERE = Path(__file__).parent
REQUEST = GenerationRequest(
    role=Role.ACT,
    messages=(Message(role="user", content="which wards?"),),
    prompt_ids=(1,),
    sampling=Sampling(),
    episode_id="e",
    task_id="t",
    turn=0,
    step=0,
)
ITEM = Item(id="C0", question="q", pass_condition="p", focus_on="assistant.content.thinking", weight=1.0)


def ask(url: str, attempts: int = 1) -> Completion:
    """What a policy behind a server writes."""

    async def go() -> Completion:
        endpoint = Endpoint(base_url=f"{url}/v1", model="m")
        async with EndpointPolicy(endpoint, backoff_s=0.001, attempts=attempts) as policy:
            return await policy.generate(REQUEST)

    return asyncio.run(go())


def choice(message: dict, finish: str = "stop") -> str:
    return json.dumps({"choices": [{"message": {"role": "assistant", **message}, "finish_reason": finish}]})


@pytest.mark.parametrize("arguments", ["", None, "  ", "{}"])
def test_vllm_19419_arguments_left_empty_mean_none(arguments: str | None) -> None:
    """Also langchain 27602, autogen 7128."""
    call = {"id": "c1", "type": "function", "function": {"name": "list_wards", "arguments": arguments}}
    body = choice({"content": None, "tool_calls": [call]}, "tool_calls")
    with serving(lambda n: (200, body, 0)) as server:
        found = parse_assistant(ask(server.url).text)
    assert [(c.name, c.arguments) for c in found.calls] == [("list_wards", {})]
    history = {"role": "assistant", "content": None, "tool_calls": [call]}
    asked = read(ChatRequest, {"model": "m", "messages": [{"role": "user", "content": "x"}, history]})
    assert asked is not None


def checked(rows: str) -> str:
    command = [sys.executable, "-m", "envace.data", "check", str(HERE / rows)]
    return subprocess.run(command, capture_output=True, text=True).stdout


def first_calls(rows: str) -> list[tuple[str, ToolCall, list]]:
    found = []
    for line in (HERE / rows).read_text().splitlines():
        row = json.loads(line)
        f = row["messages"][1]["tool_calls"][0]["function"]
        found.append(
            (row["uuid"], ToolCall(name=f["name"], arguments=json.loads(f["arguments"])), row["tools"])
        )
    return found


def test_open_webui_87_a_reference_to_nowhere_is_named_by_the_check_and_never_raises_in_an_episode() -> None:
    """Also Qwen-Agent 873, json-schema-validator 180."""
    said = checked("references.jsonl")
    assert "3 rows, 1 usable" in said and said.count("bad_tools") >= 2
    usable = [
        validate_call(call, tools) for uuid, call, tools in first_calls("references.jsonl") if uuid == "r-3"
    ]
    assert usable == [(None, "")]


def test_mellea_989_check_and_episode_agree_on_what_a_schema_allows() -> None:
    """Also pydantic 6056: unions and references at the top of `parameters`."""
    assert "4 usable" in checked("unions.jsonl")
    assert {validate_call(call, tools) for _, call, tools in first_calls("unions.jsonl")} == {(None, "")}


def test_bernstein_5919_a_torn_last_line_of_errors_loses_no_finished_result(tmp_path: Path) -> None:
    simulation = {"id": "x", "task_id": "1", "trial": 0, "seed": 7, "termination_reason": "user_stop"}
    simulation |= {"reward_info": {"reward": 1.0}, "messages": [], "duration": 1.0}
    (tmp_path / "results.json").write_text(json.dumps({"tasks": [{"id": "1"}], "simulations": [simulation]}))
    error = {
        "task_id": "2",
        "seed": 7,
        "error_type": "Timeout",
        "error": "no answer",
        "error_traceback": "...",
    }
    whole = json.dumps(error)
    (tmp_path / "errors.jsonl").write_text(whole + "\n" + whole[: len(whole) // 2])
    found = parse_folder(tmp_path, "airline", [("airline/1", 0)])
    assert [(r.task, r.status, r.reward) for r in found] == [("airline/1", "scored", 1.0)]


def test_hermes_agent_112575_a_line_appended_to_a_torn_one_is_lost_with_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    append_jsonl(path, {"step": 1})
    with path.open("a") as f:
        f.write('{"step": 2, "train/rew')  # killed here
    append_jsonl(path, {"step": 2})
    assert [json.loads(line)["step"] for line in path.read_text().splitlines() if line.endswith("}")] == [
        1,
        2,
    ]


def test_hermes_agent_5834_a_proxy_of_the_environment_is_not_asked_for_loopback(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also llama_index 13640: the policy behind a server, and the judge."""
    for name in [k for k in os.environ if "proxy" in k.lower()]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    task = Task(id="t", prefix=REQUEST.messages, tools=(), checklist=((ITEM,),), source="desk")

    async def judged(url: str) -> Answer:
        judge = LLMJudge(JudgeParams(kind="llm", base_url=url, model="m", attempts=1), backoff_s=0.001)
        (found,) = await judge.judge_turn(
            task, 0, (*REQUEST.messages, Message(role="assistant", content="y"))
        )
        await judge.aclose()
        return found.answer

    body = choice({"content": '{"C0": {"why": "w", "answer": true}}'})
    with serving(lambda n: (200, body, 0)) as server:
        assert ask(server.url).text.startswith('{"C0"')
        assert asyncio.run(judged(f"{server.url}/v1")) is Answer.YES


def test_mini_swe_agent_902_an_error_inside_a_200_is_asked_again_and_quoted_in_the_end() -> None:
    """Also litellm 8448."""
    busy = json.dumps({"error": {"message": "upstream is at its limit", "code": 429}})
    with serving(lambda n: (200, busy if n == 1 else choice({"content": "hello"}), 0)) as server:
        assert ask(server.url, attempts=3).text == "hello" and len(server.bodies) == 2
    with serving(lambda n: (200, busy, 0)) as server:
        with pytest.raises(Exception, match="upstream is at its limit"):
            ask(server.url, attempts=3)


def test_openai_agents_4188_what_a_provider_withheld_is_no_empty_message_of_the_policy() -> None:
    """Also librefang 3450."""
    with serving(lambda n: (200, choice({"content": None}, "content_filter"), 0)) as server:
        with pytest.raises(Exception, match="filter"):
            ask(server.url)
    with serving(lambda n: (200, choice({"content": None, "refusal": "I will not do that."}), 0)) as server:
        found = ask(server.url)
    assert found.text == "I will not do that." and found.finish is FinishReason.STOP


QUOTES = {
    "plain": json.dumps({"C0": {"why": "the thought was closed by </think> too early", "answer": False}}),
    "fenced": "```json\n" + json.dumps({"C0": {"why": "it wrote </think> twice", "answer": True}}) + "\n```",
    "after thinking": "<think>see</think>\n"
    + json.dumps({"C0": {"why": "ends with </think>", "answer": True}}),
    "a fence": json.dumps({"C0": {"why": "it began with ```json and stopped ```", "answer": True}}),
}


@pytest.mark.parametrize("name", QUOTES)
def test_archipelago_132_a_reason_may_quote_the_marks_that_are_cut_from_replies(name: str) -> None:
    assert read_turn(QUOTES[name], [ITEM]) == {"C0": Answer.NO if name == "plain" else Answer.YES}


CHAT = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
WRONG_TYPES = (
    {"stop": 5},
    {"stream_options": True},
    {"tools": 3},
    {"chat_template_kwargs": 3},
    {"messages": [{"role": "assistant", "tool_calls": 3}]},
    {"messages": [{"role": "tool", "content": "{}", "tool_call_id": ["a"]}]},
    {"temperature": "hot"},
    {"messages": {"role": "user"}},
    {"messages": [{"role": "user", "content": 4}]},
)
NOT_DONE = (
    {"guided_json": {"type": "object"}},
    {"structured_outputs": {"json": {}}},
    {"stop_token_ids": [3]},
    {"min_tokens": 20},
    {"ignore_eos": True},
    {"chat_template": "{{ 1 }}"},
    {"reasoning_effort": "high"},
    {"response_format": {"type": "json_object"}},
)


@pytest.mark.parametrize("more", WRONG_TYPES + NOT_DONE, ids=str)
def test_vllm_35438_and_12692_a_wrong_type_and_a_field_that_is_not_done_are_a_400_by_name(more: dict) -> None:
    with pytest.raises(RequestRefused, match=next(iter(more))) as refused:
        read(ChatRequest, CHAT | more)
    assert refused.value.status == 400


def test_vllm_12225_fields_without_an_effect_are_taken() -> None:
    assert read(ChatRequest, CHAT | {"user": "u1", "metadata": {}})


ADDRESSES = {
    "http://h:8000": "http://h:8000/v1/chat/completions",
    "http://h:8000/v1/": "http://h:8000/v1/chat/completions",
    "https://g.test/v1beta/openai": "https://g.test/v1beta/openai/chat/completions",
    "https://z.test/api/paas/v4/": "https://z.test/api/paas/v4/chat/completions",
    "http://h:8000/v1/chat/completions": "http://h:8000/v1/chat/completions",
}


@pytest.mark.parametrize("base", ADDRESSES)
def test_neograph_172_a_base_address_keeps_its_path(base: str) -> None:
    """Also changedetection.io 4168, kilocode 2035."""
    assert below(base_address(base), "chat/completions") == ADDRESSES[base]


def test_ray_7977_an_address_in_the_shell_is_not_the_trainers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also kuberay 373; ray 64755: a token of the environment keeps Ray out of the home."""
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    told = trainer_env(load("params.yaml"), Path("run.json"), Path("work"))
    assert "RAY_ADDRESS" not in told and len(told["RAY_AUTH_TOKEN"]) == 64  # nothing is left in the home


@pytest.mark.heavy
@pytest.mark.parametrize(
    "proxy", [{"http_proxy": "http://127.0.0.1:9"}, {"ALL_PROXY": "socks5://127.0.0.1:9"}]
)
def test_prefect_12896_a_stage_reaches_its_own_servers_beside_a_proxy(tmp_path: Path, proxy: dict) -> None:
    named = ("PREFECT_", "MLFLOW_", "ENVACE_")
    env = {k: v for k, v in os.environ.items() if "proxy" not in k.lower() and not k.startswith(named)}
    root = HERE.parents[1]
    env |= proxy | {"https_proxy": "http://127.0.0.1:9", "PYTHONPATH": str(root)}
    shutil.copy(root / "params.yaml", tmp_path)  # the stage writes below its folder, not into the checkout
    command = [sys.executable, "-m", "flows.report"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, env=env, cwd=tmp_path)
    assert done.returncode == 0 and (tmp_path / "report/index.html").is_file(), done.stdout + done.stderr
