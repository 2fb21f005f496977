"""Rolling checkpoints survive kills at any moment, and what is done to their files afterwards."""

import pytest

from envace.engine import checkpoints


def saved(work, step, whole=True):
    folder = work / "checkpoints" / f"global_step_{step}"
    (folder / "actor").mkdir(parents=True)
    for what in ("model", "optim", "extra_state"):
        (folder / "actor" / f"{what}_world_size_1_rank_0.pt").write_text(str(step))
    (folder / "data.pt").write_text("")
    if whole:
        checkpoints.finish(folder, work, step, rolling=2, keep_every=4)
    return folder


def test_half_written_checkpoint_is_removed_and_never_resumed_from(tmp_path):
    assert checkpoints.repair(tmp_path) == 0  # nothing saved means start at zero
    saved(tmp_path, 2)
    half = saved(tmp_path, 4, whole=False)
    tracker = tmp_path / "checkpoints" / checkpoints.TRACKER
    tracker.write_text("")  # killed between open and write
    assert checkpoints.repair(tmp_path) == 2 and tracker.read_text() == "2" and not half.exists()


@pytest.mark.parametrize("file", ["actor/model_world_size_1_rank_0.pt", "data.pt", "actor/gone.pt", "WHOLE"])
def test_an_older_whole_one_stands_in_for_a_newest_that_was_cut(tmp_path, file):
    saved(tmp_path, 2)
    newest = saved(tmp_path, 5)
    (newest / file).write_text("{" if file == "WHOLE" else "cut")
    assert checkpoints.ready(tmp_path, 9) == 2 and not newest.exists()


def test_only_the_newest_stay_and_every_kth_keeps_its_weights(tmp_path):
    for step in (2, 4, 6, 8):
        saved(tmp_path, step)
    assert checkpoints.steps_saved(tmp_path) == [6, 8]
    kept = sorted(p.name for p in (tmp_path / "kept").iterdir())
    assert kept == ["global_step_4", "global_step_8"]
    names = {p.name for p in (tmp_path / "kept/global_step_4/actor").iterdir()}
    assert names == {"model_world_size_1_rank_0.pt"}
    assert checkpoints.folder_of(tmp_path, 4).parent.name == "kept"


def test_fewer_steps_forget_what_lies_beyond(tmp_path):
    saved(tmp_path, 2)
    saved(tmp_path, 4)
    assert checkpoints.ready(tmp_path, 3) == 2 and checkpoints.steps_saved(tmp_path) == [2]
