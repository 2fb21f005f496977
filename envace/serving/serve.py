"""Starts the server of a checkpoint and ends it again.

Invariant: the endpoint answers when it is handed out; nothing of the server is left afterwards, however the
context ends and whatever becomes of this process. The folder is only read.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from envace.errors import EnvironmentUnready, StageFailed
from envace.io.children import Child, innermost_error, start_guarded
from envace.policy.hub import fetched
from envace.serving.checks import probe
from envace.types import Endpoint

HOST = "127.0.0.1"
BEAT_S, PAUSE_S = 15.0, 0.2
ROOT = Path(__file__).resolve().parents[2]
TRIES = 3
"""Another process may take the free port before the server does."""
Device = Literal["cpu", "gpu"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Vllm:
    """How weights are served on a GPU: beside which interpreter vLLM lies, on how much, with which
    parsers."""

    python: str = ""
    """Of the environment that holds it; empty looks beside this one, then on PATH."""
    tensor_parallel: int = 1
    """GPUs."""
    gpu_memory: float = 0.9
    """Share of each."""
    tool_parser: str = "hermes"
    reasoning_parser: str = "qwen3"
    """Where the model thinks."""


@contextmanager
def serve(
    folder: Path | str,
    *,
    name: str,
    device: Device,
    revision: str = "",
    say: Callable[[str], None] = print,
    aliases: Sequence[str] = (),
    context: int = 0,
    thinking: bool = False,
    concurrency: int = 16,
    log: Path | None = None,
    deadline_s: float = 1200.0,
    vllm: Vllm = Vllm(),
) -> Iterator[Endpoint]:
    """Serve `folder` on a free loopback port under `name` and `aliases` (names that harnesses wire in).

    folder: of weights, or a hub id whose files at `revision` are fetched where they are not here; context:
    tokens of prompt and reply, 0 for what the model holds; thinking: where a request does not say;
    concurrency: sequences written together on CPU; vllm: on a GPU; log: `.state/logs/serve-<name>.log` by
    default. Raises EnvironmentUnready for a model or program that is missing, StageFailed with the log for a
    server that does not come up.
    """
    if revision and not Path(folder).is_dir():
        say(f"looking for {folder} at {revision[:12]}")
        folder = fetched(str(folder), revision)
    folder = Path(folder)
    config = folder / "config.json"
    if not config.is_file():
        raise EnvironmentUnready(f"{folder} holds no model (no config.json): run the stage that makes it")
    holds = json.loads(config.read_text()).get("max_position_embeddings") or 32768
    log = log or Path(".state", "logs", f"serve-{name.replace('/', '_')}.log")
    log.parent.mkdir(parents=True, exist_ok=True)
    env = {"OMP_WAIT_POLICY": "PASSIVE"} | os.environ  # else idle torch threads keep the harness from working
    env["PYTHONPATH"] = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    for attempt in range(1, TRIES + 1):
        port = free_port()
        argv = command(folder, device, port, [name, *aliases], context, thinking, concurrency, vllm)
        began = log.stat().st_size if log.exists() else 0
        url = f"http://{HOST}:{port}/v1"
        endpoint = Endpoint(base_url=url, model=name, context=min(context or holds, holds))
        say(f"serving {folder} as {name} on port {port} ({device}; log: {log})")
        with log.open("ab") as out, start_guarded(argv, env=env, output=out) as child:
            if _answers(child, endpoint, deadline_s, log, say):
                yield endpoint
                return
            cause = innermost_error(log, began)
        if "address already in use" not in cause.lower() or attempt == TRIES:
            raise StageFailed(f"the server of {name} ended with status {child.code()}: {cause}", log)


def command(
    folder: Path,
    device: Device,
    port: int,
    names: Sequence[str],
    context: int = 0,
    thinking: bool = False,
    concurrency: int = 16,
    vllm: Vllm = Vllm(),
) -> list[str]:
    """The server's command line. Raises EnvironmentUnready where there is no vLLM for "gpu"."""
    if device == "cpu":
        argv = [sys.executable, "-m", "envace.serving.server", str(folder), "--name", *names]
        argv += ["--port", str(port), "--concurrency", str(concurrency), "--context", str(context)]
        return [*argv, "--thinking"] if thinking else argv
    # beside the trainer's interpreter, beside ours, or on PATH
    beside = [Path(p).expanduser().with_name("vllm") for p in (vllm.python, sys.executable) if p]
    program = next((str(p) for p in beside if p.is_file()), None) or shutil.which("vllm")
    if not program:
        raise EnvironmentUnready(
            f"vllm is not installed beside {vllm.python or sys.executable}, which serves checkpoints on a "
            "GPU: install the GPU lock and name its interpreter in engine.python, serve on cpu, or name an "
            "endpoint that is served elsewhere"
        )
    argv = [program, "serve", str(folder), "--served-model-name", *names]
    argv += ["--host", HOST, "--port", str(port)]
    argv += ["--enable-auto-tool-choice", "--tool-call-parser", vllm.tool_parser]
    argv += ["--tensor-parallel-size", str(vllm.tensor_parallel)]
    argv += ["--gpu-memory-utilization", f"{vllm.gpu_memory:g}"]
    argv += ["--default-chat-template-kwargs", json.dumps({"enable_thinking": thinking})]
    argv += ["--reasoning-parser", vllm.reasoning_parser] if thinking and vllm.reasoning_parser else []
    return [*argv, "--max-model-len", str(context)] if context else argv


def free_port() -> int:
    """A loopback port that nobody listens on now."""
    with socket.socket() as s:
        s.bind((HOST, 0))
        return s.getsockname()[1]


def _answers(
    child: Child, endpoint: Endpoint, deadline_s: float, log: Path, say: Callable[[str], None]
) -> bool:
    """True when the endpoint answers, False when the server has ended. It is asked only when something
    listens: a machine that is busy loading weights should not be kept busy by us."""
    began = told = time.monotonic()
    port = int(endpoint.base_url.split(":")[2].partition("/")[0])
    while child.code() is None:
        with suppress(OSError, EnvironmentUnready):  # not yet
            socket.create_connection((HOST, port), timeout=2).close()
            probe(endpoint, 5.0)
            say(f"{endpoint.model} answers after {time.monotonic() - began:.0f} s")
            return True
        time.sleep(PAUSE_S)
        if time.monotonic() - began > deadline_s:
            raise StageFailed(f"the server of {endpoint.model} did not answer within {deadline_s:g} s", log)
        if time.monotonic() - told > BEAT_S:
            told = time.monotonic()
            say(f"waiting for {endpoint.model}: {told - began:.0f} of at most {deadline_s:g} s")
    return False
