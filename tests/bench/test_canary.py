"""A key in the environment, an address, a header and an exception, plain and in base64: it is nowhere in what
the bench stage leaves, nor in what it sends beyond the header."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
from pathlib import Path
from urllib.parse import quote

import pytest
from harness_kit import FakeBench, server

from envace.bench.harness import registry
from envace.config import parse
from envace.errors import StageFailed
from flows._entry import report_failure
from tasks import baselines, bench
from tasks.run import Run
from tasks.tracking import stage_run

ROOT = Path(__file__).resolve().parents[2]
KEY = "canary/K+4f:7e=z1"  # of the variable
URL_KEY = "canary-in-the-address-91c"  # of the query of the address
NOTE = f"could not: {KEY}, {base64.b64encode(f'user:{KEY}'.encode()).decode()}, {URL_KEY}"


def traces(key: str) -> list[bytes]:
    """What of a key cannot be missing wherever it stands in one of these forms."""
    raw = key.encode()
    inner = [base64.b64encode(b"abc"[:n] + raw + b"xyz"[: (3 - (n + len(raw))) % 3])[4:-4] for n in range(3)]
    quoted = quote(key, safe="").encode()
    return [raw, quoted, quoted.lower(), json.dumps(key)[1:-1].encode(), *inner]


def holds(data: bytes) -> list[bytes]:
    return [t for key in (KEY, URL_KEY) for t in traces(key) if t in data]


def leaks(folder: Path) -> list[str]:
    """Files, databases among them, that hold a key or have it in their name, but for what the user wrote."""
    found = []
    for path in (p for p in folder.rglob("*") if p.name != "params.yaml"):
        text = str(path.relative_to(folder)).encode() + (path.read_bytes() if path.is_file() else b"")
        found += [f"{path}: {t!r}" for t in holds(text)]
    return found


def params_of(url: str) -> dict:
    """The key of the variable OTHER_KEY, and a second one in the address that no variable names."""
    other = {"base_url": f"{url}?api-version=1&api_key={URL_KEY}", "model": "m", "key_env": "OTHER_KEY"}
    options = {"bfcl": {"subsets": ["a", "b"]}}
    own = {"policies": ["other"], "benchmarks": ["bfcl"], "baselines": {"other": other}, "options": options}
    return {"bench": own, "report": {"bootstrap": 100}}


@pytest.fixture
def root(tmp_path, monkeypatch):
    monkeypatch.setenv("ENVACE_STATE", str(tmp_path / ".state"))
    monkeypatch.setenv("OTHER_KEY", KEY)
    monkeypatch.setitem(registry.ADAPTERS, "bfcl", f"{FakeBench.__module__}:FakeBench")
    monkeypatch.setattr(registry, "check", lambda name, options: None)
    for name in ("MLFLOW_TRACKING_URI", "ENVACE_PARENT_RUN_ID", "PREFECT_API_URL"):
        monkeypatch.delenv(name, raising=False)
    yield tmp_path
    os.environ.pop("MLFLOW_TRACKING_URI", None)  # the store's, which it leaves for processes


def test_the_detector_sees_every_form(tmp_path):
    for n, text in enumerate((KEY, quote(KEY, safe=""), NOTE.split(", ")[1], f"x{URL_KEY}")):
        (tmp_path / f"{n}.txt").write_text(text)
        assert len({leak.partition(":")[0] for leak in leaks(tmp_path)}) == n + 1


def test_a_stage_that_ends_well_leaves_no_key_in_store_log_or_results(root):
    with server(key=KEY) as (url, seen):
        run = Run("bench@other-bfcl", parse(params_of(url)), root)
        with stage_run(run, ("bench",), {"policy": "other", "benchmark": "bfcl"}, "other") as log:
            run.log = log
            baselines.write_baseline.fn(run, "other", root / "models/other")
            run.say(NOTE)
            log.params({"note": NOTE})
            log.tags({"note": NOTE})
            bench.write_bench.fn(run, bench.run_harness.fn(run, "other", "bfcl"), "other", "bfcl")
    assert len(seen) == 6 and all(s["auth"] == f"Bearer {KEY}" for s in seen)
    assert not holds(json.dumps([s["body"] for s in seen]).encode())
    assert (root / "results/bench/other-bfcl/raw/a-0/b64.txt").is_file()  # what a careless harness wrote
    assert (root / ".state/mlflow.db").stat().st_size > 10_000 and (root / ".state/logs").is_dir()
    assert leaks(root) == []


def test_a_stage_that_fails_with_the_key_in_its_words_leaves_none_either(root, monkeypatch, capsys):
    def broken(*_: object, **__: object) -> None:
        try:
            raise OSError(5, NOTE)
        except OSError as e:
            raise StageFailed(NOTE) from e

    with server(key=KEY) as (url, _):
        run = Run("bench@other-bfcl", parse(params_of(url)), root)
        with pytest.raises(StageFailed) as caught, stage_run(run, ("bench",), {}, "other") as log:
            run.log = log
            baselines.write_baseline.fn(run, "other", root / "models/other")
            monkeypatch.setattr(bench, "evaluate", broken)
            bench.run_harness.fn(run, "other", "bfcl")
    report_failure(caught.value, run.name, run.state)
    assert "could not: [redacted]" in (root / ".state/failed/bench@other-bfcl.json").read_text()
    assert leaks(root) == []
    printed = capsys.readouterr()
    assert not holds((printed.out + printed.err).encode())


STAGE = """
import sys
from envace.bench.harness import registry
registry.ADAPTERS["bfcl"] = "harness_kit:FakeBench"
registry.check = lambda name, options: None
from flows.bench import bench
from tasks import bench as tasks
if sys.argv[1:2] == ["fail"]:
    sys.argv.pop(1)
    def broken(*a, **k):
        raise OSError({note!r})
    tasks.evaluate = broken
bench.main()
"""


@pytest.mark.heavy
@pytest.mark.parametrize("fails", [False, True])
def test_prefects_own_store_and_logs_hold_none(fails, root):
    """The stage as a process under Prefect, whose database and logs lie in the folder that is searched."""
    with server(key=KEY) as (url, _):
        (root / "params.yaml").write_text(json.dumps(params_of(url)))
        run = Run("baseline@other", parse(params_of(url)), root)
        baselines.write_baseline.fn(run, "other", root / "models/other")
        env = {k: v for k, v in os.environ.items() if not k.startswith(("PREFECT_", "MLFLOW_"))}
        env |= {"PREFECT_HOME": str(root / "prefect")}
        env |= {"PYTHONPATH": f"{ROOT}{os.pathsep}{Path(__file__).parent}"}
        argv = [sys.executable, "-c", STAGE.format(note=NOTE), *(["fail"] if fails else []), "other", "bfcl"]
        done = subprocess.run(argv, cwd=root, env=env, capture_output=True, text=True, timeout=300)
    assert bool(done.returncode) is fails, done.stderr[-2000:]
    assert (root / "prefect").is_dir() and any((root / "prefect").rglob("*.db"))
    (root / "printed.txt").write_text(done.stdout + done.stderr)
    assert leaks(root) == []
