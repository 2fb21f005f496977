"""A job and everything it started ends; it reaches what it was given and nothing else; its log holds no
key."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import harness_kit
import psutil
import pytest

from envace.bench.harness import network
from envace.bench.harness.run import run_job
from envace.bench.harness.spec import HarnessEnv, HarnessJob, HarnessSpec
from envace.errors import EnvironmentUnready

ISOLATES = network.wrap() is not None


def env(tmp_path):
    spec = HarnessSpec(name="fake", version="1", kind="none", lock="")
    return HarnessEnv(spec=spec, root=tmp_path / "root", python=Path(sys.executable), source=tmp_path)


def job(code: str, **more) -> HarnessJob:
    base = {
        "name": "j-0",
        "argv": (sys.executable, "-c", code),
        "planned": (("a/1", 0),),
        "deadline_s": 600.0,
    }
    return HarnessJob(**(base | more))


def run(tmp_path, made: HarnessJob, **more):
    said = []
    result = run_job(made, env(tmp_path), tmp_path / "out", say=said.append, **more)
    return result, result.log.read_text(), said


def gone(mark: str) -> bool:
    """Whether no live process has the mark on its command line."""
    until = time.monotonic() + 60
    while time.monotonic() < until:
        lines = [" ".join(p.info["cmdline"] or ()) for p in psutil.process_iter(["cmdline"])]
        if not any(mark in line for line in lines):
            return True
        time.sleep(0.1)
    return False


def test_a_job_sees_its_files_a_small_environment_and_no_stdin(tmp_path, monkeypatch):
    monkeypatch.setenv("SOMEBODYS_TOKEN", "tok-123456")
    code = "import os,sys; print(sys.stdin.read() == '', open('deep/a.txt').read(), sorted(os.environ))"
    result, log, _ = run(tmp_path, job(code, files={"deep/a.txt": "hi"}, env={"OWN": "1"}))
    assert (result.code, result.reason, result.folder) == (0, "", (tmp_path / "out" / "j-0").resolve())
    assert "True hi" in log and "OWN" in log and "SOMEBODYS_TOKEN" not in log
    assert result.isolated == ISOLATES


def test_a_bad_exit_names_its_innermost_error(tmp_path):
    result, _, said = run(tmp_path, job("raise KeyError('why')"))
    assert result.code == 1 and "KeyError: 'why'" in result.reason and "KeyError" in said[-1]


def test_names_that_lead_out_of_the_folder_are_refused(tmp_path):
    for bad in ({"name": "../x"}, {"files": {"../../x": "y"}}):
        with pytest.raises(ValueError, match="leads out"):
            run(tmp_path, job("pass", **bad))


def stopped_when_up(tmp_path) -> threading.Event:
    """Set once the job says that it is up, however slow the machine is."""
    stop, log = threading.Event(), tmp_path / "out" / "j-0" / "log.txt"

    def look() -> None:
        until = time.monotonic() + 120
        while not (log.exists() and "up" in log.read_text()) and time.monotonic() < until:
            time.sleep(0.05)
        stop.set()

    threading.Thread(target=look, daemon=True).start()
    return stop


def test_a_stopped_job_leaves_nothing_that_it_started(tmp_path):
    mark = f"777{os.getpid()}"
    code = (
        f"import subprocess,time; subprocess.Popen(['sleep','{mark}'], start_new_session=True); print('up', "
        "flush=True); time.sleep(999)"
    )
    result, _, _ = run(tmp_path, job(code, deadline_s=300.0), stop=stopped_when_up(tmp_path))
    assert result.code is None and result.reason == "interrupted" and gone(f"sleep {mark}")


def test_a_job_is_ended_at_its_deadline(tmp_path):
    result, _, _ = run(tmp_path, job("import time; time.sleep(999)", deadline_s=0.5))
    assert result.code is None and "deadline of 0.5 s" in result.reason


def test_children_left_behind_end_with_the_job(tmp_path):
    mark = f"778{os.getpid()}"
    result, _, _ = run(
        tmp_path, job(f"import subprocess; subprocess.Popen(['sleep','{mark}'], start_new_session=True)")
    )
    assert result.code == 0 and gone(f"sleep {mark}")


def test_a_job_that_ignores_sigterm_is_ended_all_the_same(tmp_path, monkeypatch):
    monkeypatch.setattr("envace.bench.harness.run.GRACE_S", 1.0)
    code = (
        "import signal,time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); "
        "time.sleep(999)"
    )
    result, _, _ = run(tmp_path, job(code, deadline_s=300.0), stop=stopped_when_up(tmp_path))
    assert result.code is None and result.seconds < 250


@pytest.mark.parametrize("isolated", [True, False])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_a_parent_that_is_ended_leaves_no_process(tmp_path, number, isolated):
    mark = f"779{os.getpid()}{int(number)}{int(isolated)}"
    script = f"""
