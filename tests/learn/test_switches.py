"""Switches of learning on a group written down as it is, with what a rollout cannot easily give: an unscored
episode, a lone rehearsal and an empty text at once. Each switch from params.yaml on:
rollout/test_params_to_rows.py."""

import numpy as np
import pytest
from learn_kit import batch

from envace.chat.renderer import ByteRenderer
from envace.config import RolloutParams, SimulatorParams, parse
from envace.config.method import PRESETS, Method
from envace.errors import DataError
from envace.learn.advantage import advantages
from envace.learn.rewards import trained_rewards
from envace.learn.sequences import sequences_of, token_advantages
from envace.learn.weights import LOSS_AGG_MODE, verl_weights
from envace.policy.scripted import ScriptedPolicy
from envace.rollout.anchor import AnchoredSource
from envace.rollout.rehearsal import RehearsalSource
from envace.rollout.simulator import SimulatorSource
from envace.rollout.sources import EnvironmentSource, RecordedSource, make_source
from envace.types import (
    Answer,
    Episode,
    FinishReason,
    Generation,
    Role,
    Sampling,
    StopReason,
    Verdict,
    replace,
)
from envace.worlds.desk.tasks import generate

ACT, REHEARSE = Role.ACT, Role.REHEARSE
SIMULATOR = {"base_url": "http://sim.test", "model": "m"}


def arm(**switches: object) -> Method:
    """The method of an arm of the parameters that changes these switches."""
    data = {
        "rollout": {"simulator": SIMULATOR},
        "train": {"runs": ["control-1"]},
        "arms": {"control": switches},
        "eval": {"policies": ["start"]},
        "tts": {"policy": "start"},
        "fidelity": {"policies": ["start"]},
    }
    return parse(data).resolved_method("control")


def generation(
    role: Role, prompt: tuple[int, ...], output: tuple[int, ...], turn: int = 0, text: str = "words"
):
    return Generation(
        role=role,
        turn=turn,
        step=0,
        prompt_ids=prompt,
        output_ids=output,
        logprobs=(-1.0,) * len(output),
        text=text,
        sampling=Sampling(),
        finish=FinishReason.STOP,
    )


def episode(
    name: str, generations: tuple[Generation, ...], turns: tuple[float, ...], reward: float | None
) -> Episode:
    verdicts = tuple(Verdict(item_id="C0", turn=t, answer=Answer.YES) for t in range(len(turns)))
    return Episode(
        id=name,
        task_id="t",
        group_id="g",
        seed=0,
        prompt_set="h",
        generations=generations,
        messages=(),
        verdicts=verdicts,
        turn_rewards=turns,
        reward=reward,
        stop=StopReason.DONE,
    )


# Two turns. a: two growing ACT generations and a rehearsal. b: one ACT generation without text. c: unscored.
GROUP = (
    episode(
        "a",
        (
            generation(ACT, (1, 2), (3, 4)),
            generation(REHEARSE, (9,), (8, 8, 8)),
            generation(ACT, (1, 2, 3, 4, 5), (6,), turn=1),
        ),
        (1.0, 0.5),
        0.75,
    ),
    episode("b", (generation(ACT, (1, 2), (7, 7), text=" "),), (0.5,), 0.25),
    episode("c", (generation(ACT, (1, 2), (5,)),), (), None),
)
ROWS = (("a", ACT, 0), ("a", REHEARSE, 0), ("a", ACT, 1), ("b", ACT, 0), ("c", ACT, 0))
MEANS = {"act/": 1.0, "rehearse/": 0.5}  # these rows name no source


def learned(method: Method):
    """(advantage, weight of one token in the loss, trained tokens) of the group's rows, and its number of
    sequences."""
    rows, masks = batch([s for e in GROUP for s in sequences_of(e, method)])
    reward_R = trained_rewards(
        [r.reward for r in rows],
        [r.episode_id for r in rows],
        {e.id: e.reward for e in GROUP},
        scheme=method.reward,
        seed=1,
        step=1,
    )
    rows = [replace(r, reward=reward) for r, reward in zip(rows, reward_R)]
    rows, _ = advantages(rows, method, MEANS)
    given = verl_weights([m.sum() for m in masks], LOSS_AGG_MODE[method.loss_weight])
    ones = token_advantages([replace(r, advantage=1.0) for r in rows], masks, method)
    found = {
        (r.episode_id, r.role, r.turn): (
            r.advantage,
            ones[r.sequence][r.start] * given[r.sequence],
            r.trained,
        )
        for r in rows
    }
    return [found[key] for key in ROWS], len(masks)


