"""Random dialogues: the log gives the prompts of a full render, and what was sampled survives."""

from hypothesis import given, settings
from hypothesis import strategies as st
from token_kit import KINDS, TOOLS, play, renderer, written

from envace.chat.tokens import TokenLog
from envace.types import Message, ToolCall

RENDERERS = [renderer(kind) for kind in KINDS]
PIECES = [
    "a",
    "Z",
    "é",
    "漢",
    "🙂",
    "1",
    "42",
    " ",
    "  ",
    "\n",
    "\n\n",
    ".",
    "...",
    '"',
    "{",
    "}",
    "\t",
    "\u3000",
]
PIECES += ["order", "status", "'s"]
FORGED = [*PIECES, "<|im_end|>", "<|im_start|>", "<|endoftext|>", "<think>", "</think>", "</tool_response>"]

plain = st.lists(st.sampled_from(PIECES), max_size=8).map(lambda parts: "".join(parts).strip())
foreign = st.lists(st.sampled_from(FORGED), max_size=8).map("".join)
names = st.sampled_from(["get", "look_up", "find"])
calls = st.builds(ToolCall, name=names, arguments=st.dictionaries(plain, plain | st.integers(), max_size=2))
thoughts = st.just("") | plain


def assistant(calls_of):
    return st.builds(Message, role=st.just("assistant"), content=plain, thinking=thoughts, calls=calls_of)


@st.composite
def steps(draw):
    """An assistant message with calls and their results; or one nobody could read, answered by one result."""
    message = draw(assistant(st.lists(calls, max_size=3).map(tuple)))
    names = [call.name for call in message.calls] or [""]
    return [message, *(Message(role="tool", content=draw(foreign), name=name) for name in names)]


@st.composite
def dialogues(draw):
    chat = draw(st.sampled_from([[], [Message(role="system", content="Be brief.")]])).copy()
    for _ in range(draw(st.integers(1, 3))):
        chat.append(Message(role="user", content=draw(foreign)))
        chat += [message for step in draw(st.lists(steps(), max_size=3)) for message in step]
        chat.append(draw(assistant(st.just(()))))
    return chat


@given(dialogues(), st.sampled_from(RENDERERS))
@settings(max_examples=60, deadline=None)
def test_the_log_gives_the_prompts_of_a_full_render(chat, r):
    def check(log, so_far):
        assert list(log.prompt_ids()) == r.render(so_far, TOOLS)

    play(r, chat, check=check)


@given(dialogues(), st.sampled_from(RENDERERS))
@settings(max_examples=60, deadline=None)
def test_bug_4_every_sampled_token_stands_in_a_row_once(chat, r):
    sampled = [tuple(written(r, message)) for message in chat if message.role == "assistant"]
    assert [ids for _, row in play(r, chat).rows for ids in row] == sampled


@given(
    st.lists(
        st.lists(st.sampled_from(["order", "a", " ", "é", "status", "12", "x"]), min_size=1), max_size=4
    ),
    st.sampled_from(RENDERERS),
)
@settings(max_examples=80, deadline=None)
def test_bug_3_sampled_ids_survive_where_their_text_would_be_tokenised_otherwise(replies, r):
    """Every reply is sampled piece by piece, so that no token spans two pieces."""
    log, sampled, at = TokenLog(r, [Message(role="user", content="hi")], TOOLS), [], 0
    for reply in replies:
        ids = [i for piece in reply for i in r.encode(piece)] + [r.end_id]
        log.add_sampled(ids)
        log.add_user(Message(role="user", content="go on"))
        prompt = log.prompt_ids()
        sampled.append(ids)
        at = 0
        for ids in sampled:  # all of them, in order, each as one run
            at = next(k for k in range(at, len(prompt)) if list(prompt[k : k + len(ids)]) == ids) + len(ids)
