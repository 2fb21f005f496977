"""Which rows are annotated and what is said of the others: the draw of --limit, counts of rules, source and
licence."""

import hashlib
from dataclasses import replace

from annotate_kit import lines, options, raw_row, run, serving, write_rows

from envace.data.annotate.rows import triage
from envace.data.annotate.source import AnnotateSource, source_at


def drawn(n, rows, seed=7):
    """By the smallest hash of seed and id."""
    return set(sorted(rows, key=lambda k: hashlib.sha256(f"{seed}/u-{k}".encode()).digest())[:n])


def test_a_limit_sends_a_draw_by_seed_and_id_and_a_higher_one_goes_on(tmp_path):
    rows, out = [raw_row(k) for k in range(12)], tmp_path / "out"
    rows[4]["messages"].pop()
    fit = set(range(12)) - {4}
    assert drawn(3, fit) not in ({0, 1, 2}, drawn(3, fit, seed=8))
    with serving() as mill:
        report, _ = run(options(write_rows(tmp_path / "a.jsonl", rows), out, mill.url, limit=3))
        assert {a.row for a in mill.log} == drawn(3, fit) and report["sample"] == {"limit": 3, "seed": 7}
        assert report["counts"] == {
            "read": 12,
            "annotated": 3,
            "rejected": 1,
            "undecided": 0,
            "failed": 0,
            "not_sampled": 8,
        }
        run(options(write_rows(tmp_path / "b.jsonl", rows[::-1]), out, mill.url, limit=3))
        assert len(mill.log) == 9  # the same rows in another order
        run(options(tmp_path / "a.jsonl", out, mill.url, limit=5))
        assert {a.row for a in mill.log} == drawn(5, fit) and len(mill.log) == 15
    with serving() as mill:
        run(options(tmp_path / "a.jsonl", tmp_path / "other", mill.url, limit=3, seed=8))
        assert {a.row for a in mill.log} == drawn(3, fit, seed=8)


def test_every_rule_a_row_breaks_is_counted_and_processes_change_nothing(tmp_path, monkeypatch):
    rows = [raw_row(k) for k in range(40)]
    for k in (3, 4):
        rows[k]["messages"].pop()
    for k in (4, 5):
        rows[k]["messages"][0]["content"] = ""
    rows[6] = {**raw_row(6), "uuid": "u-0"}
    source = write_rows(tmp_path / "a.jsonl", rows)
    monkeypatch.setattr("envace.data.annotate.rows.CHUNK", 2)  # so that processes are worth starting
    one, two = (triage(options(source, tmp_path, "http://127.0.0.1:1", workers=n)) for n in (1, 2))
    assert one == two and one.candidates == 36
    assert one.reasons() == {"duplicate_id": 1, "empty_content": 1, "role_order": 2}
    assert one.hits == {"duplicate_id": 1, "empty_content": 2, "role_order": 2}


def test_a_row_without_a_licence_gets_that_of_its_source(tmp_path):
    rows = [raw_row(0), raw_row(1)]
    del rows[0]["license"]
    given = source_at(write_rows(tmp_path / "a.jsonl", rows))
    given = AnnotateSource(
        given.files, given.about | {"kind": "hub", "uri": "acme/rows", "licence": "cc-by-4.0"}
    )
    with serving() as mill:
        report, _ = run(replace(options(tmp_path / "a.jsonl", tmp_path / "out", mill.url), source=given))
    bare, own = lines(tmp_path / "out/annotated.jsonl")
    assert bare["licence"] == "cc-by-4.0" and "licence" not in own and own["license"] == "CC BY 4.0"
    assert own["annotator"]["source"] == "hub acme/rows" and report["source"] == given.about
