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
from envace.types import Endpoint, Sampling

AGENT = Endpoint(
    base_url="http://127.0.0.1:1/v1", model="policy", key_env="AGENT_KEY", sampling=Sampling(temperature=0.5)
)
USER = Endpoint(
    base_url="http://127.0.0.1:2/v1",
    model="lab/user",
    key_env="USER_KEY",
    sampling=Sampling(temperature=0.3, max_tokens=700),
)
JUDGE = Endpoint(
    base_url="http://127.0.0.1:3/v1",
    model="judge",
    key_env="JUDGE_KEY",
    sampling=Sampling(temperature=0.0, max_tokens=900, top_k=5),
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
    for domain, rows in tasks.items():
        folder = tmp_path / "source" / "data" / "tau2" / "domains" / domain
        folder.mkdir(parents=True)
        ids = [row["id"] for row in rows]
        splits = (
            {"base": ids[:-1], "test": ids[:1], "full": ids}
            if domain == "telecom"
            else {"base": ids, "test": ids[:1]}
        )
        (folder / "tasks.json").write_text(json.dumps(rows))
        (folder / "split_tasks.json").write_text(json.dumps(splits))
    spec = Tau2().spec({})
    return HarnessEnv(
        spec=spec, root=tmp_path, python=tmp_path / "venv/bin/python", source=tmp_path / "source"
    )


def request(tmp_path: Path, subsets: tuple[str, ...] = ("airline", "retail"), **more: Any) -> EvalRequest:
    roles = EvalRoles(agent=AGENT, user=more.pop("user", USER), judge=more.pop("judge", JUDGE))
    known = {"roles": roles, "subsets": subsets, "trials": 2, "seed": 300, "out": tmp_path / "out"}
    return EvalRequest(**(known | more))


def told(job: HarnessJob) -> dict[str, Any]:
    return json.loads(job.files["job.json"])


def argument(job: HarnessJob, name: str) -> str:
    argv = told(job)["runs"][0]
    return argv[argv.index(name) + 1]


def test_upstream_is_the_default_and_the_fork_is_never_called_upstream() -> None:
    upstream, fork = Tau2().spec({}), Tau2().spec({"source": "fork"})
    assert (upstream.version, upstream.label, upstream.python) == (REVISIONS["v1.0.1"], "v1.0.1", "3.12")
    assert (fork.name, fork.version, fork.label, fork.kind) == ("tau2-fork", "26.3", FORK_LABEL, "pypi")
    assert "upstream" not in fork.label and fork.ref != upstream.ref


def test_two_revisions_are_two_folders_and_an_address_is_none() -> None:
    refs = {Tau2().spec({"revision": r}).ref for r in (*REVISIONS, "0" * 40)}
    assert len(refs) == 3
    assert Tau2().spec({"uri": "/some/mirror"}).ref == Tau2().spec({}).ref


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"revision": "main"}, "main"),
        ({"source": "pypi"}, "pypi"),
        ({"split": "full"}, "full"),
        ({"retrieval": "openai_embeddings"}, "openai_embeddings"),
        ({"spilt": "test"}, "spilt"),
    ],
)
def test_an_option_that_cannot_be_used_is_named(options: dict[str, Any], named: str) -> None:
    with pytest.raises(UserError, match=named):
        Tau2().spec(options)


def test_each_subset_is_one_job_with_all_its_trials_and_the_floor_owes_nothing(
    env: HarnessEnv, tmp_path: Path
) -> None:
    airline, retail, floor = Tau2().plan(env, request(tmp_path))
    assert [j.name for j in (airline, retail, floor)] == ["airline", "retail", "floor"]
    assert len(airline.planned) == 20 and ("airline/7", 1) in airline.planned
    assert not floor.planned and not floor.reaches and not floor.secrets
    assert argument(airline, "--num-trials") == "2" and argument(floor, "--num-trials") == "1"
    assert len(told(floor)["runs"]) == 2


