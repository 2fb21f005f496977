"""One episode as HTML and as text.

Run: pytest tests/report/test_episode_view.py
"""

import re

from view_samples import TASK, make_episode

from envace.report.episode import episode_html, episode_text, turns_of
from envace.report.table import clean
from envace.types import Source, StopReason, replace

HOSTILE = '</pre></section><script>alert("x")</script><img src=x onerror=alert(1)>'


def test_each_speaker_is_named_by_who_answered() -> None:
    kinds = [b.kind for t in turns_of(make_episode(), TASK) for b in t.blocks]
    assert kinds == ["system", "user", "act", "rehearse", "act", "user", "act", "validator", "act"]
    true = [b.kind for t in turns_of(make_episode(source=Source.ENVIRONMENT), TASK) for b in t.blocks]
    assert true[3] == "tool"


def test_verdicts_stand_with_the_words_of_their_items() -> None:
    first, second = turns_of(make_episode(answers="ynu"), TASK)
    assert [(c.mark, c.question, c.required) for c in first.checks] == [
        ("✓", "Cancels order #kite?", True),
        ("✗", "Tells the user?", False),
    ]
    assert [c.mark for c in second.checks] == ["?"]


def test_hostile_model_output_is_inert_in_html() -> None:
    episode = make_episode(said=HOSTILE, shown=HOSTILE, id="<b>", source=Source.REHEARSAL)
    page = episode_html(
        replace(episode, stop_detail=HOSTILE, unscored_reason=HOSTILE, counters={"<i>": 1}), TASK
    )
    tags = set(re.findall(r"<(\w+)", page))
    assert tags <= {
        "section",
        "header",
        "span",
        "div",
        "h4",
        "details",
        "summary",
        "pre",
        "ul",
        "li",
        "footer",
    }
    assert page.count("</section>") == 1 and "&lt;script&gt;" in page
    assert "onerror" not in re.sub(r">[^<]*<", "><", page)  # in text only, never inside a tag


def test_control_characters_never_reach_a_terminal() -> None:
    text = episode_text(make_episode(said="a\x1b[2Jb\x07\u202ec\ud800\r"), TASK, color=False)
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e\ud800]", text)
    text.encode("utf-8")
    assert "a\ufffd[2Jb" in text
    assert clean("tab\tand\nline stay, é too") == "tab\tand\nline stay, é too"


def test_text_without_colour_has_no_escapes_and_with_colour_has() -> None:
    assert "\x1b" not in episode_text(make_episode(), TASK, color=False)
    assert "\x1b[1;35mREHEARSE" in episode_text(make_episode(), TASK)


def test_text_shows_calls_refusals_and_the_outcome() -> None:
    text = episode_text(make_episode(), TASK, color=False)
    for expected in (
        '→ cancel_order {"order": "#kite"}',
        "VALIDATOR burn_order refused",
        "failure: unknown_tool",
        "reward 1.00 · stop: done",
        "✓ C0",
    ):
        assert expected in text


def test_an_unscored_episode_says_why() -> None:
    text = episode_text(make_episode(reward=None, stop=StopReason.JUDGE_FAILED, answers="u"), color=False)
    assert "unscored (judge_timeout) · stop: judge_failed" in text


def test_notes_follow_the_generation_of_their_step() -> None:
    episode = make_episode()
    blocks = [b for t in turns_of(replace(episode, generations=episode.generations[1:])) for b in t.blocks]
    assert [bool(b.notes) for b in blocks if b.kind == "act"] == [
        False,
        True,
        True,
        True,
    ]  # step 0 is not there
    assert next(b for b in blocks if b.kind == "rehearse").notes == ("2 tokens", "weights 1")


def test_observations_that_do_not_match_messages_are_not_guessed() -> None:
    blocks = turns_of(replace(make_episode(), observations=()))[0].blocks
    assert [b.kind for b in blocks] == ["system", "user", "act", "tool", "act"]


def test_an_empty_episode_and_a_missing_task_are_shown() -> None:
    episode = replace(
        make_episode(),
        messages=(),
        generations=(),
        observations=(),
        verdicts=(),
        turn_rewards=(),
        reward=None,
    )
    assert "unscored" in episode_html(episode) and "unscored" in episode_text(episode)
