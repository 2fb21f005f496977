"""What tau² is asked to do: sources, subsets, limits, roles, keys, and the job files that say so."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from envace.bench.harness.spec import EvalRequest, EvalRoles, HarnessEnv, HarnessJob
from envace.bench.tau2.adapter import Tau2
from envace.bench.tau2.tasks import FORK_LABEL, REVISIONS, Tau2Options, chosen
from envace.errors import DataError, UserError
from envace.types import Endpoint, Sampling, replace

AGENT, USER, JUDGE = (
    Endpoint(base_url=f"http://127.0.0.1:{port}/v1", model=model, key_env=key, sampling=sampling)
    for port, model, key, sampling in (
        (1, "policy", "AGENT_KEY", Sampling(temperature=0.5)),
        (2, "lab/user", "USER_KEY", Sampling(temperature=0.3, max_tokens=700)),
        (3, "judge", "JUDGE_KEY", Sampling(temperature=0.0, max_tokens=900, top_k=5)),
    )
)


def task(ident: str, basis: list[str] | None = None, assertions: int = 0) -> dict[str, Any]:
    criteria: dict[str, Any] = {"nl_assertions": ["said so"] * assertions}
    return {"id": ident, "evaluation_criteria": criteria | ({"reward_basis": basis} if basis else {})}


@pytest.fixture
def env(tmp_path: Path) -> HarnessEnv:
    """A harness of which only the task files exist."""
    tasks = {
        "airline": [task(str(i), ["DB", "COMMUNICATE"]) for i in range(10)],
        "retail": [task(str(i), ["DB", "NL_ASSERTION"], assertions=i % 2) for i in range(4)],
        "telecom": [task(f"[mms]{i}|x") for i in range(4)],
        "mock": [task("m")],
    }
    source = tmp_path / "source"
    for domain, rows in tasks.items():
        folder, ids = source / "data/tau2/domains" / domain, [row["id"] for row in rows]
        folder.mkdir(parents=True)
        splits = {"base": ids[:-1] if domain == "telecom" else ids, "test": ids[:1], "full": ids}
        (folder / "tasks.json").write_text(json.dumps(rows))
        (folder / "split_tasks.json").write_text(json.dumps(splits))
    return HarnessEnv(spec=Tau2().spec({}), root=tmp_path, python=tmp_path / "venv/bin/python", source=source)


@pytest.fixture
def plan(env: HarnessEnv, tmp_path: Path):
    return lambda *subsets, **more: Tau2().plan(env, request(tmp_path, subsets, **more))


def request(tmp_path: Path, subsets: tuple[str, ...] = (), **more: Any) -> EvalRequest:
    roles = {role: more.pop(role, own) for role, own in (("agent", AGENT), ("user", USER), ("judge", JUDGE))}
    known = {"roles": EvalRoles(**roles), "subsets": subsets or ("airline", "retail"), "trials": 2}
    return EvalRequest(**(known | {"seed": 300, "out": tmp_path / "out"} | more))


def told(job: HarnessJob) -> dict[str, Any]:
    return json.loads(job.files["job.json"])


def argument(job: HarnessJob, name: str) -> Any:
    argv = told(job)["runs"][0]
    text = argv[argv.index(name) + 1]
    return json.loads(text) if name.endswith("-args") else text


def test_upstream_is_the_default_and_the_fork_is_never_called_upstream() -> None:
    upstream, fork = Tau2().spec({}), Tau2().spec({"source": "fork"})
    assert (upstream.version, upstream.label, upstream.python) == (REVISIONS["v1.0.1"], "v1.0.1", "3.12")
    assert (fork.name, fork.version, fork.label, fork.kind) == ("tau2-fork", "26.3", FORK_LABEL, "pypi")
    assert "upstream" not in fork.label and fork.ref != upstream.ref
    assert len({Tau2().spec({"revision": r}).ref for r in (*REVISIONS, "0" * 40)}) == 3
    assert Tau2().spec({"uri": "/some/mirror"}).ref == upstream.ref  # an address is no folder of its own


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("revision", "main"),
        ("source", "pypi"),
        ("split", "full"),
        ("retrieval", "openai_embeddings"),
        ("spilt", "spilt"),
    ],
)
def test_an_option_that_cannot_be_used_is_named(option: str, value: str) -> None:
    with pytest.raises(UserError, match=value):
        Tau2().spec({option: value})


def test_each_subset_is_one_job_with_all_its_trials_and_the_floor_owes_nothing(plan) -> None:
    airline, retail, floor = plan()
    assert [j.name for j in (airline, retail, floor)] == ["airline", "retail", "floor"]
    assert len(airline.planned) == 20 and ("airline/7", 1) in airline.planned
    assert not floor.planned and not floor.reaches and not floor.secrets
    assert argument(airline, "--num-trials") == "2" and argument(floor, "--num-trials") == "1"
    assert len(told(floor)["runs"]) == 2


def test_limit_and_split_decide_which_tasks_are_owed_the_same_for_everybody(plan, env) -> None:
    first, again, other = (plan(limit=3, seed=seed)[0].planned for seed in (300, 300, 7))
    assert first == again and len(first) == 6 and other != first
    base, test = plan("telecom")[0], plan("telecom", options={"split": "test"})[0]
    assert len(base.planned) == 6 and len(test.planned) == 2  # never all that the file holds
    assert argument(test, "--task-split-name") == "test"
    o = Tau2Options()
    assert chosen(env, o, "telecom-workflow") == chosen(env, o, "telecom")


def test_a_subset_that_cannot_be_had_is_skipped_with_its_reason_and_an_unknown_one_refused(
    env, tmp_path, plan
) -> None:
    asked = request(tmp_path, ("airline", "mock"), options={"split": "test"})
    assert [j.name for j in Tau2().plan(env, asked)] == ["airline", "floor"]
    scores = Tau2().summarise(env, asked, [], bootstrap=10)
    assert all("mock: has no test split" in s.skipped for s in scores)
    with pytest.raises(UserError, match="'flights'"):
        plan("flights")


def test_every_score_says_who_played_judged_where_a_judge_grades_and_on_which_data(env, tmp_path) -> None:
    def scores():
        return Tau2().summarise(env, request(tmp_path), [], bootstrap=10, versions={"torch": "2"})

    said = {s.subset: s for s in scores()}
    assert {(s.versions["user"], s.versions["thinking"]) for s in scores()} == {("lab/user", "false")}
    judges = {name: s.versions["judge"] for name, s in said.items()}
    assert (judges["airline"], judges["retail"], judges["macro"]) == ("none", "judge", "none; judge")
    assert said["macro"].versions["torch"] == "2"
    assert len({s.data_hash for s in said.values()}) == 3  # of each domain, and of all of an average
    assert said["retail"].data_hash.startswith(said["retail"].versions["data"])
    (env.source / "data/tau2/domains/airline/db.json").write_text("{}")
    assert scores()[0].data_hash != said["airline"].data_hash


def test_a_harness_without_its_tasks_says_so(env, plan) -> None:
    (env.source / "data/tau2/domains/airline/tasks.json").unlink()
    with pytest.raises(DataError, match="build it anew"):
        plan()


def test_every_role_has_its_own_server_settings_and_key(plan, monkeypatch) -> None:
    for name in ("AGENT_KEY", "USER_KEY", "JUDGE_KEY"):
        monkeypatch.setenv(name, "canary-4711")
    job = plan()[1]
    assert "canary" not in repr(job)
    assert (
        argument(job, "--agent-llm") == "openai/policy" and argument(job, "--user-llm") == "openai/lab/user"
    )
    own = {"timeout": 600.0, "num_retries": 3, "top_p": 1.0}
    think = {"chat_template_kwargs": {"enable_thinking": False}}
    agent = own | {"api_base": AGENT.base_url, "temperature": 0.5, "max_tokens": 512, "extra_body": think}
    assert argument(job, "--agent-llm-args") == agent
    user = own | {"api_base": USER.base_url, "temperature": 0.3, "max_tokens": 700}
    assert argument(job, "--user-llm-args") == user
    judge = own | {"api_base": JUDGE.base_url, "temperature": 0.0, "max_tokens": 900}
    assert told(job)["judge"] == {"model": "openai/judge", "args": judge | {"extra_body": {"top_k": 5}}}
    assert job.secrets == {f"TAU2_{role}_KEY": f"{role}_KEY" for role in ("AGENT", "USER", "JUDGE")}
    assert set(job.reaches) == {AGENT.base_url, USER.base_url, JUDGE.base_url}
    plain = plan(options={"template_kwargs": False})[0]
    assert "extra_body" not in argument(plain, "--agent-llm-args")


def test_an_address_with_a_query_is_refused_with_what_to_do(plan) -> None:
    with pytest.raises(UserError, match="name the key by key_env") as caught:
        plan(user=Endpoint(base_url="http://127.0.0.1:2/v1?api_key=sesame", model="u"))
    assert "sesame" not in str(caught.value)


def test_one_server_for_two_roles_needs_one_key(plan) -> None:
    with pytest.raises(UserError, match="two keys"):
        plan(user=replace(AGENT, key_env="OTHER_KEY"))
    assert plan(user=AGENT)


def test_a_judge_is_asked_for_only_where_tasks_need_one(plan) -> None:
    assert JUDGE.base_url not in plan("airline", judge=None)[0].reaches
    with pytest.raises(UserError, match="2 tasks graded by a judge"):
        plan("retail", judge=None)
    with pytest.raises(UserError, match="needs a user"):
        plan(user=None)


def test_the_results_folder_is_absolute_and_resumed_without_a_question(plan) -> None:
    job = plan()[0]
    assert Path(argument(job, "--save-to")).is_absolute() and "--auto-resume" in told(job)["runs"][0]
    assert argument(job, "--max-retries") == "0"  # an agent's failure is not drawn again
    assert job.env["LITELLM_LOCAL_MODEL_COST_MAP"] == "True" and job.goes_on


def test_an_answer_longer_than_the_context_is_refused(plan) -> None:
    with pytest.raises(UserError, match="no room"):
        plan(agent=replace(AGENT, context=512, sampling=Sampling(max_tokens=512)))
