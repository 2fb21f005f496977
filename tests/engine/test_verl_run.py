"""Stock verl, really started: Ray, FSDP2 over gloo, the hf rollout server. What it leaves behind is checked,
not only that it ended.
"""

import contextlib
import dataclasses
import json
import os
import shutil
from pathlib import Path

import psutil
import pytest

from envace.config import load
from envace.data.store import write_tasks
from envace.engine import checkpoints, launch, process
from envace.engine.export import export
from envace.engine.run_files import read_steps
from envace.errors import StageFailed
from envace.policy.card import BUNDLED
from envace.types import Episode, Role, from_json
from envace.worlds.desk.tasks import generate

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def setting(tmp_path_factory):
    root = tmp_path_factory.mktemp("run")
    base = load(ROOT / "params.yaml")
    params = dataclasses.replace(
        base,
        train=dataclasses.replace(base.train, steps=2, prompts=2, group=3, save_every=1, rolling=1, lr=1e-3),
    )
    write_tasks(root / "train.parquet", generate(params.desk.seed, "train", 4))
    shutil.copytree(BUNDLED, root / "start")
    paths = {"tasks_file": root / "train.parquet", "start": root / "start", "work": root / "work"}
    return params, paths, root


@pytest.fixture
def hostile(tmp_path, monkeypatch):
    """A shell that names a cluster elsewhere, a home of its own and a long TMPDIR."""
    home, scratch = tmp_path / "home", tmp_path / "slurm_jobdir/1355700/tmp.node0016"
    for name, folder in {"HOME": home, "TMPDIR": scratch}.items():
        folder.mkdir(parents=True)
        monkeypatch.setenv(name, str(folder))
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    monkeypatch.setattr("tempfile.tempdir", None)
    return home


def listening(work):
    """Addresses that processes of a training listen on, with their names."""
    found = set()
    for p in process.running(work):
        with contextlib.suppress(psutil.NoSuchProcess):
            found |= {(c.laddr.ip, p.name()) for c in p.net_connections("inet") if c.status == "LISTEN"}
    return found


@pytest.mark.verl
def test_two_steps_are_trained_recorded_and_exported(setting, hostile):
    params, paths, root = setting
    events, sockets = [], set()

    def watch(event):
        events.append(event)
        sockets.update(listening((root / "work").resolve()))

    result = launch.train(params, "envace", 1, on_progress=watch, **paths)
    assert len(sockets) > 5 and {ip for ip, _ in sockets} <= {"127.0.0.1", "::1", "::ffff:127.0.0.1"}
    cards = [card.read_text() for card in Path("/tmp").glob("envace-ray-*/owner.json")]
    assert not [p for p in hostile.rglob("*") if "ray" in p.name] and str(root) not in "".join(cards)
    assert (result.steps, result.resumed_from) == (2, 0)
    assert [e.step for e in events if e.phase == "step"] == [1, 2]
    assert checkpoints.steps_saved(root / "work") == [2]  # rolling: 1
    assert process.running((root / "work").resolve()) == []
    check_steps(root / "work", 2)

    ref = export(params, root / "work", root / "start", root / "out", name="envace-1")
    assert ref.step == 2 and json.loads((root / "out/card.json").read_text())["hash"] == ref.hash
    assert weights_moved(root / "start", root / "out")
    (weights,) = (root / "out").glob("*.safetensors")
    assert weights.stat().st_size == (root / "start" / weights.name).stat().st_size  # float32 as the start


@pytest.mark.heavy
def test_bug_23_killed_after_an_epoch_border_it_resumes_and_reaches_the_demanded_step(setting):
    """Public bug 23: a checkpoint at an epoch border made the resumed run do nothing and exit 0.

    Four tasks and two prompts a step: step 2 ends the first epoch.
    """
    params, paths, root = setting
    launch.train(params, "envace", 1, **paths)  # returns at once when the test above has run
    more = dataclasses.replace(params, train=dataclasses.replace(params.train, steps=4))

    def kill_after_step_3(event):
        if event.phase == "step" and event.step == 3:
            os.kill(json.loads((root / "work/trainer.pid").read_text())["pid"], 9)

    with pytest.raises(StageFailed, match="killed by signal 9"):
        launch.train(more, "envace", 1, on_progress=kill_after_step_3, **paths)
    result = launch.train(more, "envace", 1, **paths)
    assert result.steps == 4 and result.resumed_from in (2, 3)
    assert process.running((root / "work").resolve()) == []
    check_steps(root / "work", 4)
    both_epochs = [task for step in (1, 2, 3, 4) for task in tasks_of_step(root / "work", step)]
    assert sorted(both_epochs[:4]) == sorted(both_epochs[4:]) == sorted(set(both_epochs))


