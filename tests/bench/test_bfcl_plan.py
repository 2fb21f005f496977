"""What a request of BFCL runs, what it leaves out and why, and what each process is told."""

import json
from pathlib import Path

import pytest

from envace.bench.bfcl import tasks as bfcl_tasks
from envace.bench.bfcl.adapter import Bfcl
from envace.bench.bfcl.tasks import ALL, COUNTS, GROUPS, VERSIONS, select
from envace.bench.harness.build import LOCKS
from envace.bench.harness.spec import EvalRequest, EvalRoles, HarnessEnv
from envace.errors import DataError, UserError
from envace.types import Endpoint, Sampling

SCENARIOS = {"customer": 10, "healthcare": 5, "finance": 7, "student": 10, "notetaker": 5}


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """A package folder with as many entries as the real one, and no words."""
    root = tmp_path_factory.mktemp("site-packages")
    data = root / bfcl_tasks.DATA
    (data / "possible_answer").mkdir(parents=True)
    (data / "memory_prereq_conversation").mkdir()
    files = {c: COUNTS[c] for c in ALL if c not in bfcl_tasks.MEMORY + bfcl_tasks.WEB_SEARCH}
    for name, count in {**files, "memory": 155, "web_search": 100}.items():
        scenarios = [f"-{list(SCENARIOS)[n % 5]}-{n}" if name == "memory" else "" for n in range(count)]
        rows = [{"id": f"{name}_{n}{s}", "question": [[]]} for n, s in enumerate(scenarios)]
        write(data / f"BFCL_v4_{name}.json", rows)
        truth = [["call()"]] if name.startswith("multi_turn") else ["Ann"]
        if "relevance" not in name:
            write(
                data / "possible_answer" / f"BFCL_v4_{name}.json",
                [{"id": r["id"], "ground_truth": truth} for r in rows],
            )
    for scenario, count in SCENARIOS.items():
        rows = [{"id": f"memory_prereq_{n}-{scenario}-{n}"} for n in range(count)]
        write(data / "memory_prereq_conversation" / f"memory_{scenario}.json", rows)
    return root


def write(path, rows):
    path.write_text("".join(json.dumps(r) + "\n" for r in rows))


def env(source):
    return HarnessEnv(spec=Bfcl().spec({}), root=source, python=Path("/venv/bin/python"), source=source)


def request(tmp_path, *subsets, endpoint=None, trials=1, **changes):
    agent = endpoint or Endpoint(base_url="http://127.0.0.1:9/v1", model="org/policy_1")
    return EvalRequest(
        roles=EvalRoles(agent=agent), subsets=subsets, trials=trials, seed=3, out=tmp_path, **changes
    )


def told(job):
    return json.loads(job.files["job.json"])


def test_every_score_says_that_nobody_else_played_and_on_which_data(source, tmp_path):
    made = Bfcl().summarise(
        env(source), request(tmp_path, "simple_python"), [], bootstrap=10, versions={"torch": "2"}
    )
    for score in made:
        said = score.versions
        assert (said["user"], said["judge"], said["thinking"], said["torch"]) == (
            "none",
            "none",
            "false",
            "2",
        )
        assert said["data"] and score.data_hash.startswith(said["data"])


def test_groups_are_expanded_once_and_in_order():
    asked = select(["multi_turn_base", "multi_turn", "simple_python"], lambda category: "")
    assert asked == (["simple_python", *bfcl_tasks.MULTI_TURN], {})
    assert len(GROUPS["all_scoring"]) == 22 and sum(COUNTS.values()) == 5106
    assert set(GROUPS["all_scoring"]) - set(GROUPS["offline"]) == {*bfcl_tasks.WEB_SEARCH, "memory_vector"}


def test_an_unknown_subset_is_named_with_the_known_ones(source, tmp_path):
    with pytest.raises(UserError, match="no subset 'simple'.*non_live.*simple_python"):
        Bfcl().plan(env(source), request(tmp_path, "simple"))


