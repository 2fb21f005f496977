"""Runs VitaBench's own command line with what it sends and what it drops under control.

Flows in: a job file (the harness's arguments; a role's address, model and the name of the variable with its
key).
Flows out: the harness's results file, and `attempts.jsonl`: one line for each attempt at a task.
Invariant: this file is executed by the harness's interpreter and imports only the standard library, the
harness and, by its path, answers.py; no scoring is touched. A key exists in the header of a request alone:
upstream would put headers and address into the body and into its results, so the harness is told a role's
name where it expects an address.
"""

import hashlib
import io
import json
import os
import re
import runpy
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

ANSWERS = Path(__file__).resolve().parents[1] / "harness" / "answers.py"
answers = SimpleNamespace(**runpy.run_path(str(ANSWERS)))
STRAY = ("base_url", "headers", "name", "max_input_tokens", "num_retries", "cost_1m_token_dollar")
LOOPBACK = re.compile(r"https?://(localhost|127\.[\d.]+|\[::1\])[:/]")
BUSY = (429, 502, 503, 504)  # asked again after a while; upstream asks again after a 500 itself
BUSY_TRIES, BUSY_PAUSE_S = 4, 2.0


class Wire:
    """Stands in for `requests` in the harness's client: the same call, with a clean body."""

    def __init__(self, requests, job, state):
        self.requests, self.job, self.state = requests, job, state
        self.exceptions = requests.exceptions

    def post(self, url, json, headers=None, timeout=None):
        role = self.job["roles"][url]  # the harness was told a role's name for an address
        body = self.body(url, role, json)
        try:
            answer = self.send(role, body, timeout)
        except self.requests.exceptions.RequestException as e:
            self.state.event(url, "unreachable", type(e).__name__)
            raise
        self.state.event(
            url, *answers.problem_of(answer.status_code, answer.text), cut=answers.cut_short(answer.text)
        )
        return answer

    def body(self, name, role, data):
        body = {k: v for k, v in data.items() if k not in STRAY and v is not None}
        messages = [dict(m) for m in data["messages"]]
        for message in messages:
            if message.get("tool_calls", ()) is None:
                del message["tool_calls"]
        body["messages"] = messages
        body.update(role["body"], model=role["model"])
        if name != "judge" and self.job["send_seed"]:
            body["seed"] = self.state.seed(self.job["seed"], name)
        return body

    def send(self, role, body, timeout):
        headers = {"Content-Type": "application/json"}
        if role["key"] and os.environ.get(role["key"]):
            headers["Authorization"] = "Bearer " + os.environ[role["key"]]
        tries = 0
        while True:
            with self.requests.Session() as session:
                session.trust_env = not LOOPBACK.match(role["url"])  # a proxy is for other machines
                answer = session.post(
                    role["url"], json=body, headers=headers, timeout=timeout, allow_redirects=False
                )
            room = answers.fewer(answer.text, body.get("max_tokens") or 0) if answer.status_code == 400 else 0
            if room:
                body = body | {"max_tokens": room}
                continue
            tries += 1
            if answer.status_code not in BUSY or tries == BUSY_TRIES:
                return answer
            time.sleep(BUSY_PAUSE_S * 2 ** (tries - 1))


class State:
    """What happened in each worker thread; a task's whole attempt runs in one thread."""

    def __init__(self, log):
        self.log, self.lock, self.local, self.tries = log, threading.Lock(), threading.local(), {}

    def event(self, role, problem, detail, cut=False):
        self.local.last = (role, problem, detail)
        self.local.judge_cut += role == "judge" and cut
        if role == "agent" and problem == "empty_message":
            self.local.empty += 1

    def seed(self, seed, role):
        """Another number for each request, the same in each run: upstream asks again after an
        empty message.
        """
        here = self.local
        here.sent += 1
        text = f"{seed}/{here.task}/{self.tries.get(here.task, 0)}/{role}/{here.sent}"
        return int(hashlib.sha256(text.encode()).hexdigest()[:8], 16) % 2**31

    def watched(self, attempt):
        """The harness's one attempt at a task, recorded. It makes up to four and forgets why they failed."""

        def run(*args, **kwargs):
            here, task = self.local, str(kwargs["task"].id)
            here.task, here.last, here.empty, here.sent, here.judge_cut = task, ("", "", ""), 0, 0, 0
            try:
                result = attempt(*args, **kwargs)
            except Exception as e:
                self.record(task, ok=False, error=f"{type(e).__name__}: {e}"[: answers.NAMED])
                raise
            self.record(task, ok=True)
            return result

        return run

    def record(self, task, **fields):
        role, problem, detail = self.local.last
        with self.lock, self.log.open("a", encoding="utf-8") as out:
            self.tries[task] = self.tries.get(task, 0) + 1
            line = {
                "task": task,
                "attempt": self.tries[task],
                "role": role,
                "problem": problem,
                "detail": detail,
            }
            line |= {"empty": self.local.empty, "judge_cut": self.local.judge_cut} | fields
            out.write(json.dumps(line, ensure_ascii=False) + "\n")


def resume(results):
    """Go on from an unfinished results file where it can be read; the harness asks on standard input."""
    if not results.exists():
        return
    try:
        json.loads(results.read_text(encoding="utf-8"))
    except ValueError:
        results.rename(results.with_suffix(".broken.json"))  # killed while it was being written
        return
    sys.stdin = io.StringIO("y\n")


def main(job_file):
    job = json.loads(Path(job_file).read_text(encoding="utf-8"))
    import requests
    import vita.run
    import vita.utils.llm_utils as client
    from vita.cli import main as cli

    state = State(Path(job["attempts"]))
    client.requests = Wire(requests, job, state)
    vita.run._run_task_internal = state.watched(vita.run._run_task_internal)
    resume(Path(job["results"]))
    sys.argv = ["vita", *job["argv"]]
    cli()


if __name__ == "__main__":
    main(sys.argv[1])
