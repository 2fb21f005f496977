"""One case for each value of each switch: what a group learns under it, counted by hand.

`Case(value, advantages, ...)`: under the switch's value (and `also`, other switches) the group's rows have
these advantages, `{episode: (ACT's, REHEARSE's)}`; `seen` looks at what was played and must find `expected`.
`more` are arguments of `params_kit.learn`, or a function that makes them of the address of a chat server;
`served(messages)` is what that server says.

The group of `params_kit`: A and B play four ACT generations and two rehearsals, C two replies. They earn 1,
5/8 and 1/2, so that ACT's mean is 17/24 over episodes, and REHEARSE's 13/16.
"""

import sys
from dataclasses import dataclass, field, replace
from pathlib import Path

from params_kit import GOOD, GROUP, IN_SHOP, Member, echo
from rollout_kit import call

from envace.chat.contract import render_result
from envace.engine.overrides import verl_overrides
from envace.types import FailureReason

A, B, C = GROUP["A"], GROUP["B"], GROUP["C"]
BASE = {"A": ([7 / 24] * 4, [3 / 16] * 2), "B": ([-1 / 12] * 4, [-3 / 16] * 2), "C": ([-5 / 24] * 2, [])}
NO_REHEARSAL = {name: (act, []) for name, (act, _) in BASE.items()}
MEANS = {"act/test": 0.5, "rehearse/test": 0.25}
PAIR = {"A": Member(["hi", "bye"]), "C": Member(["a", "b"], no=((1, "C0"),))}  # rewards 1 and 1/2
PAIRED = {"A": ([0.25] * 2, []), "C": ([-0.25] * 2, [])}


@dataclass(frozen=True)
class Case:
    value: object
    advantages: dict
    also: dict = field(default_factory=dict)
    seen: object = None
    expected: object = None
    more: object = field(default_factory=dict)
    served: object = None
    heavy: bool = False


def group(**changed):
    return {"members": {**GROUP, **changed}}


def act(a, b, c, rehearse=([3 / 16] * 2, [-3 / 16] * 2)):
    """Advantages that are the same in all ACT rows of an episode."""
    return {"A": ([a] * 4, rehearse[0]), "B": ([b] * 4, rehearse[1]), "C": ([c] * 2, [])}


def both(b_act, b_rehearse):
    """Advantages under these two baselines."""
    rewards = (1 - b_rehearse, 0.625 - b_rehearse)
    return act(1 - b_act, 0.625 - b_act, 0.5 - b_act, ([rewards[0]] * 2, [rewards[1]] * 2))


def shown(text):
    return lambda p: text in p.prompts("A", "act")[1]


def at(url):
    return {"rollout": {"simulator": {"base_url": url, "model": "m"}}}


def mcp(url):
    import mcp as sdk

    script = Path(__file__).with_name("mcp_server.py")
    command = f"{sys.executable} {script} {Path(sdk.__file__).parents[1]} stdio"
    return {"rollout": {"mcp": {"transport": "stdio", "url": command, "timeout_s": 120.0}}}


# --- who answers, who is trained, what is compared ------------------------------------------------

