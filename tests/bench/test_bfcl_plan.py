"""What a request of BFCL runs, what it leaves out and why, and what each process is told."""

import json
from pathlib import Path

import pytest

from envace.bench.bfcl import tasks as bfcl_tasks
from envace.bench.bfcl.adapter import VECTOR_MODEL, VECTOR_PACKAGES, Bfcl
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
    files = {c: COUNTS[c] for c in ALL if c not in bfcl_tasks.MEMORY + bfcl_tasks.WEB_SEARCH}
    for name, count in {**files, "memory": 155, "web_search": 100}.items():
        scenarios = [f"-{list(SCENARIOS)[n % 5]}-{n}" if name == "memory" else "" for n in range(count)]
        rows = [{"id": f"{name}_{n}{s}", "question": [[]]} for n, s in enumerate(scenarios)]
        write(data / f"BFCL_v4_{name}.json", rows)
        truth = [["call()"]] if name.startswith("multi_turn") else ["Ann"]
        if "relevance" not in name:
            answers = [{"id": r["id"], "ground_truth": truth} for r in rows]
            write(data / "possible_answer" / f"BFCL_v4_{name}.json", answers)
    for scenario, count in SCENARIOS.items():
        rows = [{"id": f"memory_prereq_{n}-{scenario}-{n}"} for n in range(count)]
        write(data / "memory_prereq_conversation" / f"memory_{scenario}.json", rows)
    return root


def write(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(r) + "\n" for r in rows))


def env(source):
    return HarnessEnv(spec=Bfcl().spec({}), root=source, python=Path("/venv/bin/python"), source=source)


@pytest.fixture
def plan(source, tmp_path):
    return lambda *subsets, **more: Bfcl().plan(env(source), request(tmp_path, *subsets, **more))


def request(tmp_path, *subsets, endpoint=None, trials=1, **changes):
    roles = EvalRoles(agent=endpoint or Endpoint(base_url="http://127.0.0.1:9/v1", model="org/policy_1"))
    return EvalRequest(roles=roles, subsets=subsets, trials=trials, seed=3, out=tmp_path, **changes)


def told(job):
    return json.loads(job.files["job.json"])


def test_every_score_says_that_nobody_else_played_and_on_which_data(source, tmp_path):
    asked = request(tmp_path, "simple_python")
    for score in Bfcl().summarise(env(source), asked, [], bootstrap=10, versions={"torch": "2"}):
        said = {"user": "none", "judge": "none", "thinking": "false", "torch": "2"}
        assert said.items() <= score.versions.items()
        assert score.versions["data"] and score.data_hash.startswith(score.versions["data"])


def test_groups_are_expanded_once_and_in_order():
    asked = select(["multi_turn_base", "multi_turn", "simple_python"], lambda category: "")
    assert asked == (["simple_python", *bfcl_tasks.MULTI_TURN], {})
    assert len(GROUPS["all_scoring"]) == 22 and sum(COUNTS.values()) == 5106
    assert set(GROUPS["all_scoring"]) - set(GROUPS["offline"]) == {*bfcl_tasks.WEB_SEARCH, "memory_vector"}


def test_an_unknown_subset_is_named_with_the_known_ones(plan):
    with pytest.raises(UserError, match="no subset 'simple'.*non_live.*simple_python"):
        plan("simple")


def test_without_subsets_everything_offline_is_planned(plan):
    jobs = plan()
    assert [j.name for j in jobs] == [f"{c}-0" for c in GROUPS["offline"]]
    assert sum(len(j.planned) for j in jobs) == 5106 - 355
    assert not any(told(j)["ids"] for j in jobs), "a whole category needs no list of ids"


def test_what_needs_the_web_or_a_second_model_is_skipped_with_a_reason(source, plan, tmp_path, monkeypatch):
    monkeypatch.delenv("SERPAPI_API_KEY", raising=False)
    asked = request(tmp_path, "agentic", limit=1)
    assert {j.name for j in Bfcl().plan(env(source), asked)} == {"memory_kv-0", "memory_rec_sum-0"}
    overall = Bfcl().summarise(env(source), asked, [], bootstrap=10)[-1]
    reasons = dict(s.split(": ", 1) for s in overall.skipped)
    assert "open web" in reasons["web_search_base"] and "option full" in reasons["memory_vector"]
    assert reasons["simple_python"] == "not asked for" and overall.score is None
    with pytest.raises(UserError, match="nothing left to run: web_search_base needs the key"):
        plan("web_search", options={"open_network": True})


def test_everything_that_overall_needs_can_be_asked_for(source, tmp_path, monkeypatch):
    monkeypatch.setenv("MY_SEARCH", "sesame-key")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    (tmp_path / "hf/hub" / VECTOR_MODEL).mkdir(parents=True)
    site = tmp_path / "site"
    site.mkdir()
    (site / "bfcl_eval").symlink_to(source / "bfcl_eval")
    for package in VECTOR_PACKAGES:
        (site / package).mkdir()
    options = {"full": True, "open_network": True, "serpapi_key_env": "MY_SEARCH"}
    asked = request(tmp_path, "all_scoring", limit=1, options=options)
    jobs = {j.name: j for j in Bfcl().plan(env(site), asked)}
    assert list(jobs) == [f"{c}-0" for c in ALL]
    web = jobs["web_search_base-0"]  # its key by name only
    assert web.open_network and web.secrets == {"SERPAPI_API_KEY": "MY_SEARCH"} and "sesame" not in repr(web)
    assert jobs["memory_vector-0"].env["HF_HOME"] == str(tmp_path / "hf")
    full, lean = (Bfcl().spec(o) for o in (options, {}))
    assert full.ref != lean.ref and full.data == lean.data
    lines = (LOCKS / full.lock).read_text().split()
    assert {*(LOCKS / lean.lock).read_text().split()} <= {*lines}
    assert {line.split("==")[0] for line in lines} >= {"torch", "faiss-cpu", "sentence-transformers"}
    with pytest.raises(UserError, match="'2025.12.17.1' is not one of 2026.3.23"):
        Bfcl().spec({"full": True, "version": "2025.12.17.1"})


