"""The report: from a whole run, from none, and from a hostile one.

Run: pytest tests/report/test_report.py
"""

import json
import re
from pathlib import Path

import pytest
from view_samples import EXAMPLE

from envace.config import Params
from envace.data.store import write_tasks
from envace.errors import EnvironmentUnready
from envace.report.load import load_results
from envace.report.report import build
from envace.report.table import table
from envace.report.training import MEANING
from envace.types import FailureReason, Message, StopReason, replace


def test_lineage_names_code_data_and_weights_by_hash(report: Path) -> None:
    page = (report / "index.html").read_text()
    for expected in ("d" * 64, "f" * 64, "1 of 9 rows", "no commit known", "abc123"):
        assert expected in page


def test_metric_names_have_one_slash_and_safe_letters(report: Path) -> None:
    for name, value in json.loads((report / "summary.json").read_text()).items():
        assert re.fullmatch(r"[a-z]+/[A-Za-z0-9_.-]+", name), name
        assert isinstance(value, float)


def test_an_empty_folder_gives_a_report_that_says_what_is_missing(tmp_path: Path, params: Params) -> None:
    summary = build(tmp_path, params)
    page = (tmp_path / "report/index.html").read_text()
    assert (
        "Not complete" in page
        and "runs/train/envace-1/metrics.jsonl" in page
        and "Not in this run: One episode step by step, Success before and after" in page
    )
    assert "missing: data/staged/manifest.json" in (tmp_path / "report/report.md").read_text().replace(
        "\\", ""
    )
    assert set(summary) == {"report/missing"} and summary["report/missing"] > 10


def test_broken_files_are_named_and_do_not_stop_the_report(run: Path, params: Params) -> None:
    (run / "results/evaluate/start-desk/scores.json").write_text("{not json")
    (run / "results/evaluate/envace-1-desk/samples.jsonl").write_text('{"task": 3}\nnonsense\n')
    (run / "runs/train/envace-1/metrics.jsonl").write_bytes(b"\xff\xfe\n[1]\n")
    build(run, params)
    page = (run / "report/index.html").read_text()
    for expected in (
        "start-desk/scores.json: not JSON",
        "1 entries are no SampleRecord",
        "1 broken lines",
        "2 broken lines",
    ):
        assert expected in page


def test_a_corrupt_parquet_is_a_problem_and_not_the_end(run: Path, params: Params) -> None:
    (run / "data/staged/held.parquet").write_bytes(b"PAR1 not really")
    results = load_results(run, params)
    assert any("held.parquet" in p for p in results.problems) and results.missing == (
        "data/staged/train.parquet",
    )


def test_odd_types_in_an_episode_line_do_no_harm(run: Path, params: Params) -> None:
    with (run / "runs/train/envace-1/episodes.jsonl").open("a") as f:
        f.write('{"id": "s9p0-0", "verdicts": 5, "generations": {}, "reward": "high", "messages": null}\n')
    results = load_results(run, params)
    assert results.train[0].shown is None and any("no Episode" in p for p in results.problems)


def test_the_page_asks_nothing_of_the_network(report: Path) -> None:
    page = (report / "index.html").read_text()
    assert not re.search(r"https?://|//[a-z]+\.|<script|<link[^>]*stylesheet|<img|@import|url\((?!#)", page)
    assert page.count("<svg") >= 7 and "default-src 'none'" in page


def test_ids_are_unique_across_plots(report: Path) -> None:
    ids = re.findall(r'\sid="([^"]+)"', (report / "index.html").read_text())
    assert len(ids) == len(set(ids))


def test_hostile_text_in_a_file_stays_text(run: Path, params: Params) -> None:
    path = run / "runs/train/envace-1/episodes.jsonl"
    path.write_text(
        path.read_text().replace("It is cancelled.", "<script>alert(1)</script> ```` | x\\u001b[2J")
    )
    build(run, params)
    page, markdown = ((run / f"report/{name}").read_text() for name in ("index.html", "report.md"))
    assert "<script" not in page and "&lt;script&gt;alert(1)" in page
    assert "\x1b" not in page + markdown
    fences = re.findall(r"^(`{3,})text\n[^§]*?^\1$", markdown, re.M)
    assert [len(f) for f in fences] == [3, 3, 5]  # one more than the longest run inside


