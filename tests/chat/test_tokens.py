"""The token log: what it keeps, where a row begins anew and why, what the probes find."""

import pytest
from token_kit import KINDS, TOOLS, play, renderer, result, said, tokenizer, user, written

from envace.chat.append_only import STEPS, Fit, Restart, shape_of, suffix
from envace.chat.probes import check_same_prompts, probe_dialogues
from envace.chat.renderer import HFRenderer
from envace.chat.tokens import TokenLog
from envace.errors import ParamsError
from envace.types import replace

OPEN = [user("hi")]
DROPPED, OPENING = Fit(Restart.THOUGHTS_DROPPED), Fit(Restart.OPENING_DROPPED)


class Counting(HFRenderer):
    """Remembers how many messages each render had."""

    def __init__(self, *args):
        super().__init__(*args)
        self.sizes = []

    def render(self, messages, tools=()):
        self.sizes.append(len(messages))
        return super().render(messages, tools)


@pytest.mark.parametrize(
    "kind, tool, tool_thought, user_turn, user_thought",
    [
        ("bytes", Fit(), Fit(), Fit(), Fit()),
        ("tiny", Fit(), OPENING, Fit(), DROPPED),
        ("tiny thinking", Fit(), Fit(), Fit(), DROPPED),
        ("qwen3 thinking", Fit(), Fit(), Fit(), DROPPED),
        # <think>, two newlines, </think>, two newlines: four tokens that history leaves out
        ("qwen3", replace(OPENING, trim=4), OPENING, replace(OPENING, trim=4), DROPPED),
    ],
)
def test_probes_find_what_each_template_does(kind, tool, tool_thought, user_turn, user_thought):
    fits = shape_of(renderer(kind)).fits
    assert [fits[step] for step in STEPS] == [tool, tool_thought, user_turn, user_thought]


@pytest.mark.parametrize("rewrites", [False, True])
def test_a_template_that_refuses_a_probe_is_rendered_whole_at_each_step(rewrites):
    """Nothing is known of it; the row still goes on where the whole render does continue the ids before."""
    fast = tokenizer("tiny")
    before = fast.chat_template
    refuses = "{% if messages | length > 9 %}{{ raise_exception('too long') }}{% endif %}"
    fast.chat_template = ("{{ messages | length }}" if rewrites else "") + before + refuses
    r = Counting(fast)
    try:
        shape_of(r)
        r.sizes.clear()
        log = play(r, [*OPEN, said("", "get"), result(), said("ok")])
    finally:
        fast.chat_template = before
    assert r.sizes == [1, 3]
    assert log.restarts == ([None, Restart.UNPROBED] if rewrites else [None])


def test_a_rewritten_history_is_named():
    fast = tokenizer("tiny")
    before = fast.chat_template
    fast.chat_template = "{{ messages | length }}" + before
    try:
        fits = shape_of(HFRenderer(fast)).fits
        assert {fits[role, False].reason for role in ("tool", "user")} == {Restart.HISTORY_REWRITTEN}
    finally:
        fast.chat_template = before


def test_bug_1_the_newline_behind_an_end_token_is_part_of_what_results_add():
    r = renderer("qwen3 thinking")
    text = r.tokenizer.decode(suffix(r, shape_of(r).ends, [result("{}")]))
    assert text == (
        "\n<|im_start|>user\n<tool_response>\n{}\n</tool_response><|im_end|>\n<|im_start|>assistant\n"
    )


@pytest.mark.parametrize("kind", KINDS)
def test_tool_turns_and_user_turns_without_thoughts(kind):
    chat = [*OPEN, said("", "get", "get"), result("[1]"), result("[2]"), said("so"), user("and"), said("bye")]
    r = renderer(kind)

    def check(log, so_far):
        assert list(log.prompt_ids()) == r.render(so_far, TOOLS)

    log = play(r, chat, check=check)
    assert log.restarts == ([None, *[Restart.OPENING_DROPPED] * 2] if kind == "qwen3" else [None])


@pytest.mark.parametrize("kind", ["tiny thinking", "qwen3 thinking"])
def test_bug_2_a_user_turn_after_a_thought_begins_a_row(kind):
    chat = [
        *OPEN,
        said("", "get", thinking="t1"),
        result(),
        said("so", thinking="t2"),
        user("and"),
        said("bye"),
    ]
    r = renderer(kind)
    prompts = []
    log = play(r, chat, check=lambda log, _: prompts.append(log.prompt_ids()))
    assert log.restarts == [None, Restart.THOUGHTS_DROPPED]
    assert "t1" in r.decode(prompts[1])
    assert "t1" not in r.decode(prompts[2]) and "t2" not in r.decode(prompts[2])
    assert prompts[2] == tuple(r.render(chat[:-1], TOOLS))


@pytest.mark.parametrize("kind", KINDS)
def test_every_probe_dialogue_gives_the_prompts_of_a_full_render(kind):
    r = renderer(kind)

    def check(log, so_far):
        assert list(log.prompt_ids()) == r.render(so_far, TOOLS)

    for chat in probe_dialogues():
        play(r, chat, check=check)