def test_the_same_tasks_are_chosen_for_every_policy_and_trial(plan):
    def planned(url):
        jobs = plan("live_simple", endpoint=Endpoint(base_url=url, model="m"), trials=2, limit=7)
        return [[t for t, _ in j.planned] for j in jobs]

    (first, second), (other, _) = planned("http://127.0.0.1:1/v1"), planned("http://127.0.0.1:2/v1")
    assert first == second == other and len(first) == 7 and first[0].startswith("live_simple/live_simple_")


def test_a_part_of_memory_brings_the_whole_chains_of_its_scenarios(plan):
    job = plan("memory_kv", limit=2)[0]
    asked = [t.split("/")[1] for t, _ in job.planned]
    before = [i for i in told(job)["ids"] if "_prereq_" in i]
    assert len(before) == sum(SCENARIOS[s] for s in {bfcl_tasks.scenario(i) for i in asked})
    assert told(job)["ids"][-2:] == asked and all(i.startswith("memory_kv_prereq_") for i in before)


def test_each_trial_is_a_process_with_a_seed_of_its_own(plan):
    agent = Endpoint(
        base_url="http://h.example/v1",
        model="m",
        key_env="POLICY_KEY",
        extra_body={"reasoning": "low"},
        sampling=Sampling(temperature=0.7, top_p=0.9, top_k=20, max_tokens=2048),
    )
    jobs = plan("simple_python", endpoint=agent, trials=2, limit=1, thinking=True, deadline_s=60)
    assert [j.name for j in jobs] == ["simple_python-0", "simple_python-1"]
    job, asked = jobs[0], [told(j) for j in jobs]
    body = {"top_k": 20, "chat_template_kwargs": {"enable_thinking": True}, "reasoning": "low"}
    assert [a["request"] for a in asked] == [
        {"max_tokens": 2048, "top_p": 0.9, "seed": seed, "extra_body": body} for seed in (3, 4)
    ]
    assert asked[0]["temperature"] == 0.7
    assert job.reaches == ("http://h.example/v1",) and job.env["OPENAI_BASE_URL"] == job.reaches[0]
    assert job.secrets == {"OPENAI_API_KEY": "POLICY_KEY"} and "OPENAI_API_KEY" not in job.env
    assert job.deadline_s == 60 and job.argv[0] == "/venv/bin/python"


def test_sampling_is_said_in_full_and_template_options_can_be_left_out(plan):
    asked = told(plan("simple_python", options={"template_kwargs": False})[0])["request"]
    assert asked["top_p"] == 1.0 and asked["extra_body"] == {}


@pytest.mark.parametrize(
    ("agent", "said"),
    [
        (Endpoint(base_url="http://h/v1?key=sesame", model="m"), "bfcl cannot ask m"),
        (
            Endpoint(base_url="http://h/v1", model="m", context=4096, sampling=Sampling(max_tokens=4096)),
            "no room for a prompt",
        ),
    ],
)
def test_an_endpoint_that_cannot_be_asked_is_refused_before_anything_starts(plan, agent, said):
    with pytest.raises(UserError, match=said):
        plan("simple_python", endpoint=agent)


def test_a_package_that_holds_other_entries_is_not_the_benchmark(tmp_path):
    rows = [{"id": f"simple_java_{n}"} for n in range(99)]
    write(tmp_path / bfcl_tasks.DATA / "BFCL_v4_simple_java.json", rows)
    with pytest.raises(DataError, match="holds 99 entries in 99 rows, BFCL-v4 has 100"):
        bfcl_tasks.question_ids(tmp_path, "simple_java")
    with pytest.raises(DataError, match="cannot be read"):
        bfcl_tasks.question_ids(tmp_path, "simple_python")


def test_doing_nothing_passes_where_calling_nothing_is_right(source):
    floors = {"irrelevance": 1, "live_irrelevance": 1, "live_relevance": 0, "simple_python": 0}
    floors |= {"multi_turn_base": 0, "memory_kv": 0}
    for category, floor in floors.items():
        ids = bfcl_tasks.question_ids(source, category)
        assert bfcl_tasks.do_nothing(source, category, ids) == floor
    passed = bfcl_tasks.passed_by_nothing
    assert passed("memory_kv", ["i do not"]) and not passed("memory_kv", ["not know it"])
    assert passed("multi_turn_miss_func", [[], []])


def test_two_versions_are_two_locks_and_two_environments():
    newest, earlier = (Bfcl().spec({"version": v}) for v in VERSIONS)
    assert newest.ref != earlier.ref and newest.lock != earlier.lock
    for spec in (newest, earlier):
        lines = (LOCKS / spec.lock).read_text().split()
        assert f"bfcl-eval=={spec.version}" in lines and any(line.startswith("soundfile==") for line in lines)
        assert all("==" in line and "/" not in line for line in lines), "a lock holds no addresses"
        assert not any(line.startswith(("torch==", "faiss-cpu==")) for line in lines)
    with pytest.raises(UserError, match="version '1.0' is not one of 2026.3.23"):
        Bfcl().spec({"version": "1.0"})