def test_the_limit_picks_by_hash_the_same_tasks_for_everybody(env: HarnessEnv, tmp_path: Path) -> None:
    first, again = (Tau2().plan(env, request(tmp_path, limit=3))[0].planned for _ in range(2))
    other = Tau2().plan(env, request(tmp_path, limit=3, seed=7))[0].planned
    assert first == again and len(first) == 6 and other != first


def test_the_split_decides_which_tasks_are_owed(env: HarnessEnv, tmp_path: Path) -> None:
    base = Tau2().plan(env, request(tmp_path, ("telecom",)))[0]
    test = Tau2().plan(env, request(tmp_path, ("telecom",), options={"split": "test"}))[0]
    assert len(base.planned) == 6 and len(test.planned) == 2  # never all that the file holds
    assert argument(test, "--task-split-name") == "test"


def test_the_workflow_policy_plays_the_same_tasks(env: HarnessEnv) -> None:
    o = Tau2Options()
    assert chosen(env, o, "telecom-workflow") == chosen(env, o, "telecom")


def test_a_subset_that_cannot_be_had_is_skipped_with_its_reason_and_an_unknown_one_refused(
    env: HarnessEnv, tmp_path: Path
) -> None:
    asked = request(tmp_path, ("airline", "mock"), options={"split": "test"})
    assert [j.name for j in Tau2().plan(env, asked)] == ["airline", "floor"]
    scores = Tau2().summarise(env, asked, [], bootstrap=10)
    assert all("mock: has no test split" in s.skipped for s in scores)
    with pytest.raises(UserError, match="'flights'"):
        Tau2().plan(env, request(tmp_path, ("flights",)))


def test_every_score_says_who_played_judged_where_a_judge_grades_and_on_which_data(
    env: HarnessEnv, tmp_path: Path
) -> None:
    scores = Tau2().summarise(env, request(tmp_path), [], bootstrap=10, versions={"torch": "2"})
    said = {s.subset: s for s in scores}
    assert {s.versions["user"] for s in scores} == {"lab/user"} and {
        s.versions["thinking"] for s in scores
    } == {"false"}
    assert said["airline"].versions["judge"] == "none" and said["retail"].versions["judge"] == "judge"
    assert said["macro"].versions["judge"] == "none; judge" and said["macro"].versions["torch"] == "2"
    assert len({s.data_hash for s in said.values()}) == 3  # of each domain, and of all of an average
    assert all(
        s.data_hash.startswith(s.versions["data"])
        for name, s in said.items()
        if name in ("airline", "retail")
    )
    before = said["airline"].data_hash
    (env.source / "data/tau2/domains/airline/db.json").write_text("{}")
    assert Tau2().summarise(env, request(tmp_path), [], bootstrap=10)[0].data_hash != before


def test_a_harness_without_its_tasks_says_so(env: HarnessEnv, tmp_path: Path) -> None:
    (env.source / "data/tau2/domains/airline/tasks.json").unlink()
    with pytest.raises(DataError, match="build it anew"):
        Tau2().plan(env, request(tmp_path))


def test_every_role_has_its_own_server_name_and_key(env: HarnessEnv, tmp_path: Path) -> None:
    job = Tau2().plan(env, request(tmp_path))[1]
    assert (
        argument(job, "--agent-llm") == "openai/policy" and argument(job, "--user-llm") == "openai/lab/user"
    )
    assert json.loads(argument(job, "--agent-llm-args"))["api_base"] == AGENT.base_url
    user = json.loads(argument(job, "--user-llm-args"))
    sampling = {"temperature": 0.3, "top_p": 1.0, "max_tokens": 700}
    assert user == {"api_base": USER.base_url, "timeout": 600.0, "num_retries": 3} | sampling
    assert (
        told(job)["judge"]["model"] == "openai/judge"
        and told(job)["judge"]["args"]["api_base"] == JUDGE.base_url
    )
    judge = told(job)["judge"]["args"]
    assert (judge["temperature"], judge["max_tokens"], judge["extra_body"]) == (0.0, 900, {"top_k": 5})
    assert job.secrets == {
        "TAU2_AGENT_KEY": "AGENT_KEY",
        "TAU2_USER_KEY": "USER_KEY",
        "TAU2_JUDGE_KEY": "JUDGE_KEY",
    }
    assert set(job.reaches) == {AGENT.base_url, USER.base_url, JUDGE.base_url}


