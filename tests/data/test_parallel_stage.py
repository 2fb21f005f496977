"""Many rows, many processes: exact counts, the same bytes, bounded flight, a clear word when a worker
dies."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import made_rows as rows
import psutil
import pytest
from made_rows import params_for
from spoilt_rows import REASONS, SPOIL

from envace.data.faults import Reject
from envace.data.judged_rows import judged_rows
from envace.data.pool import ALONE, SPARE, chunks, ordered
from envace.data.prompt_length import Estimate
from envace.data.readers import RawRow
from envace.data.stage import CHUNK, stage
from envace.data.verdicts import RowLimits, judge_chunk
from envace.errors import DataError, StageFailed

N = CHUNK * ALONE + 200  # enough to start processes
PARQUET = ("train.parquet", "held.parquet")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("rows")
    return folder, rows.write(folder / "r.jsonl", N)


def test_every_way_to_spoil_a_row_gives_its_one_fault_and_every_reason_has_one():
    limits = RowLimits.of(params_for(Path(".")), Estimate())
    for reason, ways in SPOIL.items():
        for k, way in enumerate(ways):
            row = rows.good_row(k, 9)
            way(row)
            [verdict] = judge_chunk(limits, [RawRow("r:0", json.loads(json.dumps(row)))]).rows
            with judged_rows(":memory:") as judged:
                judged.add([verdict])
                judged.settle()
                hits = {str(f.reason) for f in verdict.faults} or {r["reason"] for r in judged.rejects()}
            assert hits == {reason}, (reason, k)
    assert set(REASONS) == {str(reason) for reason in Reject}


def test_every_fault_is_counted_exactly_and_processes_change_no_byte(made, tmp_path):
    folder, wanted = made
    heard = []
    one = stage(params_for(folder), tmp_path / "one", heard.append, workers=1)
    two = stage(params_for(folder), tmp_path / "two", workers=2)
    assert one == two and one["counts"]["rejected_by_reason"] == dict(sorted(wanted.items()))
    assert one["counts"]["read"] == heard[-1] == N and heard == sorted(heard)
    for name in (*PARQUET, "rejects.jsonl", "manifest.json"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()


def test_the_order_of_the_rows_changes_no_row(made, tmp_path):
    folder, _ = made
    lines = (folder / "r.jsonl").read_text().splitlines()[:300]
    for name, some in (("a", lines), ("b", lines[::-1])):
        (tmp_path / name).mkdir()
        (tmp_path / name / "r.jsonl").write_text("\n".join(some) + "\n")
        stage(params_for(tmp_path / name), tmp_path / f"out-{name}")
    for name in PARQUET:
        assert (tmp_path / "out-a" / name).read_bytes() == (tmp_path / "out-b" / name).read_bytes()


def test_few_rows_start_no_process():
    assert set(ordered(_pid, chunks(range(ALONE), 1), 2)) == {os.getpid()}


def test_results_come_in_order_and_few_chunks_are_in_flight():
    taken = []
    seen = []
    for result in ordered(_square, _noted(range(60), taken), 2):
        seen.append(result)
        assert len(taken) - len(seen) <= 2 + SPARE + 1
    assert seen == [k * k for k in range(60)]


def test_a_worker_that_dies_fails_the_stage():
    with pytest.raises(StageFailed, match="lower data.workers"):
        list(ordered(_die_late, range(40), 2))


def test_a_worker_that_raises_passes_its_error_on():
    with pytest.raises(DataError, match="not 30"):
        list(ordered(_refuse, range(40), 2))


def test_a_source_that_fails_midway_ends_the_processes():
    def broken():
        yield from range(20)
        raise DataError("the source broke")

    with pytest.raises(DataError, match="the source broke"):
        list(ordered(_square, broken(), 2))


SCRIPT = """
import os, signal, sys
sys.path[:0] = {path!r}
from pathlib import Path
import psutil
from test_parallel_stage import params_for, stage

def die(read):
    if read >= {at}:
        children = psutil.Process().children()
        print(*(c.pid for c in children if "spawn_main" in " ".join(c.cmdline())), flush=True)
        os.kill(os.getpid(), signal.SIGKILL)

if __name__ == "__main__":
    stage(params_for(Path({folder!r})), Path({out!r}), die, workers={workers})
"""


def killed(folder, out, at, workers):
    """Stage until `at` rows are read, then die; the ids of the worker processes."""
    code = SCRIPT.format(path=sys.path, folder=str(folder), out=str(out), at=at, workers=workers)
    (out.parent / "script.py").write_text(code)
    done = subprocess.run([sys.executable, out.parent / "script.py"], stdout=subprocess.PIPE, text=True)
    assert done.returncode == -signal.SIGKILL
    return [int(pid) for pid in done.stdout.splitlines()[-1].split()]  # after lines of progress


def test_a_killed_staging_leaves_nothing_that_looks_complete(made, tmp_path):
    folder, _ = made
    killed(folder, tmp_path / "out", 200, 1)
    assert not list((tmp_path / "out").glob("*.parquet")) and not (tmp_path / "out/manifest.json").exists()
    assert list((tmp_path / "out").glob(".staging-*"))
    small = tmp_path / "small"
    small.mkdir()
    (small / "r.jsonl").write_text("\n".join(rows.line(k, 0, 0)[0] for k in range(3)) + "\n")
    stage(params_for(small), tmp_path / "out")
    assert not list((tmp_path / "out").glob(".staging-*"))


def test_workers_end_with_their_parent(made, tmp_path):
    folder, _ = made
    workers = killed(folder, tmp_path / "out", CHUNK * ALONE + 1, 2)
    assert len(workers) == 2
    until = time.monotonic() + 20
    while any(map(psutil.pid_exists, workers)) and time.monotonic() < until:
        time.sleep(0.05)
    assert not any(map(psutil.pid_exists, workers))


@pytest.mark.heavy
def test_memory_does_not_grow_with_the_rows(tmp_path):
    """Of a row of 20 KB less than one stays: in a process of its own each, the most memory it ever had."""
    peaks = {}
    for n in (2_000, 8_000):
        (tmp_path / f"{n}").mkdir()
        rows.write(tmp_path / f"{n}/r.jsonl", n)
        code = (
            "import resource; from test_parallel_stage import *; "
            f"stage(params_for(Path({str(tmp_path / str(n))!r})), Path({str(tmp_path / f'out-{n}')!r}), "
            "workers=1); "
            "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"
        )
        env = os.environ | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
        done = subprocess.run(
            [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=True, env=env
        )
        peaks[n] = int(done.stdout.split()[-1])
    assert peaks[8_000] - peaks[2_000] < 6_000 + 24 * 1024  # KiB


def _pid(part):
    return os.getpid()


def _square(k):
    return k * k


def _noted(items, taken):
    for item in items:
        taken.append(item)
        yield item


def _die_late(k):
    if k == 30:
        os.kill(os.getpid(), signal.SIGKILL)
    return k


def _refuse(k):
    if k == 30:
        raise DataError("not 30")
    return k
