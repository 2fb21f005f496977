"""What an earlier evaluation left: gone on with when trials are added, kept when only speed is changed."""

from pathlib import Path

import pytest
import test_bfcl_plan
import test_finmcp_rows
import test_tau2_plan

from envace.bench.bfcl.adapter import DRIVER, Bfcl
from envace.bench.finmcp.adapter import FinMcp
from envace.bench.harness import answers, resume
from envace.bench.harness.spec import RawRun
from envace.bench.tau2.adapter import Tau2
from envace.chat import calls
from envace.errors import UserError
from envace.serving import server
from envace.types import SampleRecord, SampleStatus, replace

bfcl_source, tau2_env = test_bfcl_plan.source, test_tau2_plan.env  # harnesses of which only tasks exist
WHOSE = {"policy": "p", "policy_hash": "h", "variant": "plain"}


@pytest.fixture(autouse=True)
def built(monkeypatch):
    """Harnesses without a program have no installed versions."""
    monkeypatch.setattr(resume, "ready", lambda env: {"versions": {}})


@pytest.fixture
def bfcl(bfcl_source, tmp_path):
    return Bfcl(), test_bfcl_plan.env(bfcl_source), test_bfcl_plan.request(tmp_path / "bfcl", "simple_java")


@pytest.fixture
def tau2(tau2_env, tmp_path):
    return Tau2(), tau2_env, test_tau2_plan.request(tmp_path / "tau2")


def run_of(job, out: Path, code: int | None = 0) -> RawRun:
    folder = out.resolve() / job.name
    return RawRun(job=job, folder=folder, code=code, seconds=1.0, log=folder / "log.txt", isolated=True)


def settled(job, out: Path, marks, status: SampleStatus) -> list[str]:
    """The marks that a job has after all its samples ended so."""
    samples = [SampleRecord(task=t, trial=k, seed=0, status=status) for t, k in job.planned]
    resume.settle(run_of(job, out), samples, marks)
    return [n for n in ("done.json", "ended.json") if (out.resolve() / job.name / n).exists()]


def left(adapter, env, request) -> "resume.Marks":
    """As an evaluation leaves its folders: each job begun, with a file in it, and done."""
    marks = resume.Marks.of(adapter, env, request, WHOSE)
    for job in adapter.plan(env, request):
        resume.begin(job, request.out, marks)
        (request.out.resolve() / job.name / "answers").write_text("hours of work")
        assert settled(job, request.out, marks, SampleStatus.SCORED) == ["done.json"]
    return marks


def begun_again(adapter, env, request) -> dict[str, str]:
    """Job -> done | goes on | empty, in a later evaluation."""
    marks, said = resume.Marks.of(adapter, env, request, WHOSE), {}
    for job in adapter.plan(env, request):
        if resume.done(job, request.out, marks):
            said[job.name] = "done"
            continue
        resume.begin(job, request.out, marks)
        said[job.name] = "goes on" if (request.out.resolve() / job.name / "answers").is_file() else "empty"
    return said


def test_tau2_goes_on_in_the_folder_of_fewer_trials(tau2):
    adapter, env, ask = tau2
    left(adapter, env, replace(ask, trials=1))
    again = begun_again(adapter, env, replace(ask, trials=4))
    assert again == {"airline": "goes on", "retail": "goes on", "floor": "done"}
    assert begun_again(adapter, env, replace(ask, trials=5, seed=1))["airline"] == "empty"


def test_bfcl_runs_the_new_trials_only(bfcl):
    left(*bfcl)
    again = begun_again(*bfcl[:2], replace(bfcl[2], trials=3))
    assert again == {"simple_java-0": "done", "simple_java-1": "empty", "simple_java-2": "empty"}


@pytest.mark.parametrize("benchmark", ["bfcl", "tau2"])
def test_how_many_run_beside_each_other_and_how_long_they_may_take_count_for_nothing(benchmark, request):
    adapter, env, ask = request.getfixturevalue(benchmark)
    left(adapter, env, ask)
    faster = replace(ask, concurrency=ask.concurrency * 4, deadline_s=9.0)
    assert set(begun_again(adapter, env, faster).values()) == {"done"}


def test_changed_code_of_a_driver_or_of_what_serves_makes_every_job_another(bfcl, tmp_path, monkeypatch):
    own, code = DRIVER.parent, tmp_path / "driver.py"
    shared = {Path(module.__file__) for module in (answers, server, calls)}
    assert {own / "driver.py", own / "failures.py", *shared} <= set(resume.code_files(own))
    monkeypatch.setattr(resume, "code_files", lambda folder: [code] if folder == own else [])
    code.write_text("ask(again=3)")
    left(*bfcl)
    assert begun_again(*bfcl) == {"simple_java-0": "done"}
    code.write_text("ask(again=4)")
    assert begun_again(*bfcl) == {"simple_java-0": "empty"}


def test_a_new_port_of_the_agent_is_no_other_job_whatever_ports_the_others_have(tau2):
    adapter, env, ask = tau2  # the agent at port 1, before the user at 2 and the judge at 3
    moved = replace(ask.roles, agent=replace(ask.roles.agent, base_url="http://127.0.0.1:9/v1"))
    [retail] = [job for job in adapter.plan(env, ask) if job.name == "retail"]
    assert retail.reaches == tuple(e.base_url for e in (ask.roles.agent, ask.roles.user, ask.roles.judge))
    left(*tau2)
    assert set(begun_again(adapter, env, replace(ask, roles=moved)).values()) == {"done"}


def test_rows_or_tools_edited_under_the_same_name_are_played_anew(tmp_path):
    tools = tmp_path / "tools.json"
    tools.write_text("[]")
    ask = test_finmcp_rows.request_of(tmp_path, tools=str(tools))
    env, rows = test_finmcp_rows.env_of(tmp_path, ask), Path(ask.options["uri"])
    edited = {tools: '[{"name": "get_quote"}]', rows: rows.read_text().replace("1.25", "9.75")}
    for file, text in edited.items():
        left(FinMcp(), env, ask)
        assert set(begun_again(FinMcp(), env, ask).values()) == {"done"}
        file.write_text(text)
        assert set(begun_again(FinMcp(), env, ask).values()) == {"empty"}
    tools.unlink()
    with pytest.raises(UserError, match=r"tools.json' is no file; correct it"):
        FinMcp().plan(env, ask)


@pytest.mark.parametrize(("code", "mark"), [(0, "done.json"), (1, "ended.json"), (None, "ended.json")])
def test_a_job_that_owes_no_samples_is_done_when_it_ended_well(tau2, code, mark):
    adapter, env, ask = tau2
    marks, floor = left(*tau2), adapter.plan(env, ask)[-1]  # done.json is here already
    resume.settle(run_of(floor, ask.out, code), [], marks)
    folder = ask.out.resolve() / "floor"
    assert [name for name in ("done.json", "ended.json") if (folder / name).exists()] == [mark]


def test_a_job_has_one_mark_whatever_it_was_before(bfcl):
    adapter, env, ask = bfcl
    marks, [job] = left(*bfcl), adapter.plan(env, ask)
    assert settled(job, ask.out, marks, SampleStatus.MISSING) == ["ended.json"]
    assert settled(job, ask.out, marks, SampleStatus.AGENT_FAILURE) == ["done.json"]
