"""The cases of `params_cases.py` for the switches that say how an episode is played, shown and judged."""

import json

from params_cases import BASE, NAMELESS, PAIR, PAIRED, A, B, Case, act, group
from params_kit import GOOD, GROUNDED, RESULTS, Member, echo
from rollout_kit import FULL, RENDERER, TASK

from envace.chat.contract import render_result
from envace.chat.renderer import ByteRenderer
from envace.types import Role, StopReason, replace

FIRST = len(RENDERER.render(TASK.prefix, TASK.tools))  # tokens of ACT's first prompt
THINKING = group(A=Member([f"<think>musing</think>{GOOD[0]}", *GOOD[1:]]))


class Forgetful(ByteRenderer):
    """Drops thoughts once the user has spoken again, as Qwen3's template does."""

    def render(self, messages, tools=()):
        last = max((n for n, m in enumerate(messages) if m.role == "user"), default=0)
        kept = [replace(m, thinking="") if n < last else m for n, m in enumerate(messages)]
        return super().render(kept, tools)


def stops(p):
    return [e.stop for e in p.episodes.values()]


def records_in(request):
    """A rehearsal that says which records its prompt holds."""
    prompt = RENDERER.decode(request.prompt_ids)
    return render_result({"seen": [n for n, result in enumerate(RESULTS, 1) if f"-> {result}" in prompt]})


def records_seen(p):
    return [json.loads(text.split("\n")[1])["seen"] for text in p.said("A", "rehearse")]


WATCHING = {**group(A=replace(A, rehearse=records_in)), "rollout": {"prompt_set": "full"}}


def few_shot(value, first, second):
    """What the rehearsals of turn 0 (a call with a record) and of turn 1 (the same) are shown."""
    return Case(value, BASE, seen=records_seen, expected=[first, second], more=WATCHING)


def rules_shown(p):
    return FULL.texts["rehearse_rules"] in p.prompts("A", "rehearse")[1]


def too_long(url):
    """Room for all but 300 tokens of the longest REHEARSE prompt."""
    from params_kit import learn

    roomy = learn({}, rollout={"prompt_set": "full"})
    generations = [g for e in roomy.episodes.values() for g in e.generations]
    longest = max(len(g.prompt_ids) for g in generations if g.role is Role.REHEARSE)
    return {"rollout": {"prompt_set": "full", "prompt_tokens": longest - 300}}


def broken(request):
    return "no tag" if request.step == 0 else echo(request)


def judge_of(url):
    members = {"A": A, "B": Member([GOOD[0], "zzbad", GOOD[2], "zzbad"])}
    return {"members": members, "judge": {"kind": "llm", "base_url": url, "model": "m", "attempts": 1}}


def says_bad(messages):
    """Denies every item where it reads the word: in the step it is asked about, or in the turn's
    transcript."""
    text = messages[-1]["content"]
    if "<now>" in text:
        return json.dumps({"answer": "zzbad" not in text.split("<now>")[1]})
    return json.dumps({item: "zzbad" not in text for item in ("C0", "C1") if f'"{item}"' in text})


