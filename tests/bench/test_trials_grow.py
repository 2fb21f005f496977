"""What an earlier evaluation left is gone on with when trials are added, and kept when only speed is
changed."""

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

bfcl_source, tau2_env = (
    test_bfcl_plan.source,
    test_tau2_plan.env,
)  # fixtures: harnesses of which only tasks exist


@pytest.fixture(autouse=True)
def built(monkeypatch):
    """Harnesses without a program have no installed versions."""
    monkeypatch.setattr(resume, "ready", lambda env: {"versions": {}})


WHOSE = {"policy": "p", "policy_hash": "h", "variant": "plain"}


def left(adapter, env, request) -> "resume.Marks":
    """As an evaluation leaves its folders: each job begun, with a file in it, and done."""
    marks = resume.Marks.of(adapter, env, request, WHOSE)
    for job in adapter.plan(env, request):
        resume.begin(job, request.out, marks)
        folder = request.out.resolve() / job.name
        (folder / "answers").write_text("hours of work")
        run = RawRun(job=job, folder=folder, code=0, seconds=1.0, log=folder / "log.txt", isolated=True)
        samples = [
            SampleRecord(task=t, trial=k, seed=0, status=SampleStatus.SCORED, reward=1.0)
            for t, k in job.planned
        ]
        resume.settle(run, samples, marks)
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


def test_tau2_goes_on_in_the_folder_of_fewer_trials(tau2_env, tmp_path):
    ask = test_tau2_plan.request(tmp_path, trials=1)
    left(Tau2(), tau2_env, ask)
    assert begun_again(Tau2(), tau2_env, replace(ask, trials=4)) == {
        "airline": "goes on",
        "retail": "goes on",
        "floor": "done",
    }
    assert begun_again(Tau2(), tau2_env, replace(ask, trials=5, seed=1))["airline"] == "empty"


def test_bfcl_runs_the_new_trials_only(bfcl_source, tmp_path):
    env, ask = test_bfcl_plan.env(bfcl_source), test_bfcl_plan.request(tmp_path, "simple_java")
    left(Bfcl(), env, ask)
    assert begun_again(Bfcl(), env, replace(ask, trials=3)) == {
        "simple_java-0": "done",
        "simple_java-1": "empty",
        "simple_java-2": "empty",
    }


def test_how_many_run_beside_each_other_and_how_long_they_may_take_count_for_nothing(
    tau2_env, bfcl_source, tmp_path
):
    bfcl = test_bfcl_plan.env(bfcl_source), test_bfcl_plan.request(tmp_path / "b", "simple_java")
    for adapter, env, ask in ((Tau2(), tau2_env, test_tau2_plan.request(tmp_path)), (Bfcl(), *bfcl)):
        left(adapter, env, ask)
        faster = replace(ask, concurrency=ask.concurrency * 4, deadline_s=9.0)
        assert set(begun_again(adapter, env, faster).values()) == {"done"}


def test_changed_code_of_a_driver_or_of_what_serves_makes_every_job_another(
    bfcl_source, tmp_path, monkeypatch
):
    env, ask = test_bfcl_plan.env(bfcl_source), test_bfcl_plan.request(tmp_path, "simple_java")
    own = DRIVER.parent
    assert {
        own / "driver.py",
        own / "failures.py",
        Path(answers.__file__),
        Path(server.__file__),
        Path(calls.__file__),
    } <= set(resume.code_files(own))
    code = tmp_path / "driver.py"
    code.write_text("ask(again=3)")
    monkeypatch.setattr(resume, "code_files", lambda folder: [code] if folder == own else [])
    left(Bfcl(), env, ask)
    assert begun_again(Bfcl(), env, ask) == {"simple_java-0": "done"}
    code.write_text("ask(again=4)")
    assert begun_again(Bfcl(), env, ask) == {"simple_java-0": "empty"}


def test_a_new_port_of_the_agent_is_no_other_job_whatever_ports_the_others_have(tau2_env, tmp_path):
    ask = test_tau2_plan.request(tmp_path)  # the agent at port 1, before the user at 2 and the judge at 3
    moved = replace(ask.roles, agent=replace(ask.roles.agent, base_url="http://127.0.0.1:9/v1"))
    jobs = Tau2().plan(tau2_env, ask)
    assert [j.reaches for j in jobs if j.name == "retail"] == [
        tuple(e.base_url for e in (ask.roles.agent, ask.roles.user, ask.roles.judge))
    ]
    left(Tau2(), tau2_env, ask)
    again = begun_again(Tau2(), tau2_env, replace(ask, roles=moved))
    assert again == {"airline": "done", "retail": "done", "floor": "done"}


def test_rows_or_tools_edited_under_the_same_name_are_played_anew(tmp_path):
    tools = tmp_path / "tools.json"
    tools.write_text("[]")
    ask = test_finmcp_rows.request_of(tmp_path, tools=str(tools))
    env = test_finmcp_rows.env_of(tmp_path, ask)
    left(FinMcp(), env, ask)
    assert set(begun_again(FinMcp(), env, ask).values()) == {"done"}
    tools.write_text('[{"name": "get_quote"}]')
    assert set(begun_again(FinMcp(), env, ask).values()) == {"empty"}
    left(FinMcp(), env, ask)
    rows = Path(ask.options["uri"])
    rows.write_text(rows.read_text().replace("1.25", "9.75"))  # what a tool replies
    assert set(begun_again(FinMcp(), env, ask).values()) == {"empty"}
    tools.unlink()
    with pytest.raises(UserError, match=r"tools.json' is no file; correct it"):
        FinMcp().plan(env, ask)


@pytest.mark.parametrize(("code", "mark"), [(0, "done.json"), (1, "ended.json"), (None, "ended.json")])
def test_a_job_that_owes_no_samples_is_done_when_it_ended_well(tau2_env, tmp_path, code, mark):
    ask = test_tau2_plan.request(tmp_path)
    marks = left(Tau2(), tau2_env, ask)  # done.json is here already
    floor = Tau2().plan(tau2_env, ask)[-1]
    folder = ask.out.resolve() / "floor"
    run = RawRun(job=floor, folder=folder, code=code, seconds=1.0, log=folder / "log.txt", isolated=True)
    resume.settle(run, [], marks)
    assert [name for name in ("done.json", "ended.json") if (folder / name).exists()] == [mark]


def test_a_job_has_one_mark_whatever_it_was_before(bfcl_source, tmp_path):
    env, ask = test_bfcl_plan.env(bfcl_source), test_bfcl_plan.request(tmp_path, "simple_java")
    marks = left(Bfcl(), env, ask)
    [job] = Bfcl().plan(env, ask)
    folder = ask.out.resolve() / job.name
    run = RawRun(job=job, folder=folder, code=0, seconds=1.0, log=folder / "log.txt", isolated=True)

    def marked(status: SampleStatus) -> tuple[bool, bool]:
        samples = [SampleRecord(task=t, trial=k, seed=0, status=status) for t, k in job.planned]
        resume.settle(run, samples, marks)
        return (folder / "done.json").exists(), (folder / "ended.json").exists()

    assert marked(SampleStatus.MISSING) == (False, True)
    assert marked(SampleStatus.AGENT_FAILURE) == (True, False)
