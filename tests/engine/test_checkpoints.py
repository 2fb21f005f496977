"""Rolling checkpoints survive kills at any moment."""

from envace.engine import checkpoints


def saved(work, step, whole=True):
    folder = work / "checkpoints" / f"global_step_{step}"
    (folder / "actor").mkdir(parents=True)
    for name in (
        "model_world_size_1_rank_0.pt",
        "optim_world_size_1_rank_0.pt",
        "extra_state_world_size_1_rank_0.pt",
    ):
        (folder / "actor" / name).write_text(str(step))
    (folder / "data.pt").write_text("")
    if whole:
        checkpoints.finish(folder, work, step, rolling=2, keep_every=4)


def test_half_written_checkpoint_is_removed_and_never_resumed_from(tmp_path):
    saved(tmp_path, 2)
    saved(tmp_path, 4, whole=False)
    (tmp_path / "checkpoints" / checkpoints.TRACKER).write_text("")  # killed between open and write
    assert checkpoints.repair(tmp_path) == 2
    assert (tmp_path / "checkpoints" / checkpoints.TRACKER).read_text() == "2"
    assert not (tmp_path / "checkpoints/global_step_4").exists()


def test_only_the_newest_stay_and_every_kth_keeps_its_weights(tmp_path):
    for step in (2, 4, 6, 8):
        saved(tmp_path, step)
    assert checkpoints.steps_saved(tmp_path) == [6, 8]
    kept = sorted(p.name for p in (tmp_path / "kept").iterdir())
    assert kept == ["global_step_4", "global_step_8"]
    names = {p.name for p in (tmp_path / "kept/global_step_4/actor").iterdir()}
    assert names == {"model_world_size_1_rank_0.pt"}
    assert checkpoints.folder_of(tmp_path, 4).parent.name == "kept"


def test_nothing_saved_means_start_at_zero(tmp_path):
    assert checkpoints.repair(tmp_path) == 0


def test_fewer_steps_forget_what_lies_beyond(tmp_path):
    saved(tmp_path, 2)
    saved(tmp_path, 4)
    checkpoints.drop_after(tmp_path, 3)
    assert checkpoints.steps_saved(tmp_path) == [2] and checkpoints.repair(tmp_path) == 2
