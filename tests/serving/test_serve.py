"""A checkpoint served by a process of its own, and gone afterwards."""

import json
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import psutil
import pytest

import envace.policy
from envace.errors import EnvironmentUnready, StageFailed
from envace.policy import hub
from envace.serving import serve as serving
from envace.serving.serve import Vllm, command, free_port, serve

START = Path(envace.policy.__file__).parent / "start"
TOOL = {"type": "function", "function": {"name": "get_order", "parameters": {"type": "object"}}}


def test_the_vllm_command_serves_tool_calls_under_every_name(monkeypatch):
    monkeypatch.setattr(serving.shutil, "which", lambda name: "/opt/bin/vllm")
    half = Vllm(tensor_parallel=2, gpu_memory=0.5)
    argv = command(Path("models/a"), "gpu", 8001, ["mine", "gpt-4.1"], context=32768, vllm=half)
    assert argv[1:3] == ["serve", "models/a"]
    text = " ".join(argv)
    for part in (
        "--served-model-name mine gpt-4.1 --host 127.0.0.1 --port 8001",
        "--enable-auto-tool-choice --tool-call-parser hermes",
        "--tensor-parallel-size 2 --gpu-memory-utilization 0.5",
        '--default-chat-template-kwargs {"enable_thinking": false}',
        "--max-model-len 32768",
    ):
        assert part in text
    assert "--reasoning-parser" not in text
    assert "--reasoning-parser qwen3" in " ".join(command(Path("a"), "gpu", 1, ["m"], thinking=True))


def test_without_vllm_or_a_model_the_fix_is_named(monkeypatch, tmp_path):
    monkeypatch.setattr(serving.shutil, "which", lambda name: None)
    monkeypatch.setattr(serving.sys, "executable", str(tmp_path / "python"))
    with pytest.raises(EnvironmentUnready, match="vllm is not installed"):
        command(Path("a"), "gpu", 1, ["m"])
    with pytest.raises(EnvironmentUnready, match="holds no model"), serve(tmp_path, name="m", device="cpu"):
        pass


def test_a_hub_model_is_its_files_at_the_revision(monkeypatch, tmp_path):
    asked = []
    monkeypatch.setattr(
        "huggingface_hub.snapshot_download",
        lambda repo, **more: asked.append((repo, more["revision"])) or str(START),
    )
    stand_in(monkeypatch, "raise RuntimeError('stop here')")
    with (
        pytest.raises(StageFailed, match="stop here"),
        serve("org/model", name="m", device="cpu", revision="abc", log=tmp_path / "l"),
    ):
        pass
    assert asked == [("org/model", "abc")]

    def nobody(repo, **more):
        raise OSError("no route")

    monkeypatch.setattr("huggingface_hub.snapshot_download", nobody)
    with pytest.raises(EnvironmentUnready, match="org/model at revision abc could not be had"):
        hub.fetched("org/model", "abc")


def stand_in(monkeypatch, code: str) -> None:
    """Some program in the place of the server."""
    monkeypatch.setattr(
        serving, "command", lambda folder, device, port, *a: [sys.executable, "-c", code, str(port)]
    )


def test_a_server_that_ends_or_never_answers_is_named_with_its_log(monkeypatch, tmp_path):
    log = tmp_path / "s.log"
    stand_in(monkeypatch, "raise RuntimeError('no memory left')")
    with (
        pytest.raises(StageFailed, match="no memory left") as caught,
        serve(START, name="m", device="cpu", log=log),
    ):
        pass
    assert caught.value.log == log
    stand_in(monkeypatch, "import time; time.sleep(60)")
    with (
        pytest.raises(StageFailed, match="did not answer within 2 s"),
        serve(START, name="m", device="cpu", log=log, deadline_s=2),
    ):
        pass


def test_a_port_that_is_taken_meanwhile_is_tried_anew(monkeypatch, tmp_path):
    stand_in(monkeypatch, "raise OSError(98, 'address already in use')")
    said: list[str] = []
    with (
        pytest.raises(StageFailed, match="already in use"),
        serve(START, name="m", device="cpu", log=tmp_path / "l", say=said.append),
    ):
        pass
    assert len([line for line in said if line.startswith("serving")]) == serving.TRIES
    assert free_port() > 1024


@pytest.mark.heavy
def test_the_tiny_policy_answers_four_at_once_and_is_gone_afterwards_also_after_an_error(tmp_path):
    def ask(i: int) -> dict:
        messages = [{"role": "user", "content": "Please cancel order #kite for me."}]
        body = {"model": "judge", "messages": messages, "tools": [TOOL], "temperature": 0, "max_tokens": 60}
        return httpx.post(
            f"{endpoint.base_url}/chat/completions", json=body | {"seed": i}, timeout=120
        ).json()

    before, own = threading.active_count(), {"device": "cpu", "log": tmp_path / "s.log"}
    with (
        pytest.raises(KeyError),
        serve(START, name="tiny", aliases=["judge"], **own) as endpoint,
        ThreadPoolExecutor(4) as pool,
    ):
        assert (endpoint.model, endpoint.context) == ("tiny", 1024)
        replies = list(pool.map(ask, range(4)))
        port = endpoint.base_url.split(":")[-1].split("/")[0]
        servers = [p for p in psutil.process_iter(["cmdline"]) if port in (p.info["cmdline"] or ())]
        raise KeyError("mine")
    assert servers and not [p for p in servers if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]
    for reply in replies:
        call = reply["choices"][0]["message"]["tool_calls"][0]["function"]
        assert call["name"] == "get_order" and json.loads(call["arguments"])
    with pytest.raises(httpx.TransportError):
        httpx.get(f"{endpoint.base_url}/models", timeout=2)
    assert threading.active_count() <= before + 1
