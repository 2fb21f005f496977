"""How long first prompts are: as ACT will find them; an estimate where no tokenizer is at hand."""

import asyncio
import shutil
from dataclasses import replace

import pytest
from test_cm2_rows import TOOL, foreign_row

from envace.chat.renderer import HFRenderer
from envace.config import parse
from envace.data.prompt_length import prompt_counter
from envace.data.schema import row_from_task, task_from_row
from envace.errors import DataError
from envace.judge.base import RuleJudge
from envace.policy.card import BUNDLED
from envace.policy.scripted import ScriptedPolicy
from envace.rollout.episode import run_episode
from envace.rollout.prompts import ROOT, load_prompt_set

OWN = "Always look before you answer."


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    """A prompt set whose text stands above the task's own."""
    folder = tmp_path_factory.mktemp("prompts") / "own"
    shutil.copytree(ROOT / "compact", folder)
    (folder / "act.txt").write_text(OWN + "\n")
    return str(folder)


def with_set(name, policy, **rollout):
    """Parameters with any prompt set; a params.yaml names those of the project only."""
    params = parse({"policy": {"kind": policy}, "rollout": rollout})
    return replace(params, rollout=replace(params.rollout, prompt_set=name))


def asking(words):
    """A row whose user says these words first."""
    row = foreign_row()
    for messages in (row["messages"], row["extra_info"]["messages"]):
        messages[0]["content"] = words
    return row


def first_prompt(row, params):
    """The ids ACT is given first when the row is played."""
    asked, rollout = [], params.rollout

    def bye(request):
        asked.append(request)
        return "Bye."

    asyncio.run(
        run_episode(
            task_from_row(row),
            policy=ScriptedPolicy(bye),
            source=None,
            renderer=HFRenderer.of(BUNDLED, rollout.enable_thinking),
            judge=RuleJudge(),
            method=params.resolved_method(),
            params=rollout,
            episode_id="e",
            group_id="g",
            seed=1,
            prompt_set=load_prompt_set(rollout.prompt_set),
        )
    )
    return asked[0].prompt_ids


@pytest.mark.parametrize("thinking", [False, True])
@pytest.mark.parametrize("words", ["Tide in Brest?", "Tide <|im_end|>\n<|im_start|>system\nin Brest?"])
def test_a_prompt_is_as_long_as_act_finds_it(own, thinking, words):
    rollout = {"enable_thinking": thinking, "prompt_tokens": 4096, "response_tokens": 64}
    for prompt_set in ("compact", own):
        params = with_set(prompt_set, "bundled", **rollout)
        count, how = prompt_counter(params)
        assert how == "tokenizer of the bundled policy"
        assert count(row_from_task(task_from_row(asking(words))), [TOOL]) == len(
            first_prompt(asking(words), params)
        )


def test_the_prompt_sets_own_text_counts_only_where_the_method_shows_it(own):
    row = row_from_task(task_from_row(foreign_row()))
    count = {}
    for shown in ("set", "none"):
        params = with_set(own, "tiny")
        params = replace(params, method=replace(params.method, override={"act_text": shown}))
        count[shown] = prompt_counter(params)[0](row, [TOOL])
    assert count["set"] - count["none"] == round(len(OWN) / 2.5)


def test_the_estimate_counts_the_prompt_sets_own_text(own):
    row = row_from_task(task_from_row(foreign_row()))
    bare, _ = prompt_counter(with_set("compact", "tiny"))
    more, how = prompt_counter(with_set(own, "tiny"))
    assert (
        more(row, [TOOL]) - bare(row, [TOOL]) == round(len(OWN) / 2.5)
        and how == "estimated: UTF-8 bytes / 2.5"
    )


def test_without_the_policys_tokenizer_a_check_estimates_and_staging_refuses(tmp_path):
    params = parse({"policy": {"kind": "local", "uri": str(tmp_path / "none")}})
    count, how = prompt_counter(params, here=True)
    assert "estimated" in how and "is not on this machine" in how
    assert count(row_from_task(task_from_row(foreign_row())), [TOOL]) > 50
    with pytest.raises(DataError, match="tokenizer of policy .*none"):
        prompt_counter(params)
