"""Each size asks each benchmark it names for something that can be run."""

import hashlib
import json

import kit_finmcp
import pytest
import test_bfcl_plan
import test_tau2_plan

from envace.bench.finmcp import adapter as finmcp
from envace.bench.harness.registry import adapter
from envace.bench.harness.spec import EvalRoles, HarnessEnv
from envace.bench.vita import tasks as vita
from envace.bench.vita.adapter import Vita
from envace.config import load
from envace.config.check import HARNESSES
from envace.policy.card import read_card, write_pointer
from envace.types import Endpoint, PolicyRef, Sampling
from tasks import agents, bench, dynamics
from tasks.run import Run

ROOT = test_bfcl_plan.Path(__file__).resolve().parents[2]
SIZES = [p.stem for p in sorted((ROOT / "sizes").glob("*.yaml"))]
bfcl_source, tau2_env = test_bfcl_plan.source, test_tau2_plan.env  # harnesses of which only tasks exist


@pytest.fixture
def envs(bfcl_source, tau2_env, tmp_path, monkeypatch):
    """Benchmark -> a harness that holds tasks and no program."""
    for name in vita.BLOBS:
        path = tmp_path / "vita" / vita.FOLDER / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps([{"id": str(k)} for k in range(30)]))
        blob = b"blob %d\0" % path.stat().st_size + path.read_bytes()
        monkeypatch.setitem(vita.BLOBS, name, hashlib.sha1(blob).hexdigest())
    rows = kit_finmcp.write(tmp_path / "rows/rows.json")
    monkeypatch.setattr(finmcp, "files", lambda options: [rows])
    fork = tmp_path / "fork"
    fork.mkdir()
    (fork / "tau2").symlink_to(tmp_path / "source")  # the package holds its data one folder deeper
    empty = HarnessEnv(
        spec=Vita().spec({}), root=tmp_path, python=tmp_path / "python", source=tmp_path / "vita"
    )
    return {
        "bfcl": test_bfcl_plan.env(bfcl_source),
        "tau2": tau2_env,
        "vita": empty,
        "finmcp": empty,
        "tau2-fork": HarnessEnv(spec=tau2_env.spec, root=tmp_path, python=tau2_env.python, source=fork),
    }


@pytest.mark.parametrize("size", SIZES)
def test_a_size_plans_work_for_every_benchmark_it_names(size, envs, tmp_path, monkeypatch):
    monkeypatch.setenv("ENVACE_STATE", str(tmp_path / ".state"))
    params = load(ROOT / f"sizes/{size}.yaml")
    folder = tmp_path / "models/start"
    folder.mkdir(parents=True)
    write_pointer(folder, PolicyRef(kind="hub", uri="a/b", name="start"))
    curve = [b for b in params.dynamics.benchmarks if b in HARNESSES]
    for p, names in ((params, params.bench.benchmarks), (dynamics.shortened(params), curve)):
        run = Run("bench@start-x", p, tmp_path)
        sampling = Sampling(temperature=p.bench.temperature, max_tokens=p.bench.max_tokens)
        agent = Endpoint(base_url="http://127.0.0.1:9/v1", model="m", context=40960, sampling=sampling)
        with agents.part(p.bench.user) as user, agents.part(p.bench.judge) as judge:
            for name in names:
                roles = EvalRoles(agent=agent, user=user, judge=judge)
                request = bench.request_for(run, roles, read_card(folder), "start", name)
                fork = request.options.get("source") == "fork"
                jobs = adapter(name).plan(envs["tau2-fork" if fork else name], request)
                assert {t.split("/")[0] for job in jobs for t, _ in job.planned} >= least(name, request)
                assert {trial for job in jobs for _, trial in job.planned} == set(range(request.trials))


def least(name, request):
    """Subsets that must be among the planned: all that are asked for; of BFCL's groups, the paper's."""
    offline = {"multi_turn_base", "simple_python", "live_simple", "memory_kv"}
    groups = {"offline": offline, "all_scoring": offline}
    return set().union(*(groups.get(s, {s}) for s in request.subsets))
