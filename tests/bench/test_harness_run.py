"""A job and all it started ends; it reaches what it was given and nothing else; its log holds no key."""

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
isolating = pytest.mark.skipif(not ISOLATES, reason="no user and network namespaces here")
WAITS = "import time; print('up', flush=True); time.sleep(999)"


def job(code: str, **more) -> HarnessJob:
    base = {"name": "j-0", "argv": (sys.executable, "-c", code), "planned": (("a/1", 0),)}
    return HarnessJob(**(base | {"deadline_s": 600.0} | more))


def run(tmp_path, made: HarnessJob, **more):
    spec = HarnessSpec(name="fake", version="1", kind="none", lock="")
    said, env = [], HarnessEnv.at(spec, tmp_path / "root")
    result = run_job(made, env, tmp_path / "out", say=said.append, **more)
    return result, result.log.read_text(), said


def until(true, seconds: float = 120) -> bool:
    """Whether something comes true, however slow the machine is."""
    end = time.monotonic() + seconds
    while not true() and time.monotonic() < end:
        time.sleep(0.05)
    return true()


def gone(mark: str) -> bool:
    """Whether no live process has the mark on its command line."""

    def alive() -> bool:
        return any(mark in " ".join(p.info["cmdline"] or ()) for p in psutil.process_iter(["cmdline"]))

    return until(lambda: not alive(), 60)


def is_up(folder: Path) -> bool:
    return until(lambda: (folder / "log.txt").exists() and "up" in (folder / "log.txt").read_text())


def stopped(tmp_path, code: str):
    """A job that is stopped once it says that it is up."""
    stop = threading.Event()
    threading.Thread(target=lambda: is_up(tmp_path / "out/j-0") and stop.set(), daemon=True).start()
    return run(tmp_path, job(code, deadline_s=300.0), stop=stop)[0]


def test_a_job_sees_its_files_a_small_environment_and_no_stdin(tmp_path, monkeypatch):
    monkeypatch.setenv("SOMEBODYS_TOKEN", "tok-123456")
    code = (
        "import getpass,os,sys; print(getpass.getuser(), sys.stdin.read() == '', open('deep/a.txt').read())"
    )
    result, log, _ = run(
        tmp_path, job(code + "; print(sorted(os.environ))", files={"deep/a.txt": "hi"}, env={"OWN": "1"})
    )
    assert (result.code, result.reason, result.folder) == (0, "", (tmp_path / "out" / "j-0").resolve())
    assert "harness True hi" in log and "OWN" in log and "SOMEBODYS_TOKEN" not in log
    assert result.isolated == ISOLATES


def test_a_bad_exit_names_its_innermost_error(tmp_path):
    result, _, said = run(tmp_path, job("raise KeyError('why')"))
    assert result.code == 1 and "KeyError: 'why'" in result.reason and "KeyError" in said[-1]


@pytest.mark.parametrize("bad", [{"name": "../x"}, {"files": {"../../x": "y"}}])
def test_names_that_lead_out_of_the_folder_are_refused(tmp_path, bad):
    with pytest.raises(ValueError, match="leads out"):
        run(tmp_path, job("pass", **bad))


def test_a_stopped_job_leaves_nothing_that_it_started(tmp_path):
    mark = f"777{os.getpid()}"
    start = f"import subprocess; subprocess.Popen(['sleep','{mark}'], start_new_session=True); "
    result = stopped(tmp_path, start + WAITS)
    assert result.code is None and result.reason == "interrupted" and gone(f"sleep {mark}")


def test_a_job_that_ignores_sigterm_is_ended_all_the_same(tmp_path, monkeypatch):
    monkeypatch.setattr("envace.bench.harness.run.GRACE_S", 1.0)
    result = stopped(tmp_path, "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); " + WAITS)
    assert result.code is None and result.seconds < 250


def test_a_job_is_ended_at_its_deadline(tmp_path):
    result, _, _ = run(tmp_path, job(WAITS, deadline_s=0.5))
    assert result.code is None and "deadline of 0.5 s" in result.reason


