"""Keys in every form, in files of any kind, across the borders of the pieces they are read in."""

import base64
import json
import os
from urllib.parse import quote

from hypothesis import given
from hypothesis import strategies as st

from envace.bench.harness import scrub
from envace.bench.harness.scrub import scrub_folder, sweep
from envace.io.redact import STAND_INS, Secrets, Stream

KEY = 'sk/canary+Qü"9\\z=end'


def shapes(key: str) -> dict[str, str]:
    raw = key.encode()
    return {
        "plain": f"x{key}y",
        "json": json.dumps({"k": key}),
        "json in a prompt": json.dumps({"k": key}).replace("<", "\\u003c"),
        "json utf-8": json.dumps({"k": key}, ensure_ascii=False),
        "url": f"http://h/?k={quote(key, safe='')}",
        "url lower": f"http://h/?k={quote(key, safe='').lower()}" if key.islower() else "",
        "path": quote(key),
        "exception": repr(ValueError(key)),
        **{f"base64 {n}": base64.b64encode(b"abc"[:n] + raw + b"tail").decode() for n in range(3)},
        **{f"base64 url {n}": base64.urlsafe_b64encode(b"abc"[:n] + raw).decode() for n in range(3)},
        "basic": "Basic " + base64.b64encode(b"user:" + raw).decode(),
    }


def test_every_form_of_a_key_is_replaced(tmp_path):
    for name, text in shapes(KEY).items():
        (tmp_path / f"{name}.txt").write_text(text)
    (tmp_path / "clean.bin").write_bytes(os.urandom(1000))
    changed = scrub_folder(tmp_path, Secrets([KEY]))
    assert changed == sum(1 for text in shapes(KEY).values() if text)
    core = base64.b64encode(KEY.encode()).decode()[4:-4]
    for name in shapes(KEY):
        text = (tmp_path / f"{name}.txt").read_text()
        assert KEY not in text and "canary" not in text and core not in text, name
        for n in range(3):
            inner = base64.b64encode(b"abc"[:n] + KEY.encode()).decode()[6:-6]
            assert inner not in text, name


@given(st.text(min_size=6, max_size=30), st.integers(0, 2), st.integers(1, 40))
def test_a_key_across_the_borders_of_pieces_is_found(key, before, size):
    data = b"-" * 30 + key.encode() + b"+" * 30 + base64.b64encode(b"abc"[:before] + key.encode()) + b"?"
    s = Stream(Secrets([key]))
    out = b"".join(s.feed(data[at : at + size]) for at in range(0, len(data), size)) + s.flush()
    if key in STAND_INS:
        return
    whole = Stream(Secrets([key]))
    assert out == whole.feed(data) + whole.flush()
    assert key.encode() not in out.replace(b"[redacted]", b"") or key in "-+?"


def test_large_files_are_scrubbed_in_pieces(tmp_path, monkeypatch):
    monkeypatch.setattr(scrub, "PIECE", 1000)
    data = (b"\x00\xff" * 333 + KEY.encode()) * 50
    (tmp_path / "big.bin").write_bytes(data)
    scrub_folder(tmp_path, Secrets([KEY]))
    assert (tmp_path / "big.bin").read_bytes() == data.replace(KEY.encode(), b"[redacted]")


def test_names_and_links_hold_no_key_and_links_are_not_followed(tmp_path):
    outside = tmp_path / "outside.txt"
    outside.write_text("canary-1234")
    folder = tmp_path / "out"
    (folder / "x-canary-1234").mkdir(parents=True)
    (folder / "x-canary-1234" / "canary-1234.txt").write_text("fine")
    (folder / "link").symlink_to(outside)
    scrub_folder(folder, Secrets(["canary-1234"]))
    assert outside.read_text() == "canary-1234"
    assert [p for p in folder.rglob("*") if "canary" in p.name] == []
    assert not (folder / "link").exists() or "canary" not in os.readlink(folder / "link")


def test_stand_ins_and_short_values_are_no_secrets(tmp_path):
    (tmp_path / "a.json").write_text('{"key": "EMPTY", "abc": 1}')
    assert scrub_folder(tmp_path, Secrets(["EMPTY", "abc", ""])) == 0


def test_what_only_looks_like_a_file_is_swept_away(tmp_path):
    folder = tmp_path / "out"
    folder.mkdir()
    (folder / "own.txt").write_text("x")
    (folder / "in").symlink_to("own.txt")
    (folder / "leak").symlink_to("/etc/hostname")
    os.mkfifo(folder / "pipe")
    assert sweep(folder, allowed=[folder]) == 2
    assert sorted(p.name for p in folder.iterdir()) == ["in", "own.txt"]
