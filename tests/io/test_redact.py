"""Secrets never leave."""

import base64
import json
import subprocess
import traceback
from urllib.parse import quote

import pytest
from pydantic import BaseModel, ValidationError

from envace.errors import UserError, describe
from envace.io.redact import MARK, RedactedError, Redactor


def test_values_of_key_variables_are_replaced():
    data = {"judge": {"key_env": "MY_KEY"}, "ends": [{"user_key_env": "OTHER"}]}
    redact = Redactor(data, {"MY_KEY": "tiger-7", "OTHER": ""})
    assert redact.text("key tiger-7 used") == f"key {MARK} used"


def test_headers_and_addresses_are_replaced():
    redact = Redactor(environ={})
    for text in (
        "Authorization: Bearer abc.def-ghi",
        '"authorization": "Basic Zm9vOmJhcg=="',
        "curl -H 'Authorization: tok123456'",
        "https://me:hunter22@host/x",
        "api_key=abcdef123",
        "sk-abcdefghijklmnopqrstuvwx",
    ):
        out = redact.text(text)
        assert MARK in out
        assert not any(s in out for s in ("abc.def", "Zm9v", "tok123456", "hunter22", "abcdef123", "sk-abc"))


def test_nested_data_keeps_its_shape():
    redact = Redactor(environ={})
    assert redact.data({"headers": {"Authorization": "x"}, "n": [1, "bearer abcdefgh1234"]}) == {
        "headers": {"Authorization": MARK},
        "n": [1, f"bearer {MARK}"],
    }


def test_ordinary_text_is_left_alone():
    text = "train/reward 0.41 over 24 tasks; see https://example.org/a?b=c"
    assert Redactor(environ={}).text(text) == text


def test_a_key_is_found_in_every_form_it_may_take():
    key = 'sk/canary+Qü"9\\z=end'
    redact = Redactor({"judge": {"key_env": "K"}}, {"K": key})
    raw = key.encode()
    for text in (
        f"x{key}y",
        json.dumps({"k": key}),
        json.dumps({"k": key}, ensure_ascii=False).replace("/", "\\/"),
        f"http://h/?k={quote(key, safe='')}",
        repr(ValueError(key)),
        *(base64.b64encode(b"abc"[:n] + raw + b"tail").decode() for n in range(3)),
        *(base64.urlsafe_b64encode(b"abc"[:n] + raw).decode() for n in range(3)),
    ):
        out = redact.text(text)
        assert MARK in out and "canary" not in out, text
        assert not any(base64.b64encode(b"abc"[:n] + raw).decode()[8:-8] in out for n in range(3)), text


def test_keys_in_addresses_are_secrets_and_versions_are_not():
    address = "https://me:hunter22@h/v1?api-version=2024-06-01&x-functions-key=c4n%2Fary&sig=zebra99"
    redact = Redactor({"judge": {"base_url": address}}, {})
    out = redact.text(f"{address} refused c4n/ary, hunter22 and zebra99")
    assert "api-version=2024-06-01" in out
    assert not any(s in out for s in ("hunter22", "c4n", "zebra99"))
    assert Redactor(environ={}).text("GET /v1?subscription-key=abcd1234 HTTP/1.1").count(MARK) == 1


def test_what_one_redactor_was_told_the_next_knows(monkeypatch):
    monkeypatch.setenv("SOME_LATE_KEY", "ocelot-4411")
    Redactor({"bench": {"user": {"key_env": "SOME_LATE_KEY"}}})
    assert Redactor().text("refused ocelot-4411") == f"refused {MARK}"
    assert Redactor(environ={}).text("refused ocelot-4411") == "refused ocelot-4411"


def test_exceptions_lose_their_secrets_with_their_causes(monkeypatch):
    redact = Redactor({"a": {"key_env": "K"}}, {"K": "ocelot-4411"})
    with pytest.raises(ValueError, match="no") as caught, redact.guarding():
        try:
            raise KeyError("bad ocelot-4411", 3)
        except KeyError as e:
            raise ValueError("no ocelot-4411") from e
    assert caught.value.args == (f"no {MARK}",) and caught.value.__cause__.args == (f"bad {MARK}", 3)
    with pytest.raises(OSError, match="bad") as caught, redact.guarding():
        raise OSError(5, "bad ocelot-4411", "/tmp/ocelot-4411")
    assert str(caught.value) == f"[Errno 5] bad {MARK}: '/tmp/{MARK}'"
    with pytest.raises(UserError) as caught, redact.guarding():
        error = UserError("refused")
        error.detail = "ocelot-4411"
        raise error
    assert caught.value.detail == MARK and str(caught.value) == "refused"


