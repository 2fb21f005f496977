"""What an earlier evaluation left is gone on with when trials are added, and kept when only speed is changed."""

import pytest
import test_bfcl_plan
import test_tau2_plan

from envace.bench.bfcl.adapter import Bfcl
from envace.bench.harness import resume
from envace.bench.harness.spec import RawRun
from envace.bench.tau2.adapter import Tau2
from envace.types import SampleRecord, SampleStatus, replace

bfcl_source, tau2_env = (
    test_bfcl_plan.source,
    test_tau2_plan.env,
)  # fixtures: harnesses of which only tasks exist


@pytest.fixture(autouse=True)
def built(monkeypatch):
    """Harnesses without a program have no installed versions."""
    monkeypatch.setattr(resume, "versions", lambda env: {})


WHOSE = {"policy": "p", "policy_hash": "h", "variant": "plain"}


def left(adapter, env, request) -> "resume.Marks":
    """As an evaluation leaves its folders: each job begun, with a file in it, and done."""
    marks = resume.Marks(adapter, env, request, WHOSE)
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
    marks, said = resume.Marks(adapter, env, request, WHOSE), {}
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
        "airline": "goes on", "retail": "goes on", "floor": "done",
    }  # fmt: skip
    assert begun_again(Tau2(), tau2_env, replace(ask, trials=5, seed=1))["airline"] == "empty"


def test_bfcl_runs_the_new_trials_only(bfcl_source, tmp_path):
    env, ask = test_bfcl_plan.env(bfcl_source), test_bfcl_plan.request(tmp_path, "simple_java")
    left(Bfcl(), env, ask)
    assert begun_again(Bfcl(), env, replace(ask, trials=3)) == {
        "simple_java-0": "done", "simple_java-1": "empty", "simple_java-2": "empty",
    }  # fmt: skip


def test_how_many_run_beside_each_other_and_how_long_they_may_take_count_for_nothing(
    tau2_env, bfcl_source, tmp_path
):
    bfcl = test_bfcl_plan.env(bfcl_source), test_bfcl_plan.request(tmp_path / "b", "simple_java")
    for adapter, env, ask in ((Tau2(), tau2_env, test_tau2_plan.request(tmp_path)), (Bfcl(), *bfcl)):
        left(adapter, env, ask)
        faster = replace(ask, concurrency=ask.concurrency * 4, deadline_s=9.0)
        assert set(begun_again(adapter, env, faster).values()) == {"done"}
