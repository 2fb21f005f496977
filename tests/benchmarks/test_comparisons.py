"""The comparisons with peers agree before they time, and refuse to report what differs."""

import asyncio

import pytest
from transformers import AutoTokenizer

from benchmarks import clock, measure, prompts, scheduling, scripted

BOTH = {scheduling.LOCKSTEP: scheduling.lockstep, scheduling.OURS: scheduling.ours}


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


def test_lock_step_brings_the_same_episodes_later():
    spent = scheduling.compare(BOTH, 1, 3, 2)
    assert spent[scheduling.LOCKSTEP] > 1.2 * spent[scheduling.OURS]


@pytest.mark.heavy
def test_verls_own_worker_brings_the_same_episodes_no_sooner():
    spent = scheduling.compare(
        {scheduling.VERL: scheduling.Verl(), scheduling.OURS: scheduling.ours}, 1, 2, 2
    )
    assert 0.99 < spent[scheduling.VERL] / spent[scheduling.OURS] < 1.2


def test_a_schedule_that_changes_an_episode_is_not_reported():
    def other(seed, groups, members):
        return scheduling.ours(seed + 1, groups, members)

    with pytest.raises(ValueError, match="brings other episodes"):
        scheduling.compare({scheduling.LOCKSTEP: other, scheduling.OURS: scheduling.ours}, 0, 1, 2)


def test_scripted_episodes_depend_on_the_seed_and_keep_to_their_plan():
    played, _ = scheduling.ours(0, 2, 2)
    again, _ = scheduling.ours(0, 2, 2)
    assert [scripted.essence(e) for e in played] == [scripted.essence(e) for e in again]
    for e in played:
        plan = scripted.Plan.make(0, e.id, len(e.turn_rewards))
        assert e.counters["act"] == len(plan.calls) and scripted.FEWEST <= e.counters["act"] <= scripted.MOST
        assert e.counters["rehearse"] == sum(map(len, plan.calls))


def test_prompts_are_built_equal_and_a_wrong_one_is_not_timed():
    verl = pytest.importorskip("verl.utils.tokenizer.continuous_token")
    tokenizer = AutoTokenizer.from_pretrained("envace/policy/start", model_max_length=1_000_000)
    tokenizer.chat_template = open("tests/chat/qwen3.jinja", encoding="utf-8").read()
    builder = verl.QwenContinuousTokenBuilder(tokenizer, chat_template_kwargs={"enable_thinking": True})
    rng = prompts.random.Random(0)
    tools, chat = prompts.make_tools(2, rng), prompts.make_chat(2, rng)
    entries = prompts.entries(prompts.HFRenderer(tokenizer, enable_thinking=True), chat, tools, builder)
    prompts.check_equal(entries)
    late = [*list(entries[prompts.OURS]())[:-1], [0]]
    with pytest.raises(ValueError, match="envace: prompt 2 differs"):
        prompts.check_equal({**entries, prompts.OURS: lambda: late})


def test_a_report_gives_multiples_of_ours_and_keeps_the_rounds(tmp_path, monkeypatch):
    monkeypatch.setattr(measure, "FOLDER", tmp_path)
    times = measure.report("x", "two rows", {"theirs": [4.0, 6.0], "envace": [2.0]}, "envace", "ms")
    assert (
        times == {"theirs": 2.5} and '"rounds": {"theirs": [4.0, 6.0]' in (tmp_path / "x.jsonl").read_text()
    )
