"""The start policy that comes with the project: whole, small, measured, and installed without a machine's
paths.
"""

import json

import pytest

from envace.policy import card
from envace.policy.card import BUNDLED, read_card, weights_hash, write_card
from envace.types import FailureReason, FinishReason, Generation, PolicyRef, Role, Sampling, replace
from envace.warmstart.__main__ import install
from envace.warmstart.measure import well_formed


def test_it_is_whole_and_small_enough_for_a_repository():
    ref = read_card(BUNDLED)
    assert ref.hash == weights_hash(BUNDLED) and ref.uri == "envace/policy/start"
    assert sum(f.stat().st_size for f in BUNDLED.iterdir()) <= 5_000_000


def test_its_scores_stand_beside_it_with_intervals_and_floors():
    found = json.loads((BUNDLED / "measured.json").read_text())
    for split in ("held", "unseen"):
        success = found[split]["success"]
        assert success["low"] <= success["value"] <= success["high"]
    assert found["held"]["floors"]["blind"] <= 0.2 <= found["unseen"]["floors"]["blind"]
    assert set(found["forms"]) == {"self_evaluation", "condensation", "rehearsal"}


def test_an_installed_folder_replaces_the_old_one_and_names_no_place(tmp_path, monkeypatch):
    built, bundled = tmp_path / "built", tmp_path / "bundled"
    built.mkdir()
    bundled.mkdir()
    (bundled / "old.txt").write_text("from an earlier one")
    (built / "model.safetensors").write_bytes(b"weights")
    write_card(built, PolicyRef(kind="tiny", uri=str(built), name="start"))
    monkeypatch.setattr(card, "BUNDLED", bundled)
    install(built)
    assert sorted(f.name for f in bundled.iterdir()) == ["card.json", "model.safetensors"]
    assert str(tmp_path) not in (bundled / "card.json").read_text()


def test_well_formed_counts_texts_with_a_call_only():
    said = Generation(
        role=Role.ACT,
        turn=0,
        step=0,
        prompt_ids=(1,),
        output_ids=(2,),
        logprobs=(0.0,),
        text="<tool_call>",
        sampling=Sampling(),
        finish=FinishReason.STOP,
    )
    broken = replace(said, failure=FailureReason.TRUNCATED)
    others = [replace(broken, text="hello"), replace(broken, role=Role.REHEARSE)]
    refused = replace(said, failure=FailureReason.SCHEMA_VIOLATION)  # read, and then found wanting
    assert well_formed([said, said, refused, broken, *others]) == pytest.approx(0.75)
    assert well_formed([]) == 0