def test_children_left_behind_end_with_the_job(tmp_path):
    mark = f"778{os.getpid()}"
    code = f"import subprocess; subprocess.Popen(['sleep','{mark}'], start_new_session=True)"
    assert run(tmp_path, job(code))[0].code == 0 and gone(f"sleep {mark}")


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
env = HarnessEnv.at(HarnessSpec(name="f", version="1", kind="none", lock=""), Path("r"))
code = "import os; print('up', flush=True); os.system('sleep {mark}')"
job = HarnessJob(name="j", argv=(sys.executable, "-c", code), planned=())
run.run_job(job, env, Path(sys.argv[1]), say=lambda line: None)
"""
    argv = [sys.executable, "-c", script, str(tmp_path)]
    parent = subprocess.Popen(argv, cwd=Path(__file__).parents[2], stderr=subprocess.DEVNULL)
    up = is_up(tmp_path / "j")
    parent.send_signal(number)
    try:
        parent.wait(60)
    finally:
        parent.kill()  # what it started goes with it, or this test fails
    assert up and gone(f"sleep {mark}")


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


def asked(tmp_path, urls: str, *reaches: str, **more):
    result, log, said = run(tmp_path, job(REACH, env={"URLS": urls}, reaches=reaches, **more))
    return json.loads(log), result.isolated, said


@isolating
def test_an_isolated_job_reaches_its_address_and_no_other(tmp_path):
    with harness_kit.server() as (mine, seen), harness_kit.server() as (other, others):
        assert asked(tmp_path, f"{mine} {other}", mine)[:2] == (["hello", "refused"], True)
    assert [(s["auth"], s["path"]) for s in seen] == [("Bearer k", "/v1/chat/completions")] and not others


@isolating
def test_an_address_under_another_name_is_renamed_inside_and_keeps_its_host_outside(tmp_path):
    with harness_kit.server() as (url, seen):
        named = url.replace("127.0.0.1", "127.0.0.2")  # not the name a program inside would find
        argv = (sys.executable, "-c", REACH, named)
        assert asked(tmp_path, f"{url} {url}", url, named, argv=argv)[0] == ["hello", "hello"]
    told = network.inside(job("", reaches=(url, named), argv=argv))[2].argv[-1]
    assert told != named and told.startswith("http://127.0.0.1:")
    assert {s["host"] for s in seen} == {url.split("/")[2]}


@isolating
def test_a_dead_address_is_a_broken_connection_inside(tmp_path):
    with harness_kit.server() as (url, _):
        pass
    assert asked(tmp_path, url, url)[0] == ["refused"]


@isolating
def test_tls_is_spoken_outside_and_an_untrusted_server_is_a_broken_connection(tmp_path, monkeypatch):
    pem = harness_kit.certificate(tmp_path / "server.pem")
    with harness_kit.server(tls=pem) as (url, seen):
        assert asked(tmp_path, url, url)[0] == ["refused"]
        monkeypatch.setenv("SSL_CERT_FILE", str(pem))
        assert asked(tmp_path, url, url, name="j-1")[0] == ["hello"]
    assert seen[0]["host"] == url.split("/")[2]


def test_without_namespaces_a_job_runs_and_says_that_it_is_not_isolated(tmp_path, monkeypatch):
    monkeypatch.setattr(network, "wrap", lambda: None)
    with harness_kit.server() as (url, _):
        heard, isolated, said = asked(tmp_path, url, url)
    assert heard == ["hello"] and not isolated and [line for line in said if "NOT isolated" in line]


def test_remote_addresses_get_ports_of_their_own_and_keep_their_password():
    https, remote, local = (
        "https://api.example.com",
        "http://u:p@gpu.example.com:8000",
        "http://localhost:8000",
    )
    env = {"A": f"{https}/v1/x", "B": f"{remote}/v1", "C": f"{local}/v1", "D": f"{https}munity/v1"}
    made = job("", reaches=(f"{https}/v1", f"{remote}/v1", f"{local}/v1"), env=env)
    ports = network.ports_of(made.reaches)
    told = network.renamed(made, ports).env
    assert ports[local] == 8000 and len(set(ports.values())) == 3
    assert told["A"] == f"http://127.0.0.1:{ports[https + ':443']}/v1/x"
    assert told["B"] == f"http://u:p@127.0.0.1:{ports['http://gpu.example.com:8000']}/v1"
    assert (told["C"], told["D"]) == (env["C"], env["D"])


def test_a_key_is_named_by_its_variable_and_never_logged(tmp_path, monkeypatch):
    monkeypatch.delenv("CANARY_KEY", raising=False)
    made = job("import os; print('<' + os.environ['THEIRS'] + '>')", secrets={"THEIRS": "CANARY_KEY"})
    with pytest.raises(EnvironmentUnready, match="CANARY_KEY"):
        run(tmp_path, made)
    monkeypatch.setenv("CANARY_KEY", "canary-key-98765")
    assert run(tmp_path, replace(made, name="j-1"))[1].strip() == "<[redacted]>"
