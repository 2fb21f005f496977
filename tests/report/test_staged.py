"""The data set's card on the page: hand-made manifests, old ones, broken ones, hostile ones.

Run: pytest tests/report/test_staged.py
"""

import copy
import json
import re
from pathlib import Path

import pytest
from view_samples import MANIFEST

from envace.config import Params, parse
from envace.data.faults import Reject
from envace.data.stage import stage
from envace.report import staged
from envace.report.load import load_results
from envace.report.manifest import Histogram
from envace.report.report import build
from envace.report.results import Results
from envace.report.study import Study
from envace.report.table import Section

EVIL = "<script>alert(1)</script>\u202e|"
FULL = {  # 100 read = 80 without faults + 20; 5 ids twice, 3 dialogues twice, 12 not selected; 60 = 50 + 10
    "format": 2,
    "source": {
        "kind": "hub",
        "uri": "owner/rows",
        "revision": "1a2b3c",
        "licence": "cc-by-4.0",
        "files": [
            {"name": "data/a.parquet", "bytes": 2_500_000, "sha256": "a" * 64, "etag": "e1", "version": ""},
            {"name": "data/b.jsonl", "bytes": 500_000, "sha256": "b" * 64, "etag": "", "version": "v7"},
        ],
    },
    "params": {
        "seed": 3,
        "data": {
            "source": "hub",
            "uri": "owner/rows",
            "held_share": 0.15,
            "patterns": ["*.parquet", "*.jsonl"],
            "require_thinking": True,
            "select": {"turns": {"1": 0.4}},
            "sha256": {},
        },
        "desk": {"seed": 7},
    },
    "prompt_length": "tokenizer of a/model at main",
    "counts": {
        "read": 100,
        "kept": 60,
        "rejected": 40,
        "train": 50,
        "held": 10,
        "more_variants": 4,
        "steps": {"read": 100, "without_faults": 80, "one_an_id": 75, "distinct": 72, "selected": 60},
        "rejected_by_reason": {
            "bad_weights": 11,
            "no_checklist": 9,
            "duplicate_id": 5,
            "duplicate_content": 3,
            "not_selected": 12,
        },
        "hits": {
            "bad_weights": 14,
            "no_checklist": 9,
            "bad_rule": 2,
            "duplicate_id": 5,
            "duplicate_content": 3,
            "not_selected": 12,
        },
        "forms": {"annotated": 91, "raw": 9},
        "tags": {"long": 7, "short": 53},
        "licences": {"MIT": 15, "cc-by-4.0": 45},
        "sources": {"data/a.parquet": 48, "data/b.jsonl": 12},
    },
    "statistics": {
        "turns": {"edges": [1, 2, 3, 5], "counts": [20, 30, 10, 0]},
        "tokens": {"edges": [0, 250, 500, 1000], "counts": [0, 25, 34, 1]},
        "weights": {"edges": [0.0, 0.25, 0.5, 1.0], "counts": [5, 100, 90, 5]},
        "calls": {"edges": [0, 1], "counts": [0, 0]},
    },
    "outputs": {
        "train.parquet": {"rows": 50, "bytes": 67_917, "sha256": "c" * 64},
        "held.parquet": {"rows": 10, "bytes": 999, "sha256": "d" * 64},
        "rejects.jsonl": {"rows": 40, "bytes": 1_000, "sha256": "e" * 64},
    },
}


def results_of(root: Path, params: Params, manifest: object) -> Results:
    path = root / "data/staged/manifest.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(manifest if isinstance(manifest, str) else json.dumps(manifest))
    return load_results(root, params)


def section(root: Path, params: Params, manifest: object) -> Section:
    return staged.data(Study(results_of(root, params, manifest), params))


def rows(made: Section, caption: str) -> list[tuple[str, ...]]:
    return next((list(t.rows) for c, t in made.tables if c == caption), [])


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory, params: Params) -> Path:
    """report/ over FULL; not to be changed."""
    root = tmp_path_factory.mktemp("data")
    results_of(root, params, FULL)
    build(root, params)
    return root / "report"


