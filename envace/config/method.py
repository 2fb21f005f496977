"""The method's switches: three presets, and every difference between them as one named key.

Flows in: a preset name and overrides. Flows out: `Method`, the resolved table that the rollout, the judge and
the learner read.
Invariant: presets differ only in this table; no other file asks for a preset's name.

`authors` is what the published code does, `paper` what the text says, `envace` ours (the default).
"""

from __future__ import annotations

import dataclasses
import difflib
import typing
from dataclasses import dataclass
from typing import Any, Literal

from envace.errors import ParamsError


@dataclass(frozen=True, kw_only=True)
class Method:
    """Each field: a switch, its values, and what they mean."""

    source: Literal["rehearse", "simulator", "environment", "mcp", "recorded"] = (
        "rehearse"  # who answers ACT's calls in training: the policy itself, another model (rollout.simulator), the
        # task's executable world, an MCP server (rollout.mcp), or the recorded results
    )
    anchor_every: int = 0  # every so many calls of an episode a true source is asked as well; 0 asks none
    anchor_mode: Literal["substitute", "bonus"] = (
        "substitute"  # ACT sees the true response, or the rehearsed one and its row earns how well it agrees
    )
    anchor_weight: float = 0.2  # bonus: reward of a response that agrees fully
    roles: tuple[Literal["act", "rehearse"], ...] = ("act", "rehearse")  # whose rows are trained
    baseline: Literal["generation", "trajectory", "leave_one_out", "shrinkage"] = (
        "trajectory"  # mean over a role's generations, over its trajectories, over the other trajectories, or over
        # its trajectories drawn towards a running mean of earlier steps
    )
    shrink_weight: float = 4.0  # shrinkage: as many trajectories the running mean counts for
    shrink_memory: float = 0.9  # shrinkage: share of the running mean that a step keeps, below 1
    lone: Literal["raw", "zero"] = "zero"  # advantage of a group with one member
    padding: Literal["duplicates", "masked"] = (
        "masked"  # rows that fill a batch: copies of others, which count like them, or rows without a trained token
    )
    credit: Literal["trajectory", "reward_to_go"] = (
        "trajectory"  # a row's reward: the episode's, or what its turn and later ones earned of it
    )
    on_tool_error: Literal["terminate", "observe"] = (
        "observe"  # a failed call ends the episode, or ACT sees the error
    )
    validation: Literal["rehearsal", "deterministic"] = (
        "deterministic"  # who checks a call before it is answered
    )
    thought_calls: Literal["execute", "ignore"] = "ignore"  # calls quoted inside <think>
    grammar: Literal["published", "strict"] = (
        "strict"  # of calls and rehearsed responses: the published code's, or ours (docs/tool-calls.md)
    )
    few_shot: Literal["gold", "up_to_turn", "past_only", "leave_one_out", "other_sample", "none"] = (
        "up_to_turn"  # records REHEARSE is shown
    )
    long_prompt: Literal["left", "sections"] = (
        "sections"  # a REHEARSE prompt that is too long: its first tokens go, or lines by section and never the rules
    )
    show_act_thoughts: bool = False  # REHEARSE reads ACT's <think> text
    act_text: Literal["none", "set"] = (
        "set"  # on top of the task's own system text ACT reads nothing, or act.txt of the prompt set where there is one
    )
    old_thoughts: Literal["keep", "template"] = (
        "template"  # thoughts of earlier turns stay in ACT's prompts, or go where the chat template drops them
    )
    turn_caps: Literal["turn_end", "always"] = "always"  # when step and call budgets are tested
    context_stop: Literal["reserve", "shrink"] = (
        "shrink"  # ACT stops once a full-length output would not fit, or writes into what room is left
    )
    judge_mode: Literal["turn", "step_item"] = (
        "turn"  # of an LLM judge: one question a turn, or one a step and item; a judge by rules gives the same verdicts
    )
    unscored: Literal["zero", "exclude"] = "exclude"  # an episode whose judge failed
    unfinished_turn: Literal["skip", "judge"] = "judge"  # a turn open when the episode stops
    empty_penalty: float = 0.0  # subtracted from the reward of rows with empty text
    blame_penalty: float = 0.0  # subtracted from the reward of the row whose own generation failed
    loss_weight: Literal["generation", "token", "episode"] = (
        "token"  # which of these weigh the same in the loss
    )
    role_weights: tuple[float, ...] = (1.0, 1.0)  # ACT's and REHEARSE's tokens in it; their ratio counts
    rows: Literal["generation", "merged"] = (
        "merged"  # one training row a generation, or one a stream of ACT generations that only grows
    )
    kl: float = 0.0  # coefficient of the KL loss to the start weights; 0 makes no reference model
    grounding: Literal["keep", "drop"] = (
        "keep"  # in training: checklist items on tool responses count, or are taken out
    )
    reward: Literal["judged", "zero", "shuffled"] = (
        "judged"  # what is trained on: the judge's reward, or a control that says nothing of the episode
    )


