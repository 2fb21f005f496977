"""Secrets never leave."""

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