ADVANTAGES = [
    ({}, [0.25, 0.0, 0.25, -0.25, 0.0]),  # ACT's mean over a and b is 0.5; the rehearsal is lone
    ({"baseline": "generation"}, [1 / 6, 0.0, 1 / 6, -1 / 3, 0.0]),  # mean of 0.75, 0.75, 0.25
    ({"baseline": "trajectory"}, [0.25, 0.0, 0.25, -0.25, 0.0]),
    ({"baseline": "leave_one_out"}, [0.5, 0.0, 0.5, -0.5, 0.0]),
    # (2 * 0.5 + 2 * 1) / 4 = 0.75 for ACT, (0.75 + 2 * 0.5) / 3 = 7/12 for the rehearsal
    ({"baseline": "shrinkage", "shrink_weight": 2}, [0.0, 1 / 6, 0.0, -0.5, 0.0]),
    ({"baseline": "shrinkage", "shrink_weight": 0}, [0.25, 0.0, 0.25, -0.25, 0.0]),
    ({"lone": "zero"}, [0.25, 0.0, 0.25, -0.25, 0.0]),
    ({"lone": "raw"}, [0.25, 0.75, 0.25, -0.25, 0.0]),
    ({"credit": "trajectory"}, [0.25, 0.0, 0.25, -0.25, 0.0]),
    # turn 0 is credited with 0.75 and 0.25; only a reached turn 1, with 0.25
    ({"credit": "reward_to_go", "lone": "raw"}, [0.25, 0.75, 0.25, -0.25, 0.0]),
    ({"credit": "reward_to_go"}, [0.25, 0.0, 0.0, -0.25, 0.0]),
    ({"empty_penalty": 0.1}, [0.3, 0.0, 0.3, -0.3, 0.0]),  # b is worth 0.15, the mean is 0.45
    ({"roles": ["act"], "lone": "raw"}, [0.25, 0.0, 0.25, -0.25, 0.0]),
    ({"roles": ["rehearse"], "lone": "raw"}, [0.0, 0.75, 0.0, 0.0, 0.0]),
    ({"roles": ["act", "rehearse"]}, [0.25, 0.0, 0.25, -0.25, 0.0]),
    ({"reward": "judged"}, [0.25, 0.0, 0.25, -0.25, 0.0]),
    ({"reward": "zero"}, [0.0] * 5),
]


@pytest.mark.parametrize("rows", ["generation", "merged"])
@pytest.mark.parametrize(
    "switches, expected", ADVANTAGES, ids=lambda x: str(x) if isinstance(x, dict) else ""
)
def test_advantages(switches, expected, rows):
    found, _ = learned(arm(**switches, rows=rows))
    np.testing.assert_allclose([a for a, _, _ in found], expected, atol=1e-12)


def test_shuffled_rewards_are_the_same_ones_dealt_anew():
    found, _ = learned(arm(reward="shuffled"))
    a, b = found[0][0], found[3][0]
    assert abs(a) == 0.25 and a == -b == found[2][0]


# 2, 3, 1, 2 and 1 trained tokens in 5 rows of 3 episodes, 6 of them in a; the last is unscored, not counted
WEIGHTS = [
    ({"loss_weight": "token"}, [1 / 8] * 4 + [0.0]),
    ({"loss_weight": "generation"}, [1 / 8, 1 / 12, 1 / 4, 1 / 8, 0.0]),
    ({"loss_weight": "episode"}, [1 / 12, 1 / 12, 1 / 12, 1 / 4, 0.0]),
    ({"role_weights": [1, 0.5]}, [1 / 6.5, 0.5 / 6.5, 1 / 6.5, 1 / 6.5, 0.0]),
    ({"role_weights": [0, 3]}, [0.0, 1 / 3, 0.0, 0.0, 0.0]),
    ({"roles": ["act"]}, [1 / 5, 0.0, 1 / 5, 1 / 5, 0.0]),
]


@pytest.mark.parametrize("rows, streams", [("generation", 5), ("merged", 4)])
@pytest.mark.parametrize("switches, expected", WEIGHTS, ids=lambda x: str(x) if isinstance(x, dict) else "")
def test_weights_of_a_token_in_the_loss(switches, expected, rows, streams):
    found, n = learned(arm(**switches, rows=rows))
    np.testing.assert_allclose([w for _, w, _ in found], expected, atol=1e-12)
    assert n == streams
    assert sum(w * tokens for _, w, tokens in found) == pytest.approx(1.0)


def test_the_presets_on_the_same_group():
    """authors and paper: a row is a member, the lone rehearsal is paid its reward; b's text is empty."""
    found = {name: [a for a, _, _ in learned(method)[0]] for name, method in PRESETS.items()}
    np.testing.assert_allclose(
        found["authors"], [0.2, 0.75, 0.2, -0.4, 0.0], atol=1e-12
    )  # mean of .75 .75 .15
    np.testing.assert_allclose(found["paper"], [1 / 6, 0.75, 1 / 6, -1 / 3, 0.0], atol=1e-12)
    np.testing.assert_allclose(found["envace"], [0.25, 0.0, 0.25, -0.25, 0.0], atol=1e-12)


@pytest.mark.parametrize(
    "source, kind",
    [
        ("rehearse", RehearsalSource),
        ("simulator", SimulatorSource),
        ("environment", EnvironmentSource),
        ("recorded", RecordedSource),
    ],
)
def test_the_source_answers_calls(source, kind):
    [task] = generate(7, "train", 1)
    params = RolloutParams(simulator=SimulatorParams(**SIMULATOR))
    args = (arm(source=source), ScriptedPolicy(["hello"]), ByteRenderer(), params)
    assert isinstance(make_source(task, *args), kind)
    if issubclass(kind, RehearsalSource):
        anchored = make_source(task, arm(source=source, anchor_every=3), *args[1:])
        assert isinstance(anchored, AnchoredSource) and isinstance(anchored.source, kind)
        assert isinstance(anchored.truth, EnvironmentSource)
    if source == "environment":
        with pytest.raises(DataError, match="no executable world"):
            make_source(replace(task, world=None), *args)