AGREEING = group(
    A=replace(A, rehearse=lambda r: render_result({"done": True})), B=replace(B,
    rehearse=lambda r: render_result({"x": 1}))
)  # fmt: skip
LEARNING = {
    "source": [
        Case("rehearse", BASE, seen=shown('{"of": "#a"}'), expected=True),
        Case("simulator", NO_REHEARSAL, seen=shown('{"sim": 1}'), expected=True, more=at,
             served=lambda messages: render_result({"sim": 1})),
        Case("environment", NO_REHEARSAL, seen=shown('{"true": 1}'), expected=True,
             more={"task": IN_SHOP, "rollout": {"worlds": {"params_shop": "params_kit:Shop"}}}),
        Case("mcp", NO_REHEARSAL, seen=shown('{"id": "#a", "count": 1}'), expected=True, more=mcp,
             heavy=True),
        Case("recorded", NO_REHEARSAL, seen=shown('{"id": "#a", "state": "new"}'), expected=True),
    ],
    "anchor_every": [
        Case(0, BASE),
        Case(2, act(7 / 24, -1 / 12, -5 / 24, ([3 / 16], [-3 / 16])),  # the second call is not rehearsed
             seen=lambda p: len(p.episodes["A"].real_calls), expected=1),
    ],
    "anchor_mode": [
        Case("substitute", act(7 / 24, -1 / 12, -5 / 24, ([3 / 16], [-3 / 16])), also={"anchor_every": 2}),
        # A agrees with the record of the second call and earns 1.2 there, so the mean is (1.1 + 0.625) / 2
        Case("bonus", act(7 / 24, -1 / 12, -5 / 24, ([0.1375, 0.3375], [-0.2375] * 2)),
             also={"anchor_every": 2},
             more=AGREEING),
    ],
    "anchor_weight": [
        Case(0.0, BASE, also={"anchor_every": 2, "anchor_mode": "bonus"}, more=AGREEING),
        Case(0.5, act(7 / 24, -1 / 12, -5 / 24, ([0.0625, 0.5625], [-0.3125] * 2)),  # (1.25 + 0.625) / 2
             also={"anchor_every": 2, "anchor_mode": "bonus"}, more=AGREEING),
    ],
    "roles": [
        Case(["act", "rehearse"], BASE),
        Case(["act"], act(7 / 24, -1 / 12, -5 / 24, ([0.0] * 2, [0.0] * 2))),
        Case(["rehearse"], act(0.0, 0.0, 0.0)),
    ],
    "baseline": [
        Case("generation", both(0.75, 13 / 16)),  # (4 * 1 + 4 * 5/8 + 2 * 1/2) / 10
        Case("trajectory", BASE),
        Case("leave_one_out", act(0.4375, -0.125, -0.3125, ([0.375] * 2, [-0.375] * 2))),
        Case("shrinkage", both(4.125 / 7, 0.4375), more={"means": MEANS}),  # (3 * 17/24 + 4 * 1/2) / 7
    ],
    "shrink_weight": [
        Case(0, BASE, also={"baseline": "shrinkage"}, more={"means": MEANS}),
        Case(2, both(0.625, 0.53125), also={"baseline": "shrinkage"}, more={"means": MEANS}),
    ],
    "shrink_memory": [  # after one step ACT's mean is m / 2 + (1 - m) 17/24, REHEARSE's m / 4 + (1 - m) 13/16
        Case(0.0, BASE, also={"baseline": "shrinkage"}, more={"means": MEANS, "steps": 2}),
        Case(0.5, both(2 / 3, 0.671875), also={"baseline": "shrinkage", "shrink_weight": 2},
             more={"means": MEANS, "steps": 2}),
    ],
    "lone": [
        Case("raw", {"A": ([0.25] * 4, [1.0] * 2), "C": PAIRED["C"]}, more={"members": {"A": A, "C": C}}),
        Case("zero", {"A": ([0.25] * 4, [0.0] * 2), "C": PAIRED["C"]}, more={"members": {"A": A, "C": C}}),
    ],
    "padding": [  # 14 rows and 16 places: A's second rehearsal and B's first ACT row stand in the batch again
        Case("duplicates", {
            "A": ([1 - 8.125 / 11] * 4, [0.15] * 3), "B": ([0.625 - 8.125 / 11] * 5, [-0.225] * 2),
            "C": ([0.5 - 8.125 / 11] * 2, []),
        }, also={"baseline": "generation"}),
        Case("masked", both(0.75, 13 / 16), also={"baseline": "generation"}),
    ],
    "credit": [
        Case("trajectory", BASE),
        # Turn 0 earned what the episode did; turn 1 earned 1/2, 1/2 and nothing, with a mean of 1/3.
        Case("reward_to_go", {
            "A": ([7 / 24, 7 / 24, 1 / 6, 1 / 6], [3 / 16, 0.0]), "B": ([-1 / 12, -1 / 12, 1 / 6, 1 / 6],
            [-3 / 16, 0.0]),
            "C": ([-5 / 24, -1 / 3], []),
        }),
    ],
    "reward": [
        Case("judged", BASE),
        Case("zero", act(0.0, 0.0, 0.0, ([0.0] * 2, [0.0] * 2))),
        Case("shuffled", act(-5 / 24, 7 / 24, -1 / 12, ([-0.25] * 2, [0.25] * 2))),  # dealt 1/2, 1, 5/8
    ],
}  # fmt: skip


# --- how much a row counts ------------------------------------------------------------------------


def of_weights(p):
    return [p.weights[name] for name in (("A", "act"), ("C", "act"))]


def kl_keys(p):
    told = verl_overrides(p.params, "envace", 1, tasks_file="t", start="s", work="w")
    return [
        line.rpartition("actor.")[2] for line in told if ".use_kl_loss" in line or ".kl_loss_coef" in line
    ]