def test_without_subsets_everything_offline_is_planned(source, tmp_path):
    jobs = Bfcl().plan(env(source), request(tmp_path))
    assert [j.name for j in jobs] == [f"{c}-0" for c in GROUPS["offline"]]
    assert sum(len(j.planned) for j in jobs) == 5106 - 355
    assert not any(told(j)["ids"] for j in jobs), "a whole category needs no list of ids"


def test_what_needs_the_web_or_a_second_model_is_skipped_with_a_reason(source, tmp_path, monkeypatch):
    monkeypatch.delenv("SERPAPI_API_KEY", raising=False)
    r = request(tmp_path, "agentic", limit=1)
    assert {j.name for j in Bfcl().plan(env(source), r)} == {"memory_kv-0", "memory_rec_sum-0"}
    overall = Bfcl().summarise(env(source), r, [], bootstrap=10)[-1]
    reasons = dict(s.split(": ", 1) for s in overall.skipped)
    assert "open web" in reasons["web_search_base"] and "torch" in reasons["memory_vector"]
    assert reasons["simple_python"] == "not asked for" and overall.score is None
    with pytest.raises(UserError, match="nothing left to run: web_search_base needs the key"):
        Bfcl().plan(env(source), request(tmp_path, "web_search", options={"open_network": True}))


def test_web_search_has_the_open_network_and_its_key_by_name_only(source, tmp_path, monkeypatch):
    monkeypatch.setenv("MY_SEARCH", "sesame-key")
    options = {"open_network": True, "serpapi_key_env": "MY_SEARCH"}
    job = Bfcl().plan(env(source), request(tmp_path, "web_search_base", limit=1, options=options))[0]
    assert job.open_network and job.secrets == {"SERPAPI_API_KEY": "MY_SEARCH"} and "sesame" not in repr(job)


def test_the_same_tasks_are_chosen_for_every_policy_and_trial(source, tmp_path):
    def planned(url):
        endpoint = Endpoint(base_url=url, model="m")
        jobs = Bfcl().plan(
            env(source), request(tmp_path, "live_simple", endpoint=endpoint, trials=2, limit=7)
        )
        return [[t for t, _ in j.planned] for j in jobs]

    (first, second), (other, _) = planned("http://127.0.0.1:1/v1"), planned("http://127.0.0.1:2/v1")
    assert first == second == other and len(first) == 7 and first[0].startswith("live_simple/live_simple_")


def test_a_part_of_memory_brings_the_whole_chains_of_its_scenarios(source, tmp_path):
    job = Bfcl().plan(env(source), request(tmp_path, "memory_kv", limit=2))[0]
    asked = [t.split("/")[1] for t, _ in job.planned]
    scenarios = {bfcl_tasks.scenario(i) for i in asked}
    before = [i for i in told(job)["ids"] if "_prereq_" in i]
    assert len(before) == sum(SCENARIOS[s] for s in scenarios) and told(job)["ids"][-2:] == asked
    assert all(i.startswith("memory_kv_prereq_") for i in before)


def test_each_trial_is_a_process_with_a_seed_of_its_own(source, tmp_path):
    agent = Endpoint(
        base_url="http://h.example/v1",
        model="m",
        key_env="POLICY_KEY",
        extra_body={"reasoning": "low"},
        sampling=Sampling(temperature=0.7, top_p=0.9, top_k=20, max_tokens=2048),
    )
    r = request(tmp_path, "simple_python", endpoint=agent, trials=2, limit=1, thinking=True, deadline_s=60)
    jobs = Bfcl().plan(env(source), r)
    assert [j.name for j in jobs] == ["simple_python-0", "simple_python-1"]
    assert [told(j)["request"]["seed"] for j in jobs] == [3, 4]
    asked = told(jobs[0])
    assert (asked["temperature"], asked["request"]["max_tokens"], asked["request"]["top_p"]) == (
        0.7,
        2048,
        0.9,
    )
    assert asked["request"]["extra_body"] == {
        "top_k": 20,
        "chat_template_kwargs": {"enable_thinking": True},
        "reasoning": "low",
    }
    assert (
        jobs[0].reaches == ("http://h.example/v1",) and jobs[0].env["OPENAI_BASE_URL"] == jobs[0].reaches[0]
    )
    assert jobs[0].secrets == {"OPENAI_API_KEY": "POLICY_KEY"} and "OPENAI_API_KEY" not in jobs[0].env
    assert jobs[0].deadline_s == 60 and jobs[0].argv[0] == "/venv/bin/python"