def test_the_page_and_the_markdown_tell_what_happened_to_the_rows(built: Path) -> None:
    page = (built / "index.html").read_text()
    text = (built / "report.md").read_text().replace("\\", "")
    for row in (
        "Of 100 rows read, 60 are staged and 40 left out.",
        "4 rows bring several variants of their checklist; the first is used.",
        "| kind | hub (hub data set) |",
        "| address | owner/rows |",
        "| revision | 1a2b3c |",
        "| licence | cc-by-4.0 |",
        "| files | 2, 3.0 MB |",
        "| rows by form | annotated 91, raw 9 |",
        "| kept rows by licence | cc-by-4.0 45, MIT 15 |",
        "| kept rows by file | data/a.parquet 48, data/b.jsonl 12 |",
        f"| data/a.parquet | 2.5 MB | {'a' * 64} | e1 |",
        f"| data/b.jsonl | 500.0 kB | {'b' * 64} | v7 |",
        "| read | rows of the source | 100 | – |",
        "| without_faults | pass every check | 80 | −20 |",
        "| one_an_id | one row an id | 75 | −5 |",
        "| distinct | one row a dialogue with its tools | 72 | −3 |",
        "| selected | kept by data.select | 60 | −12 |",
        "| split train | dealt to it | 50 | – |",
        "| not_selected | a good row that data.select thins out | 12 | 12.0 % | 12 |",
        "| bad_weights | a turn's weights do not sum to 1 | 11 | 11.0 % | 14 |",
        "| bad_rule | an item's rule cannot be read | 0 | 0.0 % | 2 |",
        "| all |  | 40 | 40.0 % | – |",
        f"| held.parquet | 10 | 999 B | {'d' * 64} |",
        "| user messages | rows | 60 | 1 | 2 | 3–4 |",
        "| tokens of the first prompt | rows | 60 | 250–499 | 500–999 | 1000+ |",
        "| weight of a checklist item | items | 200 | 0–0.25 | 0.25–0.5 | 1+ |",
        "| data.held_share | 0.15 |",
        "| data.patterns | *.parquet,*.jsonl |",
        "| data.require_thinking | yes |",
        "| data.select.turns.1 | 0.4 |",
        "| data.sha256 | – |",
        "| length of a prompt | tokenizer of a/model at main |",
        "| data source | hub owner/rows at 1a2b3c, 2 files, licence cc-by-4.0 |",
        f"| data train.parquet | 50 rows, sha256 {'c' * 64} |",
        "| data rejected | 40 of 100 rows |",
    ):
        assert row in text, row
    assert "desk.seed" not in text  # the desk made none of these rows
    assert 'id="data"' in page and '<a href="#data">Data</a>' in page
    for plot in ("turns", "tokens", "weights"):
        assert f'id="data-{plot}-' in page, plot
    assert 'id="data-calls-' not in page  # nothing was counted
    assert 'aria-label="user messages: 1: 20, 2: 30, 3–4: 10"' in page
    ids = re.findall(r'\sid="([^"]+)"', page)
    assert len(ids) == len(set(ids))


def test_reasons_come_by_what_they_cost(tmp_path: Path, params: Params) -> None:
    found = [row[0] for row in rows(section(tmp_path, params, FULL), "Why rows were left out")]
    assert found == [
        "not_selected",
        "bad_weights",
        "no_checklist",
        "duplicate_id",
        "duplicate_content",
        "bad_rule",
        "all",
    ]


def test_every_reject_reason_has_its_sentence() -> None:
    assert set(staged.MEANING) == set(Reject)


def test_a_manifest_of_the_first_format_shows_what_it_has(tmp_path: Path, params: Params) -> None:
    old = {k: copy.deepcopy(v) for k, v in FULL.items() if k != "statistics"} | {"format": 1}
    for key in ("steps", "hits", "forms", "more_variants"):
        del old["counts"][key]
    results = results_of(tmp_path, params, old)
    made = staged.data(Study(results, params))
    assert not results.problems and not made.plots
    assert made.lead.endswith("The manifest names no steps and no sizes; run stage_data again to have them.")
    reasons = rows(made, "Why rows were left out")
    assert reasons[0] == ("not_selected", "a good row that data.select thins out", "12", "12.0 %", "–")
    assert not rows(made, "What happened to the rows") and rows(made, "What was staged")[0][1] == "50"


def test_a_manifest_of_two_parts_is_enough(tmp_path: Path, params: Params) -> None:
    results = results_of(tmp_path, params, MANIFEST)
    made = staged.data(Study(results, params))
    assert not results.problems and made.lead.startswith("Of 9 rows read, 8 are staged and 1 left out.")
    assert rows(made, "What was staged") == [("held.parquet", "4", "–", "d" * 64)]


def test_without_a_manifest_there_is_nothing_to_show(tmp_path: Path, params: Params) -> None:
    for text in ("{not json", "[]", "{}"):
        assert section(tmp_path, params, text).empty


BROKEN = (
    ("source", 3, "source"),
    ("source", {"kind": 3, "files": [7, {"name": "a", "bytes": -1}]}, "source.kind"),
    ("source", {"files": [7]}, "source.files.0"),
    ("source", {"files": {"a": 1}}, "source.files"),
    ("params", "x", "params"),
    ("counts", [1], "counts"),
    ("counts", {"read": "9", "rejected": True}, "counts.rejected"),
    ("counts", {"hits": {"a": 1.5, "b": 2}, "steps": 4}, "counts.hits.a"),
    ("counts", {"read": 0, "rejected": 10**400, "rejected_by_reason": {"new_one": 0}}, "counts.rejected"),
    ("statistics", {"turns": {"edges": [1, 2], "counts": [1]}}, "statistics.turns"),
    ("statistics", {"turns": {"edges": [2, 1], "counts": [1, 1]}}, "statistics.turns"),
    ("statistics", {"turns": {"edges": ["1", None], "counts": [1, 1]}}, "statistics.turns.edges.0"),
    ("statistics", {"turns": {"edges": [float("nan"), 10], "counts": [1, 1]}}, "statistics.turns.edges.0"),
    ("statistics", {"turns": {"edges": [1, 2], "counts": [1, -1]}}, "statistics.turns.counts.1"),
    ("statistics", {"turns": 5, "weights": None}, "statistics.weights"),
    ("outputs", {"train.parquet": 3, "x": {"rows": "many"}}, "outputs.x.rows"),
    ("format", "two", "format"),
    ("prompt_length", [], "prompt_length"),
)