ONE_CALL = {"A": Member([call("get"), "hi", "bye"]), "C": PAIR["C"]}
N_ACT = len(call("get")) + 1 + 3 + 4 + 2 + 2  # tokens: the bytes of a text and its end
N_REHEARSE = len('<execution_result>\n{"of": "#a"}\n</execution_result>') + 1
ONE_CALLED = {"A": ([0.25] * 3, [0.0]), "C": ([-0.25] * 2, [])}


def by_role(p):
    return p.weights["A", "act"][0], p.weights["A", "rehearse"][0]


NAMELESS = call("get").replace('"id"', '"no"')  # breaks the schema
EMPTY = group(C=Member(["hi", ""], no=C.no))
BLAMED = group(
    A=replace(A, rehearse=lambda r: echo(r) if r.step else "oops"), B=Member([NAMELESS, *GOOD[1:]], no=B.no),
    C=Member(["<tool_call>oops</tool_call>", "hi", "bye"], no=C.no),
)  # fmt: skip
BLAME_BASE = {"A": BASE["A"], "B": ([-1 / 12] * 4, [-3 / 16]), "C": ([-5 / 24] * 3, [])}
B_ACT, B_REHEARSE = (1 + 0.6 + 1.4 / 3) / 3, (0.95 + 0.625) / 2
WEIGHING = {
    "loss_weight": [  # 3 and 4 tokens in A, 2 and 2 in C
        Case("token", PAIRED, seen=of_weights, expected=[[1 / 11] * 2, [1 / 11] * 2], more={"members": PAIR}),
        Case("generation", PAIRED, seen=of_weights, expected=[[1 / 12, 1 / 16], [1 / 8] * 2],
             more={"members": PAIR}),
        Case("episode", PAIRED, seen=of_weights, expected=[[1 / 14] * 2, [1 / 8] * 2],
             more={"members": PAIR}),
    ],
    "role_weights": [
        Case([1, 1], ONE_CALLED, seen=by_role, expected=(1 / (N_ACT + N_REHEARSE),) * 2,
             more={"members": ONE_CALL}),
        Case([1, 0.5], ONE_CALLED, seen=by_role, more={"members": ONE_CALL},
             expected=(1 / (N_ACT + N_REHEARSE / 2), 0.5 / (N_ACT + N_REHEARSE / 2))),
        Case([0, 3], ONE_CALLED, seen=by_role, expected=(0.0, 1 / N_REHEARSE), more={"members": ONE_CALL}),
    ],
    "rows": [
        Case("generation", BASE, seen=lambda p: p.n_streams, expected={"A": (4, 2), "B": (4, 2), "C": (2,
             0)}),
        Case("merged", BASE, seen=lambda p: p.n_streams, expected={"A": (1, 2), "B": (1, 2), "C": (1, 0)}),
    ],
    "empty_penalty": [
        Case(0.0, BASE, more=EMPTY),
        Case(0.1, {  # C's last row has no text: 0.5 and 0.4, so that ACT's mean is (1 + 0.625 + 0.45) / 3
            "A": ([1 - 2.075 / 3] * 4, [3 / 16] * 2), "B": ([0.625 - 2.075 / 3] * 4, [-3 / 16] * 2),
            "C": ([0.5 - 2.075 / 3, 0.4 - 2.075 / 3], []),
        }, more=EMPTY),
    ],
    "blame_penalty": [
        Case(0.0, BLAME_BASE, more=BLAMED),
        # one row in each episode failed by itself: A's first rehearsal, B's and C's first ACT generation
        Case(0.1, {
            "A": ([1 - B_ACT] * 4, [0.9 - B_REHEARSE, 1 - B_REHEARSE]),
            "B": ([0.525 - B_ACT, *[0.625 - B_ACT] * 3], [0.625 - B_REHEARSE]),
            "C": ([0.4 - B_ACT, *[0.5 - B_ACT] * 2], []),
        }, more=BLAMED,
             seen=lambda p: [[g.failure for g in e.generations if g.failure] for e in p.episodes.values()],
             expected=[[FailureReason.NO_RESULT_TAG], [FailureReason.SCHEMA_VIOLATION],
                       [FailureReason.BAD_JSON]]),
    ],
    "kl": [
        Case(0.0, BASE, seen=kl_keys, expected=["use_kl_loss=false", "kl_loss_coef=0.0"]),
        Case(1e-4, BASE, seen=kl_keys, expected=["use_kl_loss=true", "kl_loss_coef=0.0001"]),
    ],
}  # fmt: skip