def test_hostile_responses_memories_and_tasks_stay_text(run: Path, params: Params) -> None:
    evil = "<script>alert(1)</script>\u202e|"
    path = run / "results/fidelity/envace-1/calls.jsonl"
    lines = [json.loads(line) | {"rehearsed": {"a": evil}} for line in path.read_text().splitlines()]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    memory = run / "results/tts/parallel-2/attempts.jsonl"
    memory.write_text(json.dumps({"task": evil, "memory": {"text": evil}}) + "\n")
    function = {"name": evil, "description": evil, "parameters": {"type": "object", "properties": {evil: {}}}}
    task = replace(EXAMPLE, tools=({"type": "function", "function": function},))
    task = replace(task, reference=(*task.prefix, Message(role="assistant", content=evil)), user_turns=())
    task = replace(task, checklist=task.checklist[:1], records=())
    write_tasks(run / "data/staged/held.parquet", [task])
    build(run, params)
    page, markdown = ((run / f"report/{name}").read_text() for name in ("index.html", "report.md"))
    assert "<script" not in page and page.count("&lt;script&gt;alert(1)") >= 5
    assert "<script" not in markdown and "\u202e" not in page + markdown


def test_files_of_another_size_are_not_read(run: Path, params: Params) -> None:
    other = run / "results/evaluate/old-desk"
    other.mkdir()
    (other / "scores.json").write_text("{not json")
    assert not load_results(run, params).problems


def test_a_step_repeated_after_a_resume_counts_as_it_was_last(run: Path, params: Params) -> None:
    with (run / "runs/train/envace-1/metrics.jsonl").open("a") as f:
        f.write('{"step": 2, "train/reward": 0.9}\n')
    steps = load_results(run, params).train[0].steps
    assert [s["step"] for s in steps] == [1, 2, 3] and steps[1]["train/reward"] == 0.9


def test_the_best_rewarded_episode_of_the_last_step_is_shown(run: Path, params: Params) -> None:
    train = load_results(run, params).train[0]
    assert train.shown_step == 3 and train.shown.id == "s3p0-3"


def test_cells_written_as_numbers_are_aligned_right() -> None:
    cells = ("+0.250", "[0.000, 1.000]", "2.5e-07", "–", "single trial", "12.0 s", "1.6 min", "1\u202f500")
    words = ("better", "yes", "0 (control)", "do nothing 0.000", "episodes: 4")
    made = table(" | ".join(cells + words), [cells + words])
    assert made.numeric == (True,) * len(cells) + (False,) * len(words)


def test_an_unwritable_folder_is_one_message(run: Path, params: Params) -> None:
    (run / "report").write_text("in the way")
    with pytest.raises(EnvironmentUnready, match="cannot write"):
        build(run, params)


def test_the_same_files_give_the_same_bytes(report: Path, run: Path, params: Params) -> None:
    summary = build(run, params)
    assert json.loads((run / "report/summary.json").read_text()) == summary
    for name in ("index.html", "report.md", "summary.json"):
        assert (run / "report" / name).read_bytes() == (report / name).read_bytes()


def test_every_reason_has_its_sentence() -> None:
    assert set(MEANING) == {*StopReason, *FailureReason}


def test_stages_that_only_make_files_show_what_they_cost(run: Path, params: Params) -> None:
    build(
        run, params, {"export@envace-1": 9.6, "policy": 204.0, "stage_data": 5.2, "evaluate@start-desk": 12.0}
    )
    text = (run / "report/report.md").read_text().split("## Cost")[1]
    rows = [line for line in text.splitlines() if line.startswith(("| stage\\_data", "| policy", "| export"))]
    assert [row.split("|")[1].strip() for row in rows] == ["stage\\_data", "policy", "export envace-1"]