import signal, sys
from pathlib import Path
signal.signal(signal.SIGINT, signal.default_int_handler)  # shells make background jobs ignore it
from envace.bench.harness import network, run
from envace.bench.harness.spec import HarnessEnv, HarnessSpec, HarnessJob
if not {isolated}: network.wrap = lambda: None
spec = HarnessSpec(name="f", version="1", kind="none", lock="")
env = HarnessEnv(spec=spec, root=Path("r"), python=Path(sys.executable), source=Path("."))
code = "import os; print('up', flush=True); os.system('sleep {mark}')"
job = HarnessJob(name="j", argv=(sys.executable, "-c", code), planned=())
run.run_job(job, env, Path(sys.argv[1]), say=lambda line: None)
"""
    parent = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path)],
        cwd=Path(__file__).parents[2],
        stderr=subprocess.DEVNULL,
    )
    log, until = tmp_path / "j" / "log.txt", time.monotonic() + 120
    while not (log.exists() and "up" in log.read_text()) and time.monotonic() < until:
        time.sleep(0.05)
    parent.send_signal(number)
    try:
        parent.wait(60)
    finally:
        parent.kill()  # what it started goes with it, or this test fails
    assert log.exists() and gone(f"sleep {mark}")


def test_heartbeats_tell_how_many_samples_have_ended_and_how_long_the_rest_may_take(tmp_path):
    code = "import time\nfor k in range(4): print('x', file=open('rows', 'a')); time.sleep(0.5)"
    planned = tuple((f"a/{k}", 0) for k in range(4))
    _, _, said = run(tmp_path, job(code, planned=planned, tally=("ro*", "\n")), heartbeat_s=0.2)
    told = [re.search(r"of at most 600 s, (\d) of 4 samples(, about \d+ s left)?", line) for line in said]
    assert {m[1] for m in told if m and m[2]} & {"2", "3", "4"}
    _, _, said = run(tmp_path, job("import time; time.sleep(0.7)", name="j-1"), heartbeat_s=0.3)
    assert said[-2].endswith("of at most 600 s")


REACH = """
import json, os, urllib.request
def ask(url):
    try:
        asked = urllib.request.Request(url + '/chat/completions', b'{}', {'Authorization': 'Bearer k'})
        return json.load(urllib.request.urlopen(asked, timeout=20))['said']
    except OSError as e:
        return 'refused'
