"""Cards: the hash follows the weights; a folder without a good card is no finished policy."""

import hashlib

import pytest

from envace.errors import DataError
from envace.policy.card import read_card, weights_hash, write_card
from envace.types import PolicyRef

REF = PolicyRef(kind="tiny", uri="models/start", name="start", step=3)


def test_a_card_comes_back_with_the_hash_of_the_weights(tmp_path):
    (tmp_path / "model.safetensors").write_bytes(b"abc")
    written = write_card(tmp_path, REF)
    assert read_card(tmp_path) == written
    assert written.hash == hashlib.sha256(b"model.safetensors 3\nabc").hexdigest()
    assert (written.name, written.step) == ("start", 3)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["card.json", "model.safetensors"]


def test_any_changed_byte_changes_the_hash(tmp_path):
    (tmp_path / "model.safetensors").write_bytes(b"abc")
    before = weights_hash(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"abd")
    assert weights_hash(tmp_path) != before


def test_a_folder_without_weights_gets_no_card(tmp_path):
    with pytest.raises(DataError, match="no .*weights"):
        write_card(tmp_path, REF)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"kind": 3}', '{"uri": "x"}'])
def test_a_missing_or_broken_card_is_named(tmp_path, text):
    with pytest.raises(DataError, match="does not exist"):
        read_card(tmp_path)
    (tmp_path / "card.json").write_text(text)
    with pytest.raises(DataError, match="not a policy card"):
        read_card(tmp_path)