AUTHORS = Method(
    baseline="generation", lone="raw", padding="duplicates", on_tool_error="terminate", validation="rehearsal",
    thought_calls="execute", grammar="published", few_shot="gold", long_prompt="left", show_act_thoughts=True,
    act_text="none", old_thoughts="keep", turn_caps="turn_end", context_stop="reserve", judge_mode="step_item", unscored="zero",
    unfinished_turn="skip", empty_penalty=0.1, loss_weight="generation", rows="generation", kl=0.0,
)  # fmt: skip
PAPER = dataclasses.replace(AUTHORS, turn_caps="always", empty_penalty=0.0, kl=1e-4)
PRESETS: dict[str, Method] = {"authors": AUTHORS, "paper": PAPER, "envace": Method()}
# How a policy's own text is read and shown back to it: evaluation keeps to what the policy was trained with.
READING = ("thought_calls", "grammar", "show_act_thoughts", "act_text", "old_thoughts")


def resolve_method(preset: str, override: dict[str, Any]) -> Method:
    """A preset with overrides, each checked. Raises ParamsError naming key, value and what is allowed."""
    if not isinstance(preset, str) or preset not in PRESETS:
        raise ParamsError(f"preset is {preset!r}, must be {' or '.join(PRESETS)}")
    hints = typing.get_type_hints(Method)
    changes = {}
    for key, value in override.items():
        if key not in hints:
            near = difflib.get_close_matches(str(key), list(hints), n=1, cutoff=0.4)
            raise ParamsError(
                f"unknown switch {key} (value {value!r}); "
                + (f"did you mean {near[0]}?" if near else f"switches: {', '.join(hints)}")
            )
        changes[key] = _checked(key, hints[key], value)
    method = dataclasses.replace(PRESETS[preset], **changes)
    if method.shrink_memory >= 1:
        raise ParamsError(f"shrink_memory is {method.shrink_memory!r}, must be from 0 to below 1")
    _check_anchor(method)
    return method


def _check_anchor(method: Method) -> None:
    if not method.anchor_every:
        return
    if method.source not in ("rehearse", "simulator"):
        raise ParamsError(
            f"anchor_every is {method.anchor_every}, but source {method.source} rehearses nothing: set anchor_every "
            "to 0, or source to rehearse or simulator"
        )
    if method.anchor_mode == "bonus" and (method.source != "rehearse" or "rehearse" not in method.roles):
        raise ParamsError(
            "anchor_mode bonus pays trained REHEARSE rows: set source to rehearse and name rehearse among roles, or "
            "set anchor_mode to substitute"
        )


def _checked(key: str, hint: Any, value: Any) -> Any:
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if hint == tuple[float, ...]:
        return _pair(key, value)
    if origin is tuple:
        items = tuple(value) if isinstance(value, (list, tuple)) else ()
        if not items or any(v not in typing.get_args(args[0]) for v in items) or len(set(items)) < len(items):
            raise ParamsError(
                f"{key} is {value!r}, must be a list out of {', '.join(typing.get_args(args[0]))}"
            )
        return items
    if origin is Literal:
        if value not in args:
            raise ParamsError(f"{key} is {value!r}, must be one of {', '.join(args)}")
        return value
    if hint is bool:
        if not isinstance(value, bool):
            raise ParamsError(f"{key} is {value!r}, must be true or false")
        return value
    if hint is int:
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= 1000:
            raise ParamsError(f"{key} is {value!r}, must be a whole number from 0 to 1000")
        return value
    return _number(key, value)


def _number(key: str, value: Any) -> float:
    try:  # YAML reads 1e-4 as text
        number = float(value) if not isinstance(value, bool) else float("nan")
    except (TypeError, ValueError):
        number = float("nan")
    if not 0 <= number <= 10:
        raise ParamsError(f"{key} is {value!r}, must be a number from 0 to 10")
    return number


def _pair(key: str, value: Any) -> tuple[float, ...]:
    """Weights of ACT and REHEARSE, one of them above 0."""
    weights = tuple(_number(key, v) for v in value) if isinstance(value, (list, tuple)) else ()
    if len(weights) != 2 or not any(weights):
        raise ParamsError(f"{key} is {value!r}, must be two numbers for act and rehearse, not both 0")
    return weights
