"""Switches of the method: what an arm may say."""

import dataclasses

import pytest

from envace.errors import ParamsError
from envace.method import PRESETS, resolve_method
from envace.params import parse


def test_every_preset_keeps_grounding_and_trains_on_judged_rewards():
    assert {(m.grounding, m.reward) for m in PRESETS.values()} == {("keep", "judged")}


@pytest.mark.parametrize(
    "arm",
    [{"grounding": "drop"}, {"reward": "zero"}, {"reward": "shuffled"}],
    ids=["no_grounding", "zero_reward", "shuffled_reward"],
)
def test_control_arms_parse_and_change_one_switch(arm):
    params = parse({"train": {"arms": ["control"]}, "arms": {"control": arm}, **POLICIES})
    assert params.resolved_method("control") == dataclasses.replace(PRESETS["envace"], **arm)


POLICIES = {
    "eval": {"policies": ["start"]},
    "tts": {"policy": "start"},
    "fidelity": {"policies": ["start"]},
}


@pytest.mark.parametrize("arm", [{"grounding": "off"}, {"reward": "none"}, {"rewards": "zero"}])
def test_a_value_outside_the_list_is_refused(arm):
    with pytest.raises(ParamsError):
        resolve_method("envace", arm)
