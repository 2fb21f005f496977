"""Who is asked: weights served by the trainer's vLLM as parameters say, baselines, parts of fixed lines."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from envace.config import RoleParams, parse
from envace.policy.card import write_pointer
from envace.serving import serve as serving
from envace.types import Endpoint, PolicyRef, Sampling
from tasks import agents
from tasks.run import Run

FAKE_VLLM = """#!{python}
import json, sys
from http.server import BaseHTTPRequestHandler, HTTPServer
argv = sys.argv[1:]
open("{log}", "w").write(json.dumps(argv))
class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        body = json.dumps({{"data": [{{"id": argv[argv.index("--served-model-name") + 1]}}]}}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *_): pass
HTTPServer(("127.0.0.1", int(argv[argv.index("--port") + 1])), Handler).serve_forever()
"""


def served_with(tmp_path, monkeypatch, policy: str, folder: Path, **base) -> tuple[list[str], Endpoint]:
    """The arguments that the vLLM beside engine.python was started with, and the endpoint handed out."""
    trainer = tmp_path / "trainer/bin"
    trainer.mkdir(parents=True)
    (trainer / "vllm").write_text(FAKE_VLLM.format(python=sys.executable, log=tmp_path / "argv.json"))
    (trainer / "vllm").chmod(0o755)
    monkeypatch.setenv("envaceSTATE", str(tmp_path / ".state"))
    section = {"policies": ["start"], "benchmarks": ["bfcl"], "thinking": True, "context": 2048}
    engine = {"device": "gpu", "python": str(trainer / "python"), "tensor_parallel": 4, "gpu_memory": 0.85}
    section["baselines"] = base
    given = {"bench": section, "engine": engine, "rollout": {"enable_thinking": True}}
    run = Run("bench@x-bfcl", parse(given), tmp_path)
    kind = "hub" if base else "trained"
    write_pointer(folder, PolicyRef(kind=kind, uri="a/b", revision="1" * 40, name=policy))
    with agents.agent_of(run, policy) as (endpoint, _):
        pass
    return json.loads((tmp_path / "argv.json").read_text()), endpoint


def test_local_weights_are_served_by_the_trainers_vllm_with_the_engines_share(tmp_path, monkeypatch):
    folder = tmp_path / "models/start"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text('{"max_position_embeddings": 4096}')
    compared = []  # the prompts of a server that is none cannot be
    monkeypatch.setattr(agents, "check_prompts", lambda run, endpoint, policy, own: compared.append(own))
    argv, endpoint = served_with(tmp_path, monkeypatch, "start", folder)
    text = " ".join(argv)
    assert argv[:4] == ["serve", str(folder), "--served-model-name", "start"]
    for part in (
        "--tensor-parallel-size 4",
        "--gpu-memory-utilization 0.85",
        "--max-model-len 2048",
        "--tool-call-parser hermes",
        "--reasoning-parser qwen3",
        '{"enable_thinking": true}',
    ):
        assert part in text
    assert endpoint.context == 2048 and compared == [folder]


def test_a_baselines_own_parser_thinking_and_body_count(tmp_path, monkeypatch):
    cache = tmp_path / "cache"
    for folder in (cache, tmp_path / "models/q"):
        folder.mkdir(parents=True)
    (cache / "config.json").write_text('{"max_position_embeddings": 32768}')
    asked = []
    monkeypatch.setattr(serving, "fetched", lambda repo, revision: asked.append((repo, revision)) or cache)
    base = {"uri": "a/b", "revision": "1" * 40, "tool_parser": "llama3_json", "thinking": "never"}
    base |= {"context": 8192, "extra_body": {"top_k": 20}}
    argv, endpoint = served_with(tmp_path, monkeypatch, "q", tmp_path / "models/q", q=base)
    text = " ".join(argv)
    assert asked == [("a/b", "1" * 40)] and argv[1] == str(cache)
    assert "--tool-call-parser llama3_json" in text and '{"enable_thinking": false}' in text
    assert "--reasoning-parser" not in text and "--max-model-len 8192" in text
    assert endpoint.extra_body["top_k"] == 20


def test_fixed_lines_are_served_for_as_long_as_they_are_needed():
    with agents.part(RoleParams(script=("hello",))) as endpoint:
        assert endpoint.base_url.startswith("http://127.0.0.1:") and endpoint.model == "scripted"
    asked = RoleParams(base_url="http://h/v1", model="u", temperature=0.5, max_tokens=9)
    with agents.part(asked) as endpoint:
        assert endpoint.sampling == Sampling(temperature=0.5, max_tokens=9)
    with agents.part(RoleParams()) as endpoint:
        assert endpoint is None
