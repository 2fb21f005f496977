"""The speed comparisons run at tiny sizes, agree before they time, and are skipped where a peer is missing."""

import asyncio
import json
from pathlib import Path

import pytest

from benchmarks import __main__ as everything
from benchmarks import clock, episodes, merging, packing, prompts, qwen3, scheduling, scripted
from envace.errors import EnvironmentUnready, StageFailed
from envace.types import Role


def test_a_clock_that_skips_sleeps_counts_them_and_keeps_their_order():
    async def work():
        said = []

        async def later(seconds, name):
            await asyncio.sleep(seconds)
            said.append(name)

        await asyncio.gather(later(500, "b"), later(100, "a"))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(50):
                await asyncio.sleep(60)
        return said

    said, seconds = clock.run(work())
    assert said == ["a", "b"] and 550 <= seconds < 555


def test_lock_step_brings_the_same_episodes_later_and_nobody_beats_the_longest_alone():
    players = {scheduling.LOCKSTEP: scheduling.lockstep, scheduling.OURS: scheduling.ours}
    found = scheduling.compare(players, 1, 3, 2, 1)
    assert found["episodes"] == 6 and found["times"][scheduling.LOCKSTEP] > 1.2
    assert found["alone_s"] <= found["median_s"][scheduling.OURS] < 1.1 * found["alone_s"]


@pytest.mark.heavy
def test_verls_own_worker_brings_the_same_episodes_no_sooner():
    found, missing = scheduling.players()
    assert not missing
    result = scheduling.compare(found, 1, 2, 2, 1)
    assert 0.99 < result["times"][scheduling.VERL] < 1.2


def test_a_schedule_that_changes_an_episode_is_not_reported():
    def other(seed, groups, members):
        return scheduling.ours(seed + 1, groups, members)

    with pytest.raises(ValueError, match="brings other episodes"):
        scheduling.compare({scheduling.LOCKSTEP: other, scheduling.OURS: scheduling.ours}, 0, 1, 2, 1)


def test_scripted_episodes_depend_on_the_seed_and_keep_to_their_plan():
    played, _ = scheduling.ours(0, 2, 2)
    again, _ = scheduling.ours(0, 2, 2)
    assert [scripted.essence(e) for e in played] == [scripted.essence(e) for e in again]
    for e in played:
        plan = scripted.Plan.make(0, e.id, len(e.turn_rewards))
        assert e.counters["act"] == len(plan.calls) and scripted.FEWEST <= e.counters["act"] <= scripted.MOST
        assert e.counters["rehearse"] == sum(map(len, plan.calls))


def test_merged_rows_read_far_fewer_tokens_and_train_the_same():
    found = merging.compare(20, 1, 1500, 250, 150, 1)
    assert found["times_fewer"]["act"] > 4 and found["times_fewer"]["rehearse"] == 1


def test_a_token_trained_after_other_tokens_is_seen():
    played = episodes.make(1, (3, 3), head=5, act=4, result=3)
    streams = merging.streams(played, "merged")
    assert merging.predictions(streams) == merging.predictions(merging.streams(played, "generation"))
    assert merging.predictions(streams[:-1]) != merging.predictions(streams)
    assert merging.tokens(streams, Role.ACT) == len(played[0].generations[-1].prompt_ids) + len(
        played[0].generations[-1].output_ids
    )


def test_packing_keeps_every_row_and_ours_keeps_to_the_budget():
    found = packing.compare(60, 500, 2000, 4000, 1)
    assert found["largest"][packing.OURS] <= 1
    assert found["useful"][packing.OURS] > found["useful"][packing.PADDED]
    with pytest.raises(ValueError, match="loses or repeats"):
        packing.check("x", [1, 2], [[0]])


def test_rows_advantages_and_packing_agree_with_verls_parts():
    from benchmarks import batch

    assert batch.compare(4, (2, 4), 2000, 1)["difference"] < 1e-6


def test_prompts_are_built_equal_and_a_wrong_one_is_not_timed(monkeypatch):
    monkeypatch.setattr(qwen3, "vocabulary_file", lambda: None)
    tokenizer, name = qwen3.open_tokenizer()
    verl = pytest.importorskip("verl.utils.tokenizer.continuous_token")
    tokenizer.chat_template = qwen3.TEMPLATE.read_text()
    builder = verl.QwenContinuousTokenBuilder(tokenizer, chat_template_kwargs={"enable_thinking": True})
    rng = prompts.random.Random(0)
    tools, chat = prompts.make_tools(2, rng), prompts.make_chat(2, rng)
    entries = prompts.entries(prompts.HFRenderer(tokenizer, enable_thinking=True), chat, tools, builder)
    found = prompts.report(2, entries, 1)
    assert name == "bundled" and set(found["times"]) == {prompts.AGAIN, prompts.VERL, prompts.VERL_BARE}
    late = [*list(entries[prompts.OURS]())[:-1], [0]]
    with pytest.raises(ValueError, match="envace: prompt 2 differs"):
        prompts.check_equal({**entries, prompts.OURS: lambda: late})


# --- all of them ----------------------------------------------------------------------------------------------


def test_every_benchmark_of_the_folder_is_run():
    folder = Path(everything.__file__).parent
    commands = {p.stem for p in folder.glob("*.py") if "ArgumentParser" in p.read_text()}
    others = {"__main__", "structure", "staging_scale"}  # the latter is part of staging
    assert commands - others == set(everything.ALL)


def test_a_missing_peer_is_skipped_with_its_reason_and_a_failure_fails_after_the_others(
    monkeypatch, tmp_path, capfd
):
    codes = {"advantage": EnvironmentUnready.exit_code, "batch": 1, "packing": 0}

    def fake(command, **_):
        name = command[2].removeprefix("benchmarks.")
        return type(
            "Done", (), {"returncode": codes[name], "stderr": f"noise\nbenchmarks.{name}: why {name}"}
        )

    monkeypatch.setattr(everything.subprocess, "run", fake)
    (tmp_path / "out").mkdir()
    (tmp_path / "out/advantage.json").write_text("of an older run")
    (tmp_path / "out/packing.json").write_text(json.dumps({"results": []}))
    with pytest.raises(StageFailed, match="batch failed"):
        everything.run_all(["advantage", "batch", "packing"], True, tmp_path / "out")
    summary = json.loads((tmp_path / "out/summary.json").read_text())
    assert [(r["outcome"], r["detail"]) for r in summary["ran"]] == [
        ("skipped", "why advantage"), ("failed", "why batch"), ("ok", ""),
    ]  # fmt: skip
    [bar] = summary["bars"]  # of the advantages alone: no other of these has one
    assert (bar["peer"], bar["bar"], bar["ratio"], bar["met"]) == ("verl loop", 3.0, None, None)
    said = capfd.readouterr().out
    assert "skipped: why advantage" in said and "| verl loop | not measured | | | 3 | |" in said


def test_an_unknown_name_is_told(capsys):
    with pytest.raises(SystemExit):
        everything.main(["advantages"])
    assert "no benchmark is called advantages; there are advantage" in capsys.readouterr().err
