"""Keys in every form, in files of any kind, across the borders of the pieces they are read in."""

import base64
import json
import os
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envace.bench.harness import scrub
from envace.bench.harness.scrub import scrub_folder, sweep
from envace.io.redact import STAND_INS, Secrets, Stream

KEY = 'sk/canary+Qü"9\\z=end'
SHAPES = {
    "plain": f"x{KEY}y",
    "json": json.dumps({"k": KEY}),
    "json in a prompt": json.dumps({"k": KEY}).replace("<", "\\u003c"),
    "json utf-8": json.dumps({"k": KEY}, ensure_ascii=False),
    "url": f"http://h/?k={quote(KEY, safe='')}",
    "path": quote(KEY),
    "exception": repr(ValueError(KEY)),
    **{f"base64 {n}": base64.b64encode(b"abc"[:n] + KEY.encode() + b"tail").decode() for n in range(3)},
    **{f"base64 url {n}": base64.urlsafe_b64encode(b"abc"[:n] + KEY.encode()).decode() for n in range(3)},
    "basic": "Basic " + base64.b64encode(b"user:" + KEY.encode()).decode(),
}
INNER = [base64.b64encode(b"abc"[:n] + KEY.encode()).decode()[6:-6] for n in range(3)]


@pytest.mark.parametrize("shape", SHAPES)
def test_every_form_of_a_key_is_replaced(tmp_path, shape):
    (tmp_path / "a.txt").write_text(SHAPES[shape])
    (tmp_path / "clean.bin").write_bytes(os.urandom(1000))
    assert scrub_folder(tmp_path, Secrets([KEY])) == 1
    text = (tmp_path / "a.txt").read_text()
    assert not [form for form in (KEY, "canary", *INNER) if form in text]


@given(st.text(min_size=6, max_size=30), st.integers(0, 2), st.integers(1, 40))
def test_a_key_across_the_borders_of_pieces_is_found(key, before, size):
    data = b"-" * 30 + key.encode() + b"+" * 30 + base64.b64encode(b"abc"[:before] + key.encode()) + b"?"
    s, whole = Stream(Secrets([key])), Stream(Secrets([key]))
    out = b"".join(s.feed(data[at : at + size]) for at in range(0, len(data), size)) + s.flush()
    if key not in STAND_INS:
        assert out == whole.feed(data) + whole.flush()
        assert key.encode() not in out.replace(b"[redacted]", b"") or key in "-+?"


def test_large_files_are_scrubbed_in_pieces(tmp_path, monkeypatch):
    monkeypatch.setattr(scrub, "PIECE", 1000)
    data = (b"\x00\xff" * 333 + KEY.encode()) * 50
    (tmp_path / "big.bin").write_bytes(data)
    scrub_folder(tmp_path, Secrets([KEY]))
    assert (tmp_path / "big.bin").read_bytes() == data.replace(KEY.encode(), b"[redacted]")


def test_names_and_links_hold_no_key_and_links_are_not_followed(tmp_path):
    outside, folder = tmp_path / "outside.txt", tmp_path / "out"
    outside.write_text("canary-1234")
    (folder / "x-canary-1234").mkdir(parents=True)
    (folder / "x-canary-1234" / "canary-1234.txt").write_text("fine")
    (folder / "link").symlink_to(outside)
    (folder / "named").symlink_to("canary-1234")
    scrub_folder(folder, Secrets(["canary-1234"]))
    assert outside.read_text() == "canary-1234" and (folder / "link").is_symlink()
    assert not [p for p in folder.rglob("*") if "canary" in p.name] and not (folder / "named").is_symlink()


def test_stand_ins_and_short_values_are_no_secrets(tmp_path):
    (tmp_path / "a.json").write_text('{"key": "EMPTY", "abc": 1}')
    assert scrub_folder(tmp_path, Secrets(["EMPTY", "abc", ""])) == 0


def test_what_only_looks_like_a_file_is_swept_away(tmp_path):
    (tmp_path / "own.txt").write_text("x")
    (tmp_path / "in").symlink_to("own.txt")
    (tmp_path / "leak").symlink_to("/etc/hostname")
    os.mkfifo(tmp_path / "pipe")
    assert sweep(tmp_path, allowed=[tmp_path]) == 2
    assert sorted(p.name for p in tmp_path.iterdir()) == ["in", "own.txt"]