@pytest.mark.parametrize(("part", "value", "named"), BROKEN)
def test_a_broken_part_is_named_and_the_others_are_shown(tmp_path, params, part, value, named) -> None:
    results = results_of(tmp_path, params, copy.deepcopy(FULL) | {part: value})
    made = staged.data(Study(results, params))
    assert any(p.startswith(f"data/staged/manifest.json: {named}: ") for p in results.problems), (
        results.problems
    )
    if part != "outputs":
        assert rows(made, "What was staged")[0][0] == "train.parquet"


def test_hostile_text_in_a_manifest_stays_text(tmp_path: Path, params: Params) -> None:
    bad = copy.deepcopy(FULL)
    bad["source"] |= {"uri": EVIL, "kind": EVIL, "licence": EVIL, "revision": EVIL}
    bad["source"]["files"][0]["name"] = EVIL
    bad["counts"]["rejected_by_reason"][EVIL] = bad["counts"]["hits"][EVIL] = 1
    for part in ("forms", "tags", "licences", "sources"):
        bad["counts"][part][EVIL] = 2
    bad["statistics"][EVIL] = {"edges": [1], "counts": [3]}
    bad["params"]["data"][EVIL] = EVIL
    bad["outputs"][f"{EVIL}.parquet"] = {"rows": 1, "bytes": 1, "sha256": EVIL}
    bad["outputs"][EVIL] = 7
    results_of(tmp_path, params, bad)
    build(tmp_path, params)
    page, markdown = ((tmp_path / f"report/{name}").read_text() for name in ("index.html", "report.md"))
    assert "<script" not in page and page.count("&lt;script&gt;alert(1)") >= 10
    assert "<script" not in markdown and "\u202e" not in page + markdown
    cells = [line for line in markdown.splitlines() if "script" in line and line.startswith("|")]
    assert cells and all(not re.search(r"[^\\]\|[^ ]", line) for line in cells)  # no cell breaks its table


def test_a_password_in_an_address_is_not_shown(tmp_path: Path, params: Params) -> None:
    source = {"kind": "s3", "uri": "https://user:hunter22@store.example/rows"}
    made = section(tmp_path, params, FULL | {"source": source})
    assert dict(rows(made, "The source"))["address"] == "https://[redacted]@store.example/rows"


def test_many_files_and_tags_are_cut_with_a_number(tmp_path: Path, params: Params) -> None:
    many = copy.deepcopy(FULL)
    many["source"]["files"] = [{"name": f"{k}.jsonl", "bytes": 1, "sha256": ""} for k in range(30)]
    many["counts"]["tags"] = {f"t{k:02d}": 1 for k in range(20)}
    made = section(tmp_path, params, many)
    notes = {caption: t.note for caption, t in made.tables}
    assert len(rows(made, "Files of the source")) == staged.FILES
    assert notes["Files of the source"].startswith("And 6 more")
    assert dict(rows(made, "The source"))["kept rows by tag"].endswith("t11 1 and 8 more")


def test_a_folder_staged_here_is_shown_whole(tmp_path: Path) -> None:
    params = parse(
        {"policy": {"kind": "tiny"}, "desk": {"train_tasks": 4, "held_tasks": 2, "files_tasks": 3}}
    )
    stage(params, tmp_path / "data/staged")
    results = load_results(tmp_path, params)
    made = staged.data(Study(results, params))
    assert not results.problems and made.lead.startswith("Of 9 rows read, 9 are staged and 0 left out.")
    assert [row[0] for row in rows(made, "What was staged")] == [
        "train.parquet",
        "held.parquet",
        "files.parquet",
        "rejects.jsonl",
    ]
    card = dict(rows(made, "The source"))
    assert card["kept rows by licence"] == "Apache-2.0 (generated) 9"
    assert card["kept rows by file"] == "desk/train 4, files/files 3, desk/held 2"
    assert len(made.plots) == 6 and not rows(made, "Why rows were left out")
    assert {"desk.seed", "seed"} <= dict(rows(made, "Parameters that shaped it")).keys()


def test_bins_are_named_by_the_numbers_they_hold() -> None:
    h = Histogram(edges=(0, 1, 2, 4, 10), counts=(0, 3, 0, 4, 0))
    assert [h.label(k) for k in range(5)] == ["0", "1", "2–3", "4–9", "10+"]
    assert h.used == [1, 2, 3] and h.label(h.median) == "4–9"
    assert Histogram(edges=(1, 2), counts=(1, 1)).median == 0  # the lower one of two
    weights = Histogram(edges=(0.0, 0.5, 1.0), counts=(0, 1, 1))
    assert [weights.label(k) for k in weights.used] == ["0.5–1", "1+"]