EARLY = {"rollout": {"max_steps": 3}}  # A and B are stopped in turn 1, after their call
CUT = {"A": ([7 / 24] * 3, [3 / 16] * 2), "B": ([-1 / 12] * 3, [-3 / 16] * 2), "C": BASE["C"]}
PUBLISHED = [
    "<tool_call>" + GOOD[0][12:],
    "it is new",
    f"\n{GOOD[2]}",
    "dropped",
]  # the first tag opens the message
LINES = group(
    A=Member(PUBLISHED, rehearse=lambda r: f"\n{echo(r)}"),
    B=Member([GOOD[1] + f"\n{text}" if "<" in text else text for text in GOOD], no=B.no,
    rehearse=lambda r: f"\n{echo(r)}"),
)  # fmt: skip
PLAYING = {
    "on_tool_error": [
        Case("observe", BASE, more=group(A=replace(A, rehearse=broken))),
        # A stops with turn 0 open, which is judged and worth 1: it earns 1/2, and so does C.
        Case("terminate", {"A": ([-1 / 24], [-1 / 16]), "B": ([1 / 12] * 4, [1 / 16] * 2),
             "C": ([-1 / 24] * 2, [])},
             more=group(A=replace(A, rehearse=broken)), seen=stops,
             expected=[StopReason.TOOL_ERROR, StopReason.DONE, StopReason.DONE]),
    ],
    "validation": [  # A's first call breaks the schema
        Case("rehearsal", BASE, more=group(A=Member([NAMELESS, *GOOD[1:]]))),
        Case("deterministic", {**BASE, "A": ([7 / 24] * 4, [3 / 16])}, more=group(A=Member([NAMELESS,
             *GOOD[1:]]))),
    ],
    "thought_calls": [
        Case("execute", {**BASE, "A": ([7 / 24] * 3, [3 / 16])},
             more=group(A=Member([f"<think>{GOOD[0]}</think>hi", "ok", "bye"]))),
        Case("ignore", {"A": ([7 / 24] * 2, []), "B": ([-1 / 12] * 4, [0.0] * 2), "C": BASE["C"]},
             # B rehearses alone
             more=group(A=Member([f"<think>{GOOD[0]}</think>hi", "ok", "bye"]))),
    ],
    "grammar": [
        Case("strict", BASE, more=LINES),
        Case("published", {**BASE, "A": ([7 / 24] * 4, [3 / 16])}, more=LINES,
             seen=lambda p: [str(g.failure) for g in p.episodes["A"].generations if g.failure],
             expected=["no_call_found"]),
    ],
    "few_shot": [
        few_shot("gold", [1, 2, 3], [1, 2, 3]),
        few_shot("up_to_turn", [1, 2], [1, 2, 3]),
        few_shot("past_only", [], [1, 2]),
        few_shot("leave_one_out", [2], [1, 2]),
        few_shot("other_sample", [4], [4]),
        few_shot("none", [], []),
    ],
    "long_prompt": [
        Case("left", BASE, seen=rules_shown, expected=False, more=too_long),
        Case("sections", BASE, seen=rules_shown, expected=True, more=too_long),
    ],
    "show_act_thoughts": [
        Case(value, BASE, seen=lambda p: ["musing" in text for text in p.prompts("A", "rehearse")],
             expected=[value] * 2,
             more={**THINKING, "rollout": {"prompt_set": "full"}})
        for value in (True, False)
    ],
    "act_text": [
        Case(value, BASE, seen=lambda p: [FULL.texts["act"] in text for text in p.prompts("A", "act")],
             expected=[value == "set"] * 4,
             more={"rollout": {"prompt_set": "full"}})
        for value in ("none", "set")
    ],
    "old_thoughts": [
        Case(value, PAIRED, seen=lambda p: ("musing" in p.prompts("A", "act")[1], p.n_streams["A"]),
             expected=expected,
             more={"members": {**PAIR, "A": Member(["<think>\nmusing\n</think>\nhi", "bye"])},
             "renderer": Forgetful()})
        for value, expected in (("keep", (True, (1, 0))), ("template", (False, (2, 0))))
    ],
    "turn_caps": [
        Case("turn_end", BASE, more=EARLY),  # two steps at the end of turn 0, and then the episode is done
        Case("always", CUT, more=EARLY),
    ],
    "context_stop": [  # one token more than the first prompt, beside room for a whole output
        Case("reserve", {"A": ([0.0], []), "C": ([0.0], [])}, seen=stops,
             expected=[StopReason.CONTEXT_BUDGET] * 2,
             more={"members": PAIR, "rollout": {"prompt_tokens": FIRST + 1}}),  # both earn 1/2 in turn 0
        Case("shrink", PAIRED, seen=stops, expected=[StopReason.DONE] * 2,
             more={"members": PAIR, "rollout": {"prompt_tokens": FIRST + 1}}),
    ],
    "judge_mode": [  # B's turns end badly, but their first steps are good
        Case("turn", {"A": ([0.5] * 4, [0.5] * 2), "B": ([-0.5] * 4, [-0.5] * 2)}, more=judge_of,
             served=says_bad),
        Case("step_item", {"A": ([0.0] * 4, [0.0] * 2), "B": ([0.0] * 4, [0.0] * 2)}, more=judge_of,
             served=says_bad),
    ],
    "unscored": [  # nobody can say whether B met an item of turn 0
        # as a no: B earns (1/4 + 0) / 2, so that ACT's mean is 13/24 and REHEARSE's 9/16
        Case("zero", {"A": ([11 / 24] * 4, [7 / 16] * 2), "B": ([-5 / 12] * 2, [-7 / 16]),
             "C": ([-1 / 24] * 2, [])},
             more=group(B=Member(GOOD, unscored=((0, "C1"),)))),
        Case("exclude", {"A": ([0.25] * 4, [0.0] * 2), "B": ([0.0] * 2, [0.0]), "C": ([-0.25] * 2, [])},
             more=group(B=Member(GOOD, unscored=((0, "C1"),)))),
    ],
    "unfinished_turn": [
        Case("judge", CUT, more=EARLY),
        # A earns 1/2 and B 1/8, so that ACT's mean is 3/8 and REHEARSE's 5/16
        Case("skip", {"A": ([0.125] * 3, [3 / 16] * 2), "B": ([-0.25] * 3, [-3 / 16] * 2),
             "C": ([0.125] * 2, [])}, more=EARLY),
    ],
    "grounding": [  # B lacks an item on tool responses alone
        Case("keep", BASE, more={"task": GROUNDED}),
        Case("drop", act(1 / 6, 1 / 6, -1 / 3, ([0.0] * 2, [0.0] * 2)), more={"task": GROUNDED}),
    ],
}  # fmt: skip