def test_keys_stand_nowhere_but_in_the_environment(
    env: HarnessEnv, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AGENT_KEY", "USER_KEY", "JUDGE_KEY"):
        monkeypatch.setenv(name, "canary-4711")
    assert "canary" not in repr(Tau2().plan(env, request(tmp_path)))


def test_an_address_with_a_query_is_refused_with_what_to_do(env: HarnessEnv, tmp_path: Path) -> None:
    user = Endpoint(base_url="http://127.0.0.1:2/v1?api_key=sesame", model="u")
    with pytest.raises(UserError, match="name the key by key_env") as caught:
        Tau2().plan(env, request(tmp_path, user=user))
    assert "sesame" not in str(caught.value)


def test_one_server_for_two_roles_needs_one_key(env: HarnessEnv, tmp_path: Path) -> None:
    twin = Endpoint(base_url=AGENT.base_url, model=AGENT.model, key_env="OTHER_KEY")
    with pytest.raises(UserError, match="two keys"):
        Tau2().plan(env, request(tmp_path, user=twin))
    same = Endpoint(base_url=AGENT.base_url, model=AGENT.model, key_env=AGENT.key_env)
    assert Tau2().plan(env, request(tmp_path, user=same))


def test_the_agent_gets_its_sampling_and_what_its_endpoint_wants_sent(
    env: HarnessEnv, tmp_path: Path
) -> None:
    args = json.loads(argument(Tau2().plan(env, request(tmp_path))[0], "--agent-llm-args"))
    assert (args["temperature"], args["max_tokens"]) == (0.5, 512)
    assert args["extra_body"] == {"chat_template_kwargs": {"enable_thinking": False}}
    plain = json.loads(
        argument(
            Tau2().plan(env, request(tmp_path, options={"template_kwargs": False}))[0], "--agent-llm-args"
        )
    )
    assert "extra_body" not in plain


def test_a_judge_is_asked_for_only_where_tasks_need_one(env: HarnessEnv, tmp_path: Path) -> None:
    (airline, _) = Tau2().plan(env, request(tmp_path, ("airline",), judge=None))
    assert JUDGE.base_url not in airline.reaches
    with pytest.raises(UserError, match="2 tasks graded by a judge"):
        Tau2().plan(env, request(tmp_path, ("retail",), judge=None))
    with pytest.raises(UserError, match="needs a user"):
        Tau2().plan(env, request(tmp_path, user=None))


def test_the_results_folder_is_absolute_and_resumed_without_a_question(
    env: HarnessEnv, tmp_path: Path
) -> None:
    job = Tau2().plan(env, request(tmp_path))[0]
    assert Path(argument(job, "--save-to")).is_absolute() and "--auto-resume" in told(job)["runs"][0]
    assert argument(job, "--max-retries") == "0"  # an agent's failure is not drawn again
    assert job.env["LITELLM_LOCAL_MODEL_COST_MAP"] == "True" and job.goes_on


def test_an_answer_longer_than_the_context_is_refused(env: HarnessEnv, tmp_path: Path) -> None:
    agent = Endpoint(
        base_url="http://127.0.0.1:1/v1", model="m", context=512, sampling=Sampling(max_tokens=512)
    )
    asked = request(tmp_path, roles=EvalRoles(agent=agent, user=USER, judge=JUDGE))
    with pytest.raises(UserError, match="no room"):
        Tau2().plan(env, asked)