print(json.dumps([ask(u) for u in os.environ['URLS'].split()]))
"""


@pytest.mark.skipif(not ISOLATES, reason="no user and network namespaces here")
def test_an_isolated_job_reaches_its_address_and_no_other(tmp_path):
    with harness_kit.server() as (mine, seen), harness_kit.server() as (other, others):
        made = job(REACH, env={"URLS": f"{mine} {other}"}, reaches=(mine,))
        result, log, _ = run(tmp_path, made)
    assert json.loads(log) == ["hello", "refused"] and result.isolated
    assert (
        len(seen) == 1
        and seen[0]["auth"] == "Bearer k"
        and seen[0]["path"] == "/v1/chat/completions"
        and not others
    )


@pytest.mark.skipif(not ISOLATES, reason="no user and network namespaces here")
def test_an_address_under_another_name_is_renamed_inside_and_keeps_its_host_outside(tmp_path):
    with harness_kit.server() as (url, seen):
        named = url.replace("127.0.0.1", "127.0.0.2")  # not the name a program inside would find
        made = job(
            REACH,
            env={"URLS": f"{url} {url}"},
            reaches=(url, named),
            argv=(sys.executable, "-c", REACH, named),
        )
        result, log, _ = run(tmp_path, made)
        inside = network.inside(made)[2].argv[-1]
    assert (
        json.loads(log) == ["hello", "hello"] and inside != named and inside.startswith("http://127.0.0.1:")
    )
    assert {s["host"] for s in seen} == {url.split("/")[2]}


@pytest.mark.skipif(not ISOLATES, reason="no user and network namespaces here")
def test_a_dead_address_is_a_broken_connection_inside(tmp_path):
    with harness_kit.server() as (url, _):
        pass
    _, log, _ = run(tmp_path, job(REACH, env={"URLS": url}, reaches=(url,)))
    assert json.loads(log) == ["refused"]


@pytest.mark.skipif(not ISOLATES, reason="no user and network namespaces here")
def test_tls_is_spoken_outside_and_an_untrusted_server_is_a_broken_connection(tmp_path, monkeypatch):
    pem = harness_kit.certificate(tmp_path / "server.pem")
    with harness_kit.server(tls=pem) as (url, seen):
        made = job(REACH, env={"URLS": url}, reaches=(url,))
        _, untrusted, _ = run(tmp_path, made)
        monkeypatch.setenv("SSL_CERT_FILE", str(pem))
        _, trusted, _ = run(tmp_path, replace(made, name="j-1"))
    assert (json.loads(untrusted), json.loads(trusted)) == (["refused"], ["hello"])
    assert seen[0]["host"] == url.split("/")[2]


def test_without_namespaces_a_job_runs_and_says_that_it_is_not_isolated(tmp_path, monkeypatch):
    monkeypatch.setattr(network, "wrap", lambda: None)
    with harness_kit.server() as (url, _):
        result, log, said = run(tmp_path, job(REACH, env={"URLS": url}, reaches=(url,)))
    assert json.loads(log) == ["hello"] and not result.isolated
    assert [line for line in said if "NOT isolated" in line]


def test_remote_addresses_get_ports_of_their_own_and_keep_their_password():
    made = job(
        "",
        reaches=(
            "https://api.example.com/v1",
            "http://u:p@gpu.example.com:8000/v1",
            "http://localhost:8000/v1",
        ),
        env={
            "A": "https://api.example.com/v1/x",
            "B": "http://u:p@gpu.example.com:8000/v1",
            "C": "http://localhost:8000/v1",
            "D": "https://api.example.community/v1",
        },
    )
    ports = network.ports_of(made.reaches)
    renamed = network.renamed(made, ports).env
    assert ports["http://localhost:8000"] == 8000 and len(set(ports.values())) == 3
    assert renamed["A"] == f"http://127.0.0.1:{ports['https://api.example.com:443']}/v1/x"
    assert renamed["B"] == f"http://u:p@127.0.0.1:{ports['http://gpu.example.com:8000']}/v1"
    assert (renamed["C"], renamed["D"]) == (made.env["C"], made.env["D"])


def test_a_key_is_named_by_its_variable_and_never_logged(tmp_path, monkeypatch):
    monkeypatch.delenv("CANARY_KEY", raising=False)
    made = job(
        "import os; print('<' + os.environ['THEIRS'] + '>', flush=True)", secrets={"THEIRS": "CANARY_KEY"}
    )
    with pytest.raises(EnvironmentUnready, match="CANARY_KEY"):
        run(tmp_path, made)
    monkeypatch.setenv("CANARY_KEY", "canary-key-98765")
    _, log, _ = run(tmp_path, made)
    assert log.strip() == "<[redacted]>"
