"""Switches of the method: what an arm may say."""

import dataclasses

import pytest

from envace.config import parse
from envace.config.method import PRESETS, READING, resolve_method
from envace.errors import ParamsError


def test_presets_differ_in_the_table_alone():
    assert {(m.grounding, m.reward) for m in PRESETS.values()} == {("keep", "judged")}
    found = {name: (m.kl, m.empty_penalty, m.baseline) for name, m in PRESETS.items()}
    assert found["authors"] == (0.0, 0.1, "generation") and found["paper"] == (1e-4, 0.0, "generation")
    assert found["envace"] == (0.0, 0.0, "trajectory")


@pytest.mark.parametrize(
    "arm",
    [{"grounding": "drop"}, {"reward": "zero"}, {"reward": "shuffled"}],
    ids=["no_grounding", "zero_reward", "shuffled_reward"],
)
def test_control_arms_parse_and_change_one_switch(arm):
    params = parse({"train": {"runs": ["control-1"]}, "arms": {"control": arm}, **POLICIES})
    assert params.resolved_method("control") == dataclasses.replace(PRESETS["envace"], **arm)


def test_an_arm_with_a_preset_of_its_own_starts_from_that_one():
    arms = {"authors": {"preset": "authors", "lone": "zero"}, "plain": None}
    override = {"preset": "envace", "override": {"kl": 0.01}}
    params = parse({"method": override, "train": {"runs": ["authors-1"]}, "arms": arms, **POLICIES})
    assert params.resolved_method("authors") == dataclasses.replace(PRESETS["authors"], lone="zero")
    assert params.resolved_method("plain") == dataclasses.replace(PRESETS["envace"], kl=0.01)
    for bad in ("author", None, 3, ["paper"]):
        with pytest.raises(
            ParamsError, match="arms.authors: preset is .* must be authors or paper or envace"
        ):
            parse({"arms": {"authors": {"preset": bad}}, **POLICIES})


def test_a_policy_is_evaluated_under_the_common_rules_with_its_text_read_as_trained():
    arms = {"authors": {"preset": "authors"}}
    params = parse({"train": {"runs": ["authors-1"]}, "arms": arms, **POLICIES})
    own = {key: getattr(PRESETS["authors"], key) for key in READING}
    assert own["thought_calls"] == "execute"
    assert params.played_method("authors-1") == dataclasses.replace(PRESETS["envace"], **own)
    assert params.played_method("start") == params.played_method("authors-2") == PRESETS["envace"]


POLICIES = {"eval": {"policies": ["start"]}, "tts": {"policy": "start"}, "fidelity": {"policies": ["start"]}}


@pytest.mark.parametrize("arm", [{"grounding": "off"}, {"reward": "none"}, {"rewards": "zero"}])
def test_a_value_outside_the_list_is_refused(arm):
    with pytest.raises(ParamsError):
        resolve_method("envace", arm)


def test_role_weights_are_two_numbers_not_both_zero():
    assert resolve_method("envace", {"role_weights": [1, "5e-1"]}).role_weights == (1.0, 0.5)
    for bad in ([1], [0, 0], [1, -1], 1, {"act": 1}, [1, True]):
        with pytest.raises(ParamsError, match="role_weights.* must be"):
            resolve_method("envace", {"role_weights": bad})


def test_a_running_mean_that_forgets_nothing_is_refused():
    assert resolve_method("envace", {"shrink_memory": 0}).shrink_memory == 0.0
    with pytest.raises(ParamsError, match="shrink_memory is 1.0, must be from 0 to below 1"):
        resolve_method("envace", {"shrink_memory": 1})