def test_an_endpoint_that_refuses_template_options_can_go_without(source, tmp_path):
    job = Bfcl().plan(env(source), request(tmp_path, "simple_python", options={"template_kwargs": False}))[0]
    assert told(job)["request"]["extra_body"] == {}


def test_sampling_is_said_in_full_so_that_the_servers_own_does_not_count(source, tmp_path):
    asked = told(Bfcl().plan(env(source), request(tmp_path, "simple_python"))[0])["request"]
    assert asked["top_p"] == 1.0 and "top_k" not in asked["extra_body"]
    query = Endpoint(base_url="http://h/v1?key=sesame", model="m")
    with pytest.raises(UserError, match="bfcl cannot ask m"):
        Bfcl().plan(env(source), request(tmp_path, "simple_python", endpoint=query))


def test_an_answer_as_long_as_the_context_is_refused_before_anything_starts(source, tmp_path):
    agent = Endpoint(base_url="http://h/v1", model="m", context=4096, sampling=Sampling(max_tokens=4096))
    with pytest.raises(UserError, match="no room for a prompt"):
        Bfcl().plan(env(source), request(tmp_path, endpoint=agent))


def test_a_package_that_holds_other_entries_is_not_the_benchmark(source, tmp_path):
    data = tmp_path / bfcl_tasks.DATA
    data.mkdir(parents=True)
    write(data / "BFCL_v4_simple_java.json", [{"id": f"simple_java_{n}"} for n in range(99)])
    with pytest.raises(DataError, match="holds 99 entries in 99 rows, BFCL-v4 has 100"):
        bfcl_tasks.question_ids(tmp_path, "simple_java")
    with pytest.raises(DataError, match="cannot be read"):
        bfcl_tasks.question_ids(tmp_path, "simple_python")


def test_doing_nothing_passes_where_calling_nothing_is_right(source):
    def floor(category):
        return bfcl_tasks.do_nothing(source, category, bfcl_tasks.question_ids(source, category))

    assert [floor(c) for c in ("irrelevance", "live_irrelevance", "live_relevance", "simple_python")] == [
        1,
        1,
        0,
        0,
    ]
    assert floor("multi_turn_base") == floor("memory_kv") == 0
    assert bfcl_tasks.passed_by_nothing("memory_kv", ["i do not"]) and not bfcl_tasks.passed_by_nothing(
        "memory_kv", ["not know it"]
    )
    assert bfcl_tasks.passed_by_nothing("multi_turn_miss_func", [[], []])


def test_two_versions_are_two_locks_and_two_environments(tmp_path):
    newest, earlier = (Bfcl().spec({"version": v}) for v in VERSIONS)
    assert newest.ref != earlier.ref and newest.lock != earlier.lock
    for spec in (newest, earlier):
        lines = (LOCKS / spec.lock).read_text().split()
        assert f"bfcl-eval=={spec.version}" in lines and any(line.startswith("soundfile==") for line in lines)
        assert all("==" in line and "/" not in line for line in lines), "a lock holds no addresses"
        assert not any(line.startswith(("torch==", "faiss-cpu==")) for line in lines)
    with pytest.raises(UserError, match="version '1.0' is not one of 2026.3.23"):
        Bfcl().spec({"version": "1.0"})
