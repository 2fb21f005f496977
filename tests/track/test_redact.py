"""Secrets never leave."""

import base64
import json
from urllib.parse import quote

import pytest

from envace.errors import UserError
from envace.track.redact import MARK, Redactor, key_variables


def test_values_of_key_variables_are_replaced():
    data = {"judge": {"key_env": "MY_KEY"}, "ends": [{"user_key_env": "OTHER"}]}
    assert set(key_variables(data)) == {"MY_KEY", "OTHER"}
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
