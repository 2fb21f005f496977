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
    params = parse({"train": {"runs": ["control-1"]}, "arms": {"control": arm}, **POLICIES})
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


def test_role_weights_are_two_numbers_not_both_zero():
    assert resolve_method("envace", {"role_weights": [1, "5e-1"]}).role_weights == (1.0, 0.5)
    for bad in ([1], [0, 0], [1, -1], 1, {"act": 1}, [1, True]):
        with pytest.raises(ParamsError, match="role_weights is .* must be"):
            resolve_method("envace", {"role_weights": bad})


def test_a_running_mean_that_forgets_nothing_is_refused():
    assert resolve_method("envace", {"shrink_memory": 0}).shrink_memory == 0.0
    with pytest.raises(ParamsError, match="shrink_memory is 1.0, must be from 0 to below 1"):
        resolve_method("envace", {"shrink_memory": 1})
