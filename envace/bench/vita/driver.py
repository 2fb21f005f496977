"""Runs VitaBench's own command line with what it sends and what it drops under control.

Flows in: a job file (the harness's arguments; a role's address, model and the name of the variable with its
key).
Flows out: the harness's results file, and `attempts.jsonl`: one line for each attempt at a task.
Invariant: executed by the harness's interpreter; imports only the standard library, the harness and, by its
path, answers.py; no scoring is touched. A key exists in the header of a request alone: upstream would put
headers and address into the body and into its results, so the harness is told a role's name where it expects
an address.
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
        body = {k: v for k, v in json.items() if k not in STRAY and v is not None}
        bare = [{k: v for k, v in m.items() if (k, v) != ("tool_calls", None)} for m in json["messages"]]
        body |= {"messages": bare, **role["body"], "model": role["model"]}
        if url != "judge" and self.job["send_seed"]:
            body["seed"] = self.state.seed(self.job["seed"], url)
        try:
            answer = self.send(role, body, timeout)
        except self.requests.exceptions.RequestException as e:
            self.state.event(url, "unreachable", type(e).__name__)
            raise
        problem = answers.problem_of(answer.status_code, answer.text)
        self.state.event(url, *problem, cut=answers.cut_short(answer.text))
        return answer

    def send(self, role, body, timeout):
        headers = {"Content-Type": "application/json"}
        if role["key"] and os.environ.get(role["key"]):
            headers["Authorization"] = "Bearer " + os.environ[role["key"]]
        tries = 0
        while True:
            with self.requests.Session() as session:
                session.trust_env = not LOOPBACK.match(role["url"])  # a proxy is for other machines
                how = {"headers": headers, "timeout": timeout, "allow_redirects": False}
                answer = session.post(role["url"], json=body, **how)
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
        """The latest request is what an attempt that fails died of."""
        self.local.last = {"role": role, "problem": problem, "detail": detail}
        self.local.judge_cut += role == "judge" and cut
        self.local.empty += (role, problem) == ("agent", "empty_message")

    def seed(self, seed, role):
        """Another number for each request, the same in each run: an empty message is asked for again."""
        here = self.local
        here.sent += 1
        text = f"{seed}/{here.task}/{self.tries.get(here.task, 0)}/{role}/{here.sent}"
        return int(hashlib.sha256(text.encode()).hexdigest()[:8], 16) % 2**31

    def watched(self, attempt):
        """The harness's one attempt at a task, recorded. It makes up to four and forgets why they failed."""

        def run(*args, **kwargs):
            here, task = self.local, str(kwargs["task"].id)
            here.task, here.last, here.empty, here.sent, here.judge_cut = task, {}, 0, 0, 0
            try:
                result = attempt(*args, **kwargs)
            except Exception as e:
                self.record(task, ok=False, error=f"{type(e).__name__}: {e}"[: answers.NAMED])
                raise
            self.record(task, ok=True)
            return result

        return run

    def record(self, task, **fields):
        """One line of attempts.jsonl."""
        here = self.local
        with self.lock:
            self.tries[task] = self.tries.get(task, 0) + 1
            line = {
                "task": task,
                "attempt": self.tries[task],
                "role": "",
                "problem": "",
                "detail": "",
            } | here.last
            answers.append_row(self.log, line | {"empty": here.empty, "judge_cut": here.judge_cut} | fields)


def resume(results, attempts):
    """Go on from an unfinished results file where it can be read; the harness asks on standard input.
    Dialogues that were kept without a score, as one that its judge failed, are taken out and played again.
    """
    if not results.exists():
        return
    try:
        kept = json.loads(results.read_text(encoding="utf-8"))
    except ValueError:
        results.rename(results.with_suffix(".broken.json"))  # killed while it was being written
        return
    note = results.with_name("again.json")
    again = {task for task, _ in answers.owed_again(note)}
    if lost := again & {str(s["task_id"]) for s in kept["simulations"]}:
        left = [s for s in kept["simulations"] if str(s["task_id"]) not in lost]
        rows = [row for row in answers.read_rows(attempts) if row["task"] not in lost]
        for file, text in (
            (results, json.dumps(kept | {"simulations": left}, ensure_ascii=False)),
            (attempts, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)),
        ):
            file.with_suffix(".part").write_text(text, encoding="utf-8")
            file.with_suffix(".part").replace(file)
    note.unlink(missing_ok=True)
    sys.stdin = io.StringIO("y\n")


def main(job_file):
    """The harness's command line, watched."""
    job = json.loads(Path(job_file).read_text(encoding="utf-8"))
    import requests
    import vita.run
    import vita.utils.llm_utils as client
    from vita.cli import main as cli

    state = State(Path(job["attempts"]))
    client.requests = Wire(requests, job, state)
    vita.run._run_task_internal = state.watched(vita.run._run_task_internal)
    resume(Path(job["results"]), Path(job["attempts"]))
    sys.argv = ["vita", *job["argv"]]
    cli()


if __name__ == "__main__":
    main(sys.argv[1])
