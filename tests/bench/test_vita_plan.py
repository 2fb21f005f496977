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
from envace.types import Endpoint, Sampling

IDS = [f"{k:03d}" for k in range(20)]


@pytest.fixture
def env(tmp_path, monkeypatch) -> HarnessEnv:
    """A copy of the repository that holds the delivery tasks in Chinese and nothing else."""
    path = tmp_path / "source" / vita_tasks.FOLDER / "delivery" / "tasks.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps([{"id": i, "evaluation_criteria": {"overall_rubrics": ["x"]}} for i in IDS]))
    data = path.read_bytes()
    blob = hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
    monkeypatch.setitem(vita_tasks.BLOBS, "delivery/tasks.json", blob)
    root = tmp_path
    return HarnessEnv(
        spec=Vita().spec({}), root=root, python=root / "venv/bin/python", source=root / "source"
    )


def request_of(tmp_path: Path, **changes) -> EvalRequest:
    agent = Endpoint(base_url="http://127.0.0.1:1/v1", model="same", key_env="AGENT_KEY")
    user = Endpoint(base_url="http://127.0.0.1:2/v1", model="same", key_env="USER_KEY")
    judge = Endpoint(base_url="http://127.0.0.1:3/v1", model="j", sampling=Sampling(temperature=0.0))
    fields = {"subsets": ("delivery",), "trials": 2, "seed": 7, "out": tmp_path / "out"} | changes
    return EvalRequest(roles=EvalRoles(agent=agent, user=user, judge=judge), **fields)


def test_a_job_a_trial_with_its_own_absolute_results_file(env, tmp_path):
    jobs = Vita().plan(env, request_of(tmp_path, limit=5))
    assert [j.name for j in jobs] == ["delivery-0", "delivery-1"]
    assert [len(j.planned) for j in jobs] == [5, 5]
    argv = [json.loads(j.files["job.json"])["argv"] for j in jobs]
    saved = [a[a.index("--save-to") + 1] for a in argv]
    assert all(Path(s).is_absolute() for s in saved) and len(set(saved)) == 2
    assert [a[a.index("--seed") + 1] for a in argv] == ["7000", "7001"]
    assert jobs[0].reaches == tuple(f"http://127.0.0.1:{p}/v1" for p in (1, 2, 3))


def test_the_limit_chooses_the_same_tasks_by_hash_each_time(env, tmp_path):
    ranked = sorted(IDS, key=lambda i: hashlib.sha256(f"7/{i}".encode()).hexdigest())[:5]
    planned = Vita().plan(env, request_of(tmp_path, limit=5))[0].planned
    assert [t for t, _ in planned] == [f"delivery/{i}" for i in IDS if i in ranked]


def test_keys_stand_nowhere_but_in_named_variables(env, tmp_path, monkeypatch):
    monkeypatch.setenv("AGENT_KEY", "canary-agent")
    monkeypatch.setenv("USER_KEY", "canary-user")
    job = Vita().plan(env, request_of(tmp_path))[0]
    assert job.secrets == {"VITA_AGENT_KEY": "AGENT_KEY", "VITA_USER_KEY": "USER_KEY"}
    assert "canary" not in repr(job)


def test_the_harness_is_told_no_address_and_keeps_two_roles_of_one_model_apart(env, tmp_path):
    models = json.loads(Vita().plan(env, request_of(tmp_path))[0].files["models.yaml"])["models"]
    assert [m["name"] for m in models] == ["agent/same", "user/same", "judge/j"]
    assert [m["base_url"] for m in models] == ["agent", "user", "judge"]
    assert all(m["headers"] == {} for m in models)


def test_thinking_and_language_are_arguments(env, tmp_path):
    def argv(**changes):
        return json.loads(Vita().plan(env, request_of(tmp_path, **changes))[0].files["job.json"])["argv"]

    assert "--enable-think" in argv(thinking=True) and "--enable-think" not in argv()
    assert argv()[argv().index("--language") + 1] == "chinese"


def test_the_agents_template_is_told_whether_to_think_and_the_score_says_what_it_was_told(env, tmp_path):
    def told(**changes):
        request = request_of(tmp_path, **changes)
        roles = json.loads(Vita().plan(env, request)[0].files["job.json"])["roles"]
        assert not any("chat_template_kwargs" in roles[r]["body"] for r in ("user", "judge"))
        return roles["agent"]["body"].get("chat_template_kwargs"), thinking_of(request)

    assert told() == ({"enable_thinking": False}, "false")
    assert told(thinking=True) == ({"enable_thinking": True}, "true")
    assert told(thinking=True, options={"template_kwargs": False}) == (None, "unknown")


def test_a_domain_whose_data_are_absent_is_named_with_the_reason(env, tmp_path):
    with pytest.raises(
        UserError, match=r"domain ota cannot run in chinese, because data/vita/domains/ota/tasks.json"
    ):
        Vita().plan(env, request_of(tmp_path, subsets=("delivery", "ota")))
    with pytest.raises(UserError, match="delivery cannot run in english"):
        Vita().plan(env, request_of(tmp_path, options={"language": "english"}))


def test_domains_without_data_are_named_with_the_way_to_get_them(env):
    (said,) = lacking(env)
    assert said.startswith("cannot run delivery (english), instore (chinese)") and "--uri vita=" in said


def test_task_data_of_another_revision_are_refused(env, tmp_path):
    (env.source / vita_tasks.FOLDER / "delivery" / "tasks.json").write_text("[]")
    with pytest.raises(DataError, match="not the file of revision 96f3b852"):
        Vita().plan(env, request_of(tmp_path))


def test_a_missing_role_is_asked_for(env, tmp_path):
    request = request_of(tmp_path)
    agent_only = EvalRequest(
        roles=EvalRoles(agent=request.roles.agent), subsets=("delivery",), trials=1, seed=0, out=tmp_path
    )
    with pytest.raises(UserError, match="vita needs a user:"):
        Vita().plan(env, agent_only)


def test_unknown_names_are_refused(env, tmp_path):
    with pytest.raises(UserError, match="no subset 'delivry'"):
        Vita().plan(env, request_of(tmp_path, subsets=("delivry",)))
    with pytest.raises(UserError, match="no option 'lang'"):
        Vita().spec({"lang": "english"})
    with pytest.raises(UserError, match="'klingon' is not one of chinese, english"):
        Vita().spec({"language": "klingon"})


def test_a_score_says_who_judged_and_in_which_language(env, tmp_path):
    from envace.types import SampleRecord, SampleStatus

    metrics = {"reward": 1.0, "rubrics": 1.0, "steps": 1.0, "calls": 1.0, "upstream": 1.0}
    sample = SampleRecord(
        task="delivery/000", trial=0, seed=0, status=SampleStatus.SCORED, reward=1.0, metrics=metrics
    )
    made = Vita().summarise(env, request_of(tmp_path), [sample], policy="p", versions={"envace": "1"})
    assert {r.versions["judge"] for r in made} == {"j"} and {r.versions["language"] for r in made} == {
        "chinese"
    }
    said = made[-1].versions
    assert (said["user"], said["thinking"]) == ("same", "false") and made[-1].data_hash.startswith(
        said["data"]
    )
    assert made[0].versions["envace"] == "1" and made[0].harness.startswith("vita-96f3b8529d8e")
    assert made[-1].skipped == ("instore: not asked for", "ota: not asked for", "cross: not asked for")
