"""Many rows, many processes: exact counts, the same bytes, bounded flight, a clear word when a worker dies."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from benchmarks import plain, rows, spoil, staging_gate
from benchmarks.staging_scale import params_for, scale
from envace.data.faults import Reject
from envace.data.knobs import knobs
from envace.data.length import estimate
from envace.data.pool import ALONE, SPARE, chunks, ordered
from envace.data.readers import Raw
from envace.data.settle import settle
from envace.data.sift import sift
from envace.data.stage import CHUNK, stage
from envace.errors import DataError, StageFailed

N = CHUNK * ALONE + 200  # enough to start processes
PARQUET = ("train.parquet", "held.parquet")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("rows")
    return folder, rows.write(folder / "r.jsonl", N)


def test_every_way_to_spoil_a_row_gives_its_one_fault_and_every_reason_has_one():
    sieve = knobs(params_for(Path("."))).sieve(estimate)
    for reason, ways in spoil.SPOIL.items():
        for k, way in enumerate(ways):
            row = rows.good_row(k, 9)
            way(row)
            found = sift(sieve, [Raw("r:0", json.loads(json.dumps(row)))])
            hits = (
                dict(found.hits)
                if found.rejects
                else {str(g.reason): 1 for g in settle([e for e, _ in found.kept])[1]}
            )
            assert hits == {reason: 1}, (reason, k)
    assert set(spoil.REASONS) == {str(reason) for reason in Reject}


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


def test_the_plain_loop_gives_every_line_the_same_verdict(made, tmp_path):
    folder, wanted = made
    assert plain.stage(folder / "r.jsonl", tmp_path / "p.parquet", plain.Plain(3500, True)) == wanted


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
        print(*(c.pid for c in psutil.Process().children()), flush=True)
        os.kill(os.getpid(), signal.SIGKILL)

stage(params_for(Path({folder!r})), Path({out!r}), die, workers={workers})
"""  # no guard against being imported: workers must not need one


def killed(folder, out, at, workers):
    """Stage until `at` rows are read, then die; the ids of the worker processes."""
    code = SCRIPT.format(path=sys.path, folder=str(folder), out=str(out), at=at, workers=workers)
    (out.parent / "script.py").write_text(code)
    done = subprocess.run([sys.executable, out.parent / "script.py"], stdout=subprocess.PIPE, text=True)
    assert done.returncode == -signal.SIGKILL
    return [int(pid) for pid in done.stdout.split()]


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
def test_memory_does_not_grow_with_the_rows_and_time_grows_with_them_only(tmp_path):
    """At two sizes of the three that `python -m benchmarks.staging --gate` holds against its bars; no clock on the wall."""
    small, large = (scale(n, 1, tmp_path) for n in (5_000, 20_000))
    assert small["exact"] and large["exact"] and small["row_bytes"] >= staging_gate.ROW_BYTES
    assert large["peak_mib"] <= staging_gate.MEMORY_MIB
    assert (
        large["peak_mib"] - small["peak_mib"] < 15_000 * 1024 / 2**20 + 16
    )  # of 12 KB a row, less than one stays
    assert (
        staging_gate.slope([(s["rows"], s["cpu_seconds"]) for s in (small, large)]) < 1.25
    )  # others work here, too


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
