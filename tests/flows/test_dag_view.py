"""DVC's graph as the pipeline sees it, and dvc.yaml itself."""

import subprocess
import sys
from pathlib import Path

import networkx as nx
import pytest
import stage_deps
import yaml

from envace.errors import UserError
from flows import _dvc

ROOT = Path(__file__).resolve().parents[2]
DAG = nx.DiGraph([("data", "train"), ("train", "export"), ("data", "floors")])


def test_stages_come_after_what_they_need():
    dag = _dvc.graph(ROOT)
    order = list(dag)
    assert order[0] == "stage_data" and order[-1] == "report" and len(order) == len(set(order))
    assert all(order.index(need) < order.index(stage) for need, stage in dag.edges)
    assert set(dag.predecessors("export@envace-1")) == {"train@envace-1"}
    narrowed = _dvc.graph(ROOT, ("export",))
    assert set(narrowed) == {n for n in order if n.startswith(("stage_data", "policy", "train@", "export@"))}
    assert list(narrowed) == [n for n in order if n in narrowed]


def test_a_target_that_is_no_stage_and_a_folder_without_stages_are_named(tmp_path):
    with pytest.raises(UserError, match="no stage 'd'; stages: data, train"):
        _dvc.needed(DAG, ("d",))
    with pytest.raises(UserError, match="DVC cannot read"):
        _dvc.graph(tmp_path)


def test_every_stage_of_the_project_runs_its_own_flow():
    stages = yaml.safe_load((ROOT / "dvc.yaml").read_text())["stages"]
    for name, stage in stages.items():
        stage = stage.get("do", stage)  # of a foreach
        assert stage["cmd"].split()[:3] == ["python", "-m", f"flows.{name}"]
        assert f"flows/{name}.py" in stage["deps"] and (ROOT / "flows" / f"{name}.py").is_file()
        assert "envace" not in stage["deps"]  # the whole package would retrain after any edit
        assert not any(str(out).startswith(".state") for out in stage.get("outs", []))


def test_the_sections_a_stage_logs_are_those_dvc_watches():
    import importlib

    stages = yaml.safe_load((ROOT / "dvc.yaml").read_text())["stages"]
    for name, stage in stages.items():
        stage = stage.get("do", stage)
        watched = {p.split(".")[0] for p in stage.get("params", []) if isinstance(p, str)}  # of params.yaml
        logged = set(getattr(importlib.import_module(f"flows.{name}"), name).sections)
        assert logged <= watched, name


def test_a_new_arm_does_not_retrain_the_others():
    train = yaml.safe_load((ROOT / "dvc.yaml").read_text())["stages"]["train"]
    assert "train" not in train["params"] and "train.runs" not in train["params"]


def test_a_stage_watches_the_code_it_imports_and_no_other():
    """`PYTHONPATH=. python tests/flows/stage_deps.py --write` mends dvc.yaml."""
    assert stage_deps.differences(stage_deps.import_graph()) == {}


def test_an_adapter_makes_no_other_benchmark_stale():
    stages = yaml.safe_load((ROOT / "dvc.yaml").read_text())["stages"]
    for name in ("evaluate", "tts", "fidelity", "bench"):
        own = [d for d in stages[name]["deps"] if d.startswith("envace/bench")]
        assert own and "envace/bench" not in own
        assert not any(d == f"envace/bench/{a}" for d in own for a in stage_deps.ADAPTERS), name


def test_stage_modules_import_nothing_heavy():
    heavy = ("prefect", "mlflow", "torch", "verl", "ray", "dvc")
    modules = "flows.train, flows.evaluate, flows.reproduce"
    code = f"import sys, {modules}; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_what_builds_on_a_stale_stage_is_stale_too():
    assert _dvc.with_dependents(DAG, {"train", "elsewhere"}) == ["train", "export"]
    assert _dvc.with_dependents(DAG, set()) == []