@pytest.mark.parametrize("thinking", [True, False])
def test_history_is_not_rendered_again(thinking):
    r = Counting(tokenizer("qwen3"), thinking)
    shape_of(r)
    chat = [
        *OPEN,
        *[m for _ in range(5) for m in (said("", "get"), result())],
        said("so"),
        user("and"),
        said("x"),
    ]
    r.sizes.clear()
    play(r, chat)
    assert r.sizes == [1] + [3] * 6  # the opening; then a user, a message and the new one, thinking or not


def test_prompts_by_hand():
    # bytes: 256 user\n h 257, 256 assistant\n | x 257 | 256 tool\n r 257 256 assistant\n | y 257
    r = renderer("bytes")
    log = TokenLog(r, [user("h")])
    opening = (256, *b"user\nh", 257, 256, *b"assistant\n")
    assert log.prompt_ids() == opening
    log.add_sampled([120, 257])
    log.add_results([result("r")])
    assert log.prompt_ids() == (*opening, 120, 257, 256, *b"tool\nr", 257, 256, *b"assistant\n")


@pytest.mark.parametrize("kind", KINDS)
def test_a_generation_cut_off_gets_a_masked_end(kind):
    r = renderer(kind)
    log = TokenLog(r, OPEN, TOOLS)
    log.add_sampled(written(r, said("half a"), end=False))
    log.add_user(user("go on"))
    assert list(log.prompt_ids()) == r.render([*OPEN, said("half a"), user("go on")], TOOLS)


@pytest.mark.parametrize("kind", ["tiny", "qwen3", "qwen3 thinking"])
def test_another_end_token_stays_in_its_row_only(kind):
    r = renderer(kind)
    other = r.tokenizer.convert_tokens_to_ids("<|endoftext|>")
    log = TokenLog(r, OPEN, TOOLS)
    log.add_sampled([*written(r, said("so"), end=False), other])
    log.add_user(user("and"))
    assert list(log.prompt_ids()) == r.render([*OPEN, said("so"), user("and")], TOOLS)
    assert other not in log.prompt_ids()
    assert log.restart is (Restart.OPENING_DROPPED if kind == "qwen3" else Restart.FOREIGN_END)


@pytest.mark.parametrize("kind", ["bytes", "tiny", "qwen3 thinking"])
def test_a_sampled_control_token_opens_no_message(kind):
    r = renderer(kind)
    start = shape_of(r).control_ids - r.end_ids
    log = TokenLog(r, OPEN, TOOLS)
    log.add_sampled([*r.encode("a"), *start, *r.encode("b"), r.end_id])
    log.add_user(user("and"))
    assert log.restart is Restart.CONTROL_SAMPLED
    assert sum(i in start for i in log.prompt_ids()) == 5  # the tools, two messages of each side


def test_an_empty_thought_is_not_in_history():
    r = renderer("qwen3 thinking")
    log = TokenLog(r, OPEN, TOOLS)
    log.add_sampled([*r.encode("<think>\n\n</think>\n\n"), *written(r, said("", "get"))])
    log.add_results([result()])
    assert list(log.prompt_ids()) == r.render([*OPEN, said("", "get"), result()], TOOLS)
    assert log.restart is Restart.THOUGHTS_DROPPED


@pytest.mark.parametrize("kind", ["tiny", "qwen3"])
def test_hidden_ids_are_shown_and_not_sampled_and_the_chat_goes_on(kind):
    """tiny: the whole render continues what was shown. Qwen3 without thinking drops what the prompt ended
    with."""
    r = renderer(kind)
    log = TokenLog(r, OPEN, TOOLS)
    log.add_sampled((), said=said("so"))
    log.add_user(user("and"))
    assert list(log.prompt_ids()) == r.render([*OPEN, said("so"), user("and")], TOOLS)
    assert log.restart is (None if kind == "tiny" else Restart.IDS_HIDDEN)


def test_a_restart_is_told_before_its_generation_and_not_after_it():
    log = TokenLog(renderer("qwen3 thinking"), OPEN, TOOLS)
    assert log.restart is None
    for message in (said("so", thinking="t"), said("ok")):
        log.add_sampled(written(renderer("qwen3 thinking"), message), said=message)
        assert log.restart is None
        log.add_user(user("and"))
        assert log.restart is (Restart.THOUGHTS_DROPPED if message.thinking else None)


def test_steps_out_of_turn_are_refused():
    log = TokenLog(renderer("bytes"), OPEN)
    with pytest.raises(ValueError, match="must follow a generation"):
        log.add_user(user("x"))
    log.add_sampled([120, 257])
    with pytest.raises(ValueError, match="must follow a prompt"):
        log.add_sampled([120, 257])
    with pytest.raises(ValueError, match="no next prompt"):
        log.prompt_ids()
    with pytest.raises(ValueError, match="one tool message"):
        log.add_results([user("x")])
    with pytest.raises(ValueError, match="cannot have the role"):
        log.add_user(result())


def test_training_and_evaluation_must_show_thoughts_alike():
    thinking, silent = renderer("qwen3 thinking"), renderer("qwen3")
    check_same_prompts(thinking, thinking.render)

    def thoughtless(messages, tools):
        return thinking.render([replace(m, thinking="") for m in messages], tools)

    with pytest.raises(ParamsError, match="shows the policy other thoughts than training"):
        check_same_prompts(thinking, thoughtless)
    with pytest.raises(ParamsError, match="rollout.enable_thinking"):
        check_same_prompts(thinking, silent.render)