def test_text_that_is_no_utf8_comes_out_as_it_was():
    redact = Redactor({"a": {"key_env": "K"}}, {"K": "ocelot-4411"})
    assert redact.text("\ud800 ocelot-4411 \udc80") == f"\ud800 {MARK} \udc80"


KEY = "ocelot-4411"
KNOWS = Redactor({"a": {"key_env": "K"}}, {"K": KEY})


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (OSError("boom"), "boom"),
        (TimeoutError(), ""),
        (OSError(28, "No space left"), "[Errno 28] No space left"),
        (OSError(f"boom {KEY}"), f"boom {MARK}"),
        (OSError(28, f"No space for {KEY}"), f"[Errno 28] No space for {MARK}"),
        (FileNotFoundError(2, "gone", f"/{KEY}/a"), f"[Errno 2] gone: '/{MARK}/a'"),
        (
            OSError(18, "across", f"/{KEY}/a", None, f"/{KEY}/b"),
            f"[Errno 18] across: '/{MARK}/a' -> '/{MARK}/b'",
        ),
    ],
)
def test_an_error_of_the_system_keeps_its_words_whatever_it_was_made_of(error, words):
    assert KNOWS.error(error) is error and str(error) == words


def printed(error):
    return "".join(traceback.format_exception(error))


def test_groups_lose_the_secrets_of_their_members_and_of_their_own_words():
    inner = ExceptionGroup("inner", [KeyError(KEY)])
    inner.exceptions[0].__cause__ = ValueError(f"deep {KEY}")
    error = ExceptionGroup("outer", [OSError(5, KEY), inner])
    assert KNOWS.error(error) is error and KEY not in printed(error) and printed(error).count(MARK) == 3
    clean = KNOWS.error(ExceptionGroup(f"many {KEY}", [ValueError("one"), inner]))
    assert str(clean) == f"ExceptionGroup: many {MARK} (2 sub-exceptions)"


def test_notes_lose_their_secrets():
    error = ValueError("no")
    error.add_note(f"asked with {KEY}")
    assert KNOWS.error(error) is error and error.__notes__ == [f"asked with {MARK}"]


class Asked(BaseModel):
    age: int


def foreign():
    """An exception of a library, whose words no one can set."""
    with pytest.raises(ValidationError) as caught:
        Asked(age=KEY)
    return caught.value


def test_an_exception_whose_words_cannot_be_set_is_replaced_with_all_that_hangs_on_it():
    with pytest.raises(RedactedError, match="^ValidationError: 1 validation error for Asked") as caught:
        with KNOWS.guarding():
            try:
                raise ValueError(f"first {KEY}")
            except ValueError as e:
                raise foreign() from e
    assert MARK in str(caught.value) and KEY not in printed(caught.value)
    group = KNOWS.error(ExceptionGroup("outer", [foreign(), ValueError("b")]))
    assert type(group) is RedactedError and KEY not in printed(group)
    command = subprocess.CalledProcessError(1, ["curl", KEY])
    assert KEY not in printed(KNOWS.error(command))


def test_an_error_of_the_user_stays_one_and_its_cause_is_replaced():
    with pytest.raises(UserError) as caught, KNOWS.guarding():
        raise UserError({"said": KEY}) from foreign()
    assert type(caught.value) is UserError and MARK in str(caught.value)
    assert type(caught.value.__cause__) is RedactedError
    assert KEY not in describe(caught.value) + printed(caught.value)


def test_exceptions_that_hang_together_in_a_ring_are_cleaned_once():
    one, two = ValueError(f"one {KEY}"), foreign()
    one.__context__, two.__context__ = two, one
    assert KNOWS.error(one) is one and type(one.__context__) is RedactedError and KEY not in printed(one)
