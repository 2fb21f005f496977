"""What names a work folder, a fresh start in it, and the folder that Ray gets."""

import json
import os
from dataclasses import asdict
from pathlib import Path

import pytest
from test_process import changed, paths  # noqa: F401  # a fixture

from envace.engine import work_folder
from envace.engine.work_folder import code_hash, ray_folder, start_anew, work_key
from envace.errors import EnvironmentUnready
from envace.io.processes import identify


def test_more_steps_share_the_work_folder_and_anything_else_does_not(paths, monkeypatch):  # noqa: F811
    def key(arm="envace", **train):
        return work_key(changed(train=train), arm, 1, **paths)

    first = key()
    assert key(steps=99) == first == key(runs=("envace-1", "envace-2"))  # another run is not its business
    others = [key(lr=1e-5), key("standard_grpo")]
    # else every step's rate depends on how many there are
    others += [key(lr_schedule="cosine", steps=n) for n in (6, 8)]
    for name in ("code_hash", "load_prompt_set"):
        with monkeypatch.context() as patched:
            patched.setattr(work_folder, name, lambda _: type("Other", (str,), {"hash": "other"})())
            others.append(key())
    assert len({first, *others}) == 7


@pytest.mark.parametrize(
    ("code", "same"),
    [
        ('"""New words."""\nA = 1  # why\n\n\ndef f():\n    """What."""\n    return "text"\n', True),
        ('A = 1\n"""A field\'s own words."""\ndef f():  return "text"\n', True),
        ('A = 2\ndef f(): return "text"\n', False),
        ('A = 1\ndef f(): return "other"\n', False),
    ],
)
def test_comments_and_docstrings_are_no_code(tmp_path, code, same):
    one, two = tmp_path / "1/a/x.py", tmp_path / "2/a/x.py"
    for file, text in ((one, 'A = 1\ndef f():\n    return "text"\n'), (two, code)):
        file.parent.mkdir(parents=True)
        file.write_text(text)
    assert (code_hash([one]) == code_hash([two])) is same


def test_force_forgets_a_training_once_a_pipeline(tmp_path):
    work = tmp_path / "work"
    for pipeline, left in (("one", False), ("one", True), ("two", False)):
        start_anew(work, pipeline)
        assert (work / "metrics.jsonl").exists() is left
        (work / "metrics.jsonl").write_text("{}")


def test_rays_folder_is_short_private_and_gone_with_those_of_killed_runs(tmp_path, monkeypatch):
    long = tmp_path / "net/scratch/people/somebody/slurm_jobdir/1355700"
    left, live = Path("/tmp/envace-ray-testleft"), Path("/tmp/envace-ray-testlive")
    for folder, start in ((left, 1), (live, identify().start)):
        folder.mkdir(exist_ok=True)
        owner = {**asdict(identify()), "start": start, "work": str(tmp_path)}
        (folder / "owner.json").write_text(json.dumps(owner))
    long.mkdir(parents=True)
    monkeypatch.setattr("tempfile.tempdir", str(long))
    with ray_folder(tmp_path) as folder:
        socket = f"{folder}/session_2026-11-30_20-22-46_123456_1234567/sockets/plasma_store"
        assert len(socket) <= 107 and folder.stat().st_mode & 0o777 == 0o700
        assert live.exists() and not left.exists()
    assert not folder.exists()
    (live / "owner.json").unlink()
    live.rmdir()
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(EnvironmentUnready, match=f"TMPDIR \\({long}\\) is too long"), ray_folder(tmp_path):
        pass
