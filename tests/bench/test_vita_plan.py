"""What VitaBench is started with, and what is said when it cannot be."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from envace.bench.harness.planning import thinking_of
from envace.bench.harness.registry import lacking
from envace.bench.harness.spec import EvalRequest, EvalRoles, HarnessEnv
from envace.bench.vita import tasks as vita_tasks
from envace.bench.vita.adapter import Vita
from envace.errors import DataError, UserError
from envace.types import Endpoint, SampleRecord, SampleStatus, Sampling, replace

IDS = [f"{k:03}" for k in range(20)]


@pytest.fixture
def env(tmp_path, monkeypatch) -> HarnessEnv:
    """A copy of the repository that holds the delivery tasks in Chinese and nothing else."""
    path = tmp_path / "source" / vita_tasks.FOLDER / "delivery" / "tasks.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps([{"id": i, "evaluation_criteria": {"overall_rubrics": ["x"]}} for i in IDS]))
    data = path.read_bytes()
    blob = hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
    monkeypatch.setitem(vita_tasks.BLOBS, "delivery/tasks.json", blob)
    where = {"root": tmp_path, "python": tmp_path / "venv/bin/python", "source": tmp_path / "source"}
    return HarnessEnv(spec=Vita().spec({}), **where)


def request_of(tmp_path: Path, **changes) -> EvalRequest:
    agent = Endpoint(base_url="http://127.0.0.1:1/v1", model="same", key_env="AGENT_KEY")
    user = Endpoint(base_url="http://127.0.0.1:2/v1", model="same", key_env="USER_KEY")
    judge = Endpoint(base_url="http://127.0.0.1:3/v1", model="j", sampling=Sampling(temperature=0.0))
    roles = EvalRoles(agent=agent, user=user, judge=judge)
    known = {"roles": roles, "subsets": ("delivery",), "trials": 2, "seed": 7, "out": tmp_path / "out"}
    return EvalRequest(**(known | changes))


@pytest.fixture
def plan(env, tmp_path):
    return lambda **changes: Vita().plan(env, request_of(tmp_path, **changes))


def told(job) -> dict:
    return json.loads(job.files["job.json"])


def test_a_job_a_trial_with_its_own_absolute_results_file(plan):
    jobs = plan(limit=5)
    assert [j.name for j in jobs] == ["delivery-0", "delivery-1"]
    ranked = sorted(IDS, key=lambda i: hashlib.sha256(f"7/{i}".encode()).hexdigest())[:5]
    chosen = [f"delivery/{i}" for i in IDS if i in ranked]  # the same by hash each time
    assert [[t for t, _ in j.planned] for j in jobs] == [chosen] * 2
    argv = [told(j)["argv"] for j in jobs]
    saved = [a[a.index("--save-to") + 1] for a in argv]
    assert all(Path(s).is_absolute() for s in saved) and len(set(saved)) == 2
    assert [a[a.index("--seed") + 1] for a in argv] == ["7000", "7001"]
    assert jobs[0].reaches == tuple(f"http://127.0.0.1:{p}/v1" for p in (1, 2, 3))


def test_keys_stand_in_named_variables_and_the_harness_is_told_no_address(plan, monkeypatch):
    monkeypatch.setenv("AGENT_KEY", "canary-agent")
    monkeypatch.setenv("USER_KEY", "canary-user")
    job = plan()[0]
    assert job.secrets == {"VITA_AGENT_KEY": "AGENT_KEY", "VITA_USER_KEY": "USER_KEY"}
    assert "canary" not in repr(job)
    models = json.loads(job.files["models.yaml"])["models"]
    names = [("agent/same", "agent"), ("user/same", "user"), ("judge/j", "judge")]  # two of one model apart
    assert [(m["name"], m["base_url"]) for m in models] == names
    assert all(m["headers"] == {} for m in models)


@pytest.mark.parametrize(
    ("changes", "kwargs", "said"),
    [
        ({}, {"enable_thinking": False}, "false"),
        ({"thinking": True}, {"enable_thinking": True}, "true"),
        ({"thinking": True, "options": {"template_kwargs": False}}, None, "unknown"),
    ],
)
def test_the_agents_template_is_told_whether_to_think_and_the_score_says_what_it_was_told(
    plan, tmp_path, changes, kwargs, said
):
    job = told(plan(**changes)[0])
    bodies = {role: settings["body"].get("chat_template_kwargs") for role, settings in job["roles"].items()}
    assert bodies == {"agent": kwargs, "user": None, "judge": None}
    assert thinking_of(request_of(tmp_path, **changes)) == said
    assert ("--enable-think" in job["argv"]) is bool(changes)
    assert job["argv"][job["argv"].index("--language") + 1] == "chinese"


def test_a_domain_whose_data_are_absent_is_named_with_the_reason_and_the_way_to_get_them(env, plan):
    absent = r"domain ota cannot run in chinese, because data/vita/domains/ota/tasks.json"
    with pytest.raises(UserError, match=absent):
        plan(subsets=("delivery", "ota"))
    with pytest.raises(UserError, match="delivery cannot run in english"):
        plan(options={"language": "english"})
    (said,) = lacking(env)
    assert said.startswith("cannot run delivery (english), instore (chinese)") and "--uri vita=" in said


def test_task_data_of_another_revision_are_refused(env, plan):
    (env.source / vita_tasks.FOLDER / "delivery" / "tasks.json").write_text("[]")
    with pytest.raises(DataError, match="not the file of revision 96f3b852"):
        plan()


def test_missing_roles_and_unknown_names_are_refused(plan, tmp_path):
    with pytest.raises(UserError, match="vita needs a user:"):
        plan(roles=replace(request_of(tmp_path).roles, user=None, judge=None))
    with pytest.raises(UserError, match="no subset 'delivry'"):
        plan(subsets=("delivry",))
    with pytest.raises(UserError, match="no option 'lang'"):
        Vita().spec({"lang": "english"})
    with pytest.raises(UserError, match="'klingon' is not one of chinese, english"):
        Vita().spec({"language": "klingon"})


def test_a_score_says_who_judged_and_in_which_language(env, tmp_path):
    metrics = dict.fromkeys(("reward", "rubrics", "steps", "calls", "upstream"), 1.0)
    sample = SampleRecord(task="delivery/000", trial=0, seed=0, status=SampleStatus.SCORED, metrics=metrics)
    made = Vita().summarise(env, request_of(tmp_path), [sample], policy="p", versions={"envace": "1"})
    said = {"judge": "j", "language": "chinese", "user": "same", "thinking": "false", "envace": "1"}
    assert all(said.items() <= r.versions.items() for r in made)
    assert made[-1].data_hash.startswith(made[-1].versions["data"])
    assert made[0].harness.startswith("vita-96f3b8529d8e")
    assert made[-1].skipped == ("instore: not asked for", "ota: not asked for", "cross: not asked for")
