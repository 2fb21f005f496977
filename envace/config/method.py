"""The method's switches: three presets, and every difference between them as one named key.

Presets differ only in this table; no other file asks for a preset's name. `authors` is what the published
code does, `paper` what the text says, `envace` ours (the default).
"""

from __future__ import annotations

import dataclasses
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, JsonValue, ValidationError
from pydantic.dataclasses import dataclass

from envace.config.values import CONFIG, Flag, Listed, Real, Whole, refusal
from envace.errors import ParamsError

Rate = Annotated[Real, Field(ge=0, le=10)]


def _not_both_zero(weights: tuple[float, float]) -> tuple[float, float]:
    if not any(weights):
        raise ValueError("must be two numbers for act and rehearse, not both 0")
    return weights


@dataclass(frozen=True, kw_only=True, config=CONFIG)
class Method:
    """Each field: a switch, its values, and what they mean."""

    source: Literal["rehearse", "simulator", "environment", "mcp", "recorded"] = "rehearse"
    """Who answers ACT's calls in training: the policy itself, another model (rollout.simulator), the task's
    executable world, an MCP server (rollout.mcp), or the recorded results."""
    anchor_every: Annotated[Whole, Field(ge=0, le=1000)] = 0
    """Every so many calls of an episode a true source is asked as well; 0 asks none."""
    anchor_mode: Literal["substitute", "bonus"] = "substitute"
    """ACT sees the true response, or the rehearsed one and its row earns how well it agrees."""
    anchor_weight: Rate = 0.2
    """Bonus: reward of a response that agrees fully."""
    roles: Listed[Literal["act", "rehearse"]] = ("act", "rehearse")
    """Whose rows are trained."""
    baseline: Literal["generation", "trajectory", "leave_one_out", "shrinkage"] = "trajectory"
    """Mean over a role's generations, over its trajectories, over the other trajectories, or over its
    trajectories drawn towards a running mean of earlier steps."""
    shrink_weight: Rate = 4.0
    """Shrinkage: as many trajectories the running mean counts for."""
    shrink_memory: Rate = 0.9
    """Shrinkage: share of the running mean that a step keeps, below 1."""
    lone: Literal["raw", "zero"] = "zero"
    """Advantage of a group with one member."""
    padding: Literal["duplicates", "masked"] = "masked"
    """Rows that fill a batch: copies of others, which count like them, or rows without a trained token."""
    credit: Literal["trajectory", "reward_to_go"] = "trajectory"
    """A row's reward: the episode's, or what its turn and later ones earned of it."""
    on_tool_error: Literal["terminate", "observe"] = "observe"
    """An invalid call or a broken response ends the episode, or ACT sees the error; a refusal never does."""
    validation: Literal["rehearsal", "deterministic"] = "deterministic"
    """Who checks a call before it is answered."""
    thought_calls: Literal["execute", "ignore"] = "ignore"
    """Calls quoted inside <think>."""
    grammar: Literal["published", "strict"] = "strict"
    """Of calls and rehearsed responses: the published code's, or ours (docs/tool-calls.md)."""
    few_shot: Literal["gold", "up_to_turn", "past_only", "leave_one_out", "other_sample", "none"] = (
        "up_to_turn"
    )
    """Records REHEARSE is shown."""
    long_prompt: Literal["left", "sections"] = "sections"
    """A REHEARSE prompt that is too long: its first tokens go, or lines by section and never the rules."""
    show_act_thoughts: Flag = False
    """REHEARSE reads ACT's <think> text."""
    act_text: Literal["none", "set"] = "set"
    """On top of the task's own system text ACT reads nothing, or act.txt of the prompt set where there is
    one."""
    old_thoughts: Literal["keep", "template"] = "template"
    """Thoughts of earlier turns stay in ACT's prompts, or go where the chat template drops them."""
    turn_caps: Literal["turn_end", "always"] = "always"
    """When step and call budgets are tested."""
    context_stop: Literal["reserve", "shrink"] = "shrink"
    """ACT stops once a full-length output would not fit, or writes into what room is left."""
    judge_mode: Literal["turn", "step_item"] = "turn"
    """Of an LLM judge: one question a turn, or one a step and item; a judge by rules gives the same
    verdicts."""
    unscored: Literal["zero", "exclude"] = "exclude"
    """An episode whose judge failed."""
    unfinished_turn: Literal["skip", "judge"] = "judge"
    """A turn open when the episode stops."""
    empty_penalty: Rate = 0.0
    """Subtracted from the reward of rows with empty text."""
    blame_penalty: Rate = 0.0
    """Subtracted from the reward of the row whose own generation failed."""
    loss_weight: Literal["generation", "token", "episode"] = "token"
    """Which of these weigh the same in the loss."""
    role_weights: Annotated[tuple[Rate, Rate], AfterValidator(_not_both_zero)] = (1.0, 1.0)
    """ACT's and REHEARSE's tokens in it; their ratio counts."""
    rows: Literal["generation", "merged"] = "merged"
    """One training row a generation, or one a stream of ACT generations that only grows."""
    kl: Rate = 0.0
    """Coefficient of the KL loss to the start weights; 0 makes no reference model."""
    grounding: Literal["keep", "drop"] = "keep"
    """In training: checklist items on tool responses count, or are taken out."""
    reward: Literal["judged", "zero", "shuffled"] = "judged"
    """What is trained on: the judge's reward, or a control that says nothing of the episode."""


AUTHORS = Method(
    baseline="generation",
    lone="raw",
    padding="duplicates",
    on_tool_error="terminate",
    validation="rehearsal",
    thought_calls="execute",
    grammar="published",
    few_shot="gold",
    long_prompt="left",
    show_act_thoughts=True,
    act_text="none",
    old_thoughts="keep",
    turn_caps="turn_end",
    context_stop="reserve",
    judge_mode="step_item",
    unscored="zero",
    unfinished_turn="skip",
    empty_penalty=0.1,
    loss_weight="generation",
    rows="generation",
    kl=0.0,
)
PAPER = dataclasses.replace(AUTHORS, turn_caps="always", empty_penalty=0.0, kl=1e-4)
PRESETS: dict[str, Method] = {"authors": AUTHORS, "paper": PAPER, "envace": Method()}
READING = ("thought_calls", "grammar", "show_act_thoughts", "act_text", "old_thoughts")
"""How a policy's own text is read and shown back to it: evaluation keeps to what the policy was trained
with."""


def resolve_method(preset: JsonValue, override: dict[str, JsonValue]) -> Method:
    """A preset with overrides, each checked. Raises ParamsError naming key, value and what is allowed."""
    if not isinstance(preset, str) or preset not in PRESETS:
        raise ParamsError(f"preset is {preset!r}, must be {' or '.join(PRESETS)}")
    try:
        method = Method(**{**dataclasses.asdict(PRESETS[preset]), **override})
    except ValidationError as e:
        raise refusal(e, Method) from None
    if method.shrink_memory >= 1:
        raise ParamsError(f"shrink_memory is {method.shrink_memory!r}, must be from 0 to below 1")
    trained = method.source == "rehearse" and "rehearse" in method.roles
    if method.anchor_every and method.source not in ("rehearse", "simulator"):
        raise ParamsError(
            f"anchor_every is {method.anchor_every}, but source {method.source} rehearses nothing: set "
            "anchor_every to 0, or source to rehearse or simulator"
        )
    if method.anchor_every and method.anchor_mode == "bonus" and not trained:
        raise ParamsError(
            "anchor_mode bonus pays trained REHEARSE rows: set source to rehearse and name rehearse among "
            "roles, or set anchor_mode to substitute"
        )
    return method