@pytest.mark.heavy
@pytest.mark.parametrize("padding", ["duplicates", "masked"])
def test_two_ranks_with_padding_and_a_reference_model(setting, padding):
    """The paper's preset (KL to the start weights) on two FSDP2 shards, with a row count that need not
    divide. The start policy begins its messages with the tag, which the published grammar does not read.
    """
    params, paths, root = setting
    override = {"grammar": "strict", "padding": padding}
    two = dataclasses.replace(
        params,
        method=dataclasses.replace(params.method, preset="paper", override=override),
        engine=dataclasses.replace(params.engine, gpus_per_node=2),
        train=dataclasses.replace(params.train, steps=1, prompts=3),
    )
    work = root / f"two-{padding}"
    launch.train(two, "envace", 1, tasks_file=paths["tasks_file"], start=paths["start"], work=work)
    (step,) = read_steps(work)
    assert step["loss/kl"] == 0.0 and step["gap/probs_max"] < 1e-3  # still the start weights
    rows = step["act/rows"] + step["rehearse/rows"]
    if padding == "duplicates":  # copies up to eight rows a shard
        assert rows % 16 == 0 == step["train/untrained_rows"] and 0 <= step["train/copies"] < 16
    else:
        assert step["train/untrained_rows"] == rows % 2  # one where the two shards would not be even
        assert step["train/copies"] == 0
    ref = export(two, work, paths["start"], root / f"merged-{padding}", name="envace-1")
    assert ref.step == 1


def check_steps(work: Path, n: int) -> None:
    steps = read_steps(work)
    assert [s["step"] for s in steps] == list(range(1, n + 1))
    for record in steps:
        assert record["train/episodes"] == 6 and record["act/rows"] > 0
        assert record["gap/probs_max"] < 1e-3, "the server sampled from other weights than the trainer holds"
        parts = [v for k, v in record.items() if k.startswith("seconds/")]
        whole = 2 * record["seconds/step"] + record["seconds/between"]  # the step itself, and its parts
        assert sum(parts) == pytest.approx(whole) and record["seconds/other"] >= 0
        assert record["server/rows_a_step"] > 0 and 0 <= record["train/rehearsed_success"] <= 1
        assert record["train/trained_reward"] == pytest.approx(record["train/reward"])
        assert all(name.count("/") == 1 for name in record if name != "step")
    assert any(record["loss/grad_norm"] > 0 for record in steps), "no step had anything to learn from"
    check_episodes(work, n)


def tasks_of_step(work: Path, step: int) -> list[str]:
    lines = (work / f"episodes/step_{step:06d}.jsonl").read_text().splitlines()
    return sorted({json.loads(line)["task_id"] for line in lines})


def check_episodes(work: Path, steps: int) -> None:
    roles = set()
    for step in range(1, steps + 1):
        lines = (work / f"episodes/step_{step:06d}.jsonl").read_text().splitlines()
        episodes = [from_json(Episode, json.loads(line)) for line in lines]
        assert {e.id for e in episodes} == {f"s{step}p{k}-{i}" for k in range(2) for i in range(3)}
        assert all(g.weight_version == step - 1 for e in episodes for g in e.generations)  # on-policy
        roles |= {g.role for e in episodes for g in e.generations}
    assert Role.ACT in roles


def weights_moved(a: Path, b: Path) -> bool:
    from transformers import AutoModelForCausalLM

    one, two = (AutoModelForCausalLM.from_pretrained(p, dtype="float32").state_dict() for p in (a, b))
    assert one.keys() == two.keys()
    return (
        max(float((one[k] - two[k]).abs().max()) for k in one) > 1e-3
    )  # more than bfloat16 rounding of small weights
