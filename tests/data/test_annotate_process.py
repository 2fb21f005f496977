"""Annotating as a command of its own: killed, interrupted, and trusted with a key."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

from annotate_kit import Says, label, lines, raw_row, serving, well, write_rows

ROOT = Path(__file__).parents[2]
CANARY = "sk-canary-4f1d9e2b7c"


def start(source, out, url):
    given = f"{source} --out {out} --base-url {url} --model m --passes low,high --concurrency 3"
    return subprocess.Popen(
        [sys.executable, "-m", "envace.data", "annotate", *given.split(), "--key-env", "CANARY_KEY", "--yes"],
        cwd=ROOT,
        env={**os.environ, "CANARY_KEY": CANARY},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def wait_for(condition, seconds=30):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it never came to that"
        time.sleep(0.02)


def journal_lines(out):
    path = out / "journal.jsonl"
    return path.read_text().count("\n") if path.exists() else 0


def test_a_killed_run_goes_on_where_it_stopped_and_pays_for_nothing_twice(tmp_path):
    source, out = write_rows(tmp_path / "a.jsonl", [raw_row(k) for k in range(6)]), tmp_path / "out"
    gate = threading.Event()

    def script(asked):  # replies to eight, then leaves everybody waiting
        says = well(asked)
        says.hold = gate if asked.n > 8 else None
        return says

    with serving(script) as mill:
        process = start(source, out, mill.url)
        wait_for(lambda: journal_lines(out) == 8 and len(mill.log) == 11)
        process.kill()
        process.wait()
        unpaid = [a for a in mill.log if not a.answered]
        assert len(unpaid) == 3 and not (out / "report.json").exists()
        gate.set()
        wait_for(lambda: mill.in_flight == 0)
        for a in unpaid:
            a.answered = False  # its reply found nobody
        process = start(source, out, mill.url)
        said, _ = process.communicate(timeout=60)
        assert process.returncode == 0, said
        paid = Counter((a.row, a.kind, a.effort) for a in mill.log if a.answered)
        assert len(paid) == 18 and set(paid.values()) == {1}
    assert len(lines(out / "annotated.jsonl")) == 6


def test_ctrl_c_waits_for_calls_under_way_writes_what_there_is_and_can_go_on(tmp_path):
    source, out = write_rows(tmp_path / "a.jsonl", [raw_row(k) for k in range(6)]), tmp_path / "out"
    gate = threading.Event()

    def script(asked):
        says = well(asked)
        says.hold = gate if asked.n > 10 else None
        return says

    with serving(script) as mill:
        process = start(source, out, mill.url)
        wait_for(lambda: journal_lines(out) == 10 and len(mill.log) == 13)
        process.send_signal(signal.SIGINT)
        time.sleep(0.2)
        assert process.poll() is None
        gate.set()
        said, _ = process.communicate(timeout=30)
        assert process.returncode == 130 and "Traceback" not in said, said
        assert len(mill.log) == 13 and journal_lines(out) == 13
        counts = json.loads((out / "report.json").read_text())["counts"]
        assert counts["undecided"] > 0 and counts["read"] == 6
        process = start(source, out, mill.url)
        said, _ = process.communicate(timeout=30)
        assert process.returncode == 0 and len(mill.log) == 18, said


def test_the_key_reaches_the_server_and_nothing_else(tmp_path):
    source, out = write_rows(tmp_path / "a.jsonl", [raw_row(k) for k in range(4)]), tmp_path / "out"

    def script(asked):  # a server that repeats the key wherever it can
        told = asked.headers["authorization"]
        if asked.row == 0:
            return Says({"errors": [{"turn": 0, "step": 0, "what": told}], "no_error": False})
        if asked.row == 1 and asked.kind != "filter":
            return Says(status=400, raw=json.dumps({"error": {"message": told, "code": CANARY}}).encode())
        if asked.row == 2 and asked.kind != "filter":
            return Says(json.loads(json.dumps(label()).replace("Was the tide looked up?", told)))
        return well(asked)

    with serving(script) as mill:
        process = start(source, out, mill.url)
        said, _ = process.communicate(timeout=60)
        assert mill.log[0].headers["authorization"] == f"Bearer {CANARY}"
    assert process.returncode == 0 and CANARY not in said, said
    for path in out.rglob("*"):
        assert path.is_dir() or CANARY.encode() not in path.read_bytes(), path
    counts = json.loads((out / "report.json").read_text())["counts"]
    assert (counts["annotated"], counts["rejected"], counts["failed"]) == (2, 1, 1)
