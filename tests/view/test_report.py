"""The report: from a whole run, from none, and from a hostile one.

Run: pytest tests/view/test_report.py
"""

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from view_samples import TASK

from envace.data.store import write_tasks
from envace.desk.tasks import generate
from envace.errors import EnvironmentUnready
from envace.params import Params, parse
from envace.types import FailureReason, StopReason
from envace.view import measures, reasons
from envace.view.load import load_results
from envace.view.report import build
from envace.view.table import table


def test_a_whole_run_yields_the_headline_numbers(report: Path) -> None:
    summary = json.loads((report / "summary.json").read_text())
    assert summary["eval/desk_start"] == pytest.approx(0.25)
    assert summary["eval/desk_envace-1"] == pytest.approx(0.75)
    assert summary["eval/gain"] == pytest.approx(0.5)  # tasks 0 and 1 won over, two of four
    assert summary["eval/gain_low"] <= 0.5 <= summary["eval/gain_high"]
    assert summary["tts/parallel-2"] == pytest.approx(0.75)
    assert summary["tts/parallel-2_gain"] == pytest.approx(0.25)
    assert summary["fidelity/exact"] == summary["fidelity/exact_envace-1"] == 0.5
    assert summary["train/reward_last"] == pytest.approx(0.6)


def test_fidelity_is_shown_by_mode_and_summed_up_for_the_mode_in_use(report: Path) -> None:
    summary = json.loads((report / "summary.json").read_text())
    assert [k for k in summary if k.startswith("fidelity/")] == [
        f"fidelity/{m}{p}" for m in ("exact", "valid") for p in ("", "_envace-1", "_start")
    ]
    markdown = (report / "report.md").read_text().replace("\\", "")
    assert "| none | equal to the true response | 0.100 | 0.100 |" in markdown
    assert '| cancel_order(order=#kite) | {"a": 1} | {"a": 2} | no |' in markdown


def test_lineage_names_code_data_and_weights_by_hash(report: Path) -> None:
    page = (report / "index.html").read_text()
    for expected in ("d" * 64, "f" * 64, "1 of 9 rows", "no commit known", "abc123"):
        assert expected in page


def test_the_collusion_gap_is_rehearsed_minus_true_success(report: Path) -> None:
    # no parquet here, so a success needs every item: none of step 3 has that
    summary = json.loads((report / "summary.json").read_text())
    assert summary["gap/rehearsed_success"] == 0.0
    assert summary["gap/collusion"] == pytest.approx(0.0 - 0.75)


def test_rehearsed_success_needs_the_required_items_only(run: Path, params: Params) -> None:

    results = replace(load_results(run, params), tasks={TASK.id: TASK})
    gap = measures.headline_gap(results, params)
    assert gap is not None and gap.rehearsed == 0.75  # "yny" three times, "nyy" once; C1 is not required
    assert gap.steps == (3, 3) and gap.n == 4
    assert gap.value == pytest.approx(0.0)


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
        and "Nothing to show yet" in page
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


def test_staged_tasks_give_verdicts_their_words(run: Path, params: Params) -> None:
    tasks = generate(7, "train", 2)
    write_tasks(run / "data/staged/train.parquet", tasks)
    found = load_results(run, params).tasks
    assert [found[t.id].checklist[0][0].question for t in tasks] == [
        t.checklist[0][0].question for t in tasks
    ]


def test_odd_types_in_an_episode_line_do_no_harm(run: Path, params: Params) -> None:
    with (run / "runs/train/envace-1/episodes.jsonl").open("a") as f:
        f.write('{"step": 9, "verdicts": 5, "generations": {}, "reward": "high", "messages": null}\n')
    results = load_results(run, params)
    assert len(results.train[0].notes) == 6 and any("no Episode" in p for p in results.problems)


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
    fence = re.search(r"^(`{3,})text\n[^§]*?^\1$", markdown, re.M)
    assert fence and len(fence[1]) == 5  # one more than the longest run inside


def test_a_single_trial_says_so(report: Path) -> None:
    assert "single trial" in (report / "report.md").read_text()  # the TTS cells have one trial


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


def test_episodes_without_a_step_are_placed_by_the_counts_of_the_metrics(run: Path, params: Params) -> None:
    path = run / "runs/train/envace-1/episodes.jsonl"
    lines = [
        {k: v for k, v in json.loads(line).items() if k != "step"} for line in path.read_text().splitlines()
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    train = load_results(run, params).train[0]
    assert [n.step for n in train.notes] == [1, 3, 3, 3, 3] and train.shown_step == 3


def test_memories_and_their_cost_are_shown(report: Path) -> None:
    markdown = (report / "report.md").read_text()
    assert "| parallel-2 | desk-held-0 | Look it up first. |" in markdown
    assert "80 tokens read and written in rehearsals" in markdown  # two attempts of 40


def test_the_honest_box_claims_only_what_ran(run: Path, report: Path, params: Params) -> None:
    whole = (report / "report.md").read_text()
    assert (
        "as ACT and REHEARSE for 3 optimizer steps by stock verl, export, evaluation in the true world, private"
        in whole
    )
    assert "No proven gain" in whole  # two of four tasks won over: the interval touches zero
    for policy in ("start", "envace-1"):
        path = run / f"results/evaluate/{policy}-desk/samples.jsonl"
        path.write_text(path.read_text().replace('"success": 1.0', '"success": 0.0'))
        scores = path.with_name("scores.json")
        data = json.loads(scores.read_text())
        data["scores"][0] |= {"score": 0.0, "low": 0.0, "high": 0.0}
        scores.write_text(json.dumps(data))
    shutil.rmtree(run / "results/tts")
    build(run, params)
    none = (run / "report/report.md").read_text()
    assert "no success to gain from" in none and "evaluation in the true world." in none


def test_cells_written_as_numbers_are_aligned_right() -> None:
    cells = ("+0.250", "[0.000, 1.000]", "2.5e-07", "–", "single trial", "12.0 s", "1.6 min", "1\u202f500")
    words = ("better", "yes", "0 (control)", "do nothing 0.000", "episodes: 4")
    made = table(cells + words, [cells + words])
    assert made.numeric == (True,) * len(cells) + (False,) * len(words)


def test_a_withheld_score_is_no_headline(run: Path, params: Params) -> None:
    path = run / "results/evaluate/envace-1-desk/scores.json"
    data = json.loads(path.read_text())
    data["scores"][0] |= {"score": None, "low": None, "high": None, "n_missing": 3}
    path.write_text(json.dumps(data))
    summary = build(run, params)
    assert (
        "eval/desk_envace-1" not in summary and "eval/gain" not in summary and "gap/collusion" not in summary
    )
    assert "withheld" in (run / "report/index.html").read_text()


def test_the_papers_numbers_need_its_benchmarks(run: Path, report: Path) -> None:
    assert "36.70" not in (report / "index.html").read_text()
    wider = parse({"eval": {"benchmarks": ["desk", "tau2"]}, "report": {"bootstrap": 200}})
    folder = run / "results/evaluate/start-tau2"
    folder.mkdir()
    for name in ("scores.json", "samples.jsonl"):
        (folder / name).write_bytes((run / "results/evaluate/start-desk" / name).read_bytes())
    build(run, wider)
    page = (run / "report/index.html").read_text()
    assert "36.70" in page and "46.04" not in page  # τ² only, BFCL was not run


def test_no_gap_where_training_used_the_true_world(run: Path) -> None:
    true_world = parse({"method": {"override": {"source": "environment"}}, "report": {"bootstrap": 200}})
    results = load_results(run, true_world)
    assert measures.headline_gap(results, true_world) is None


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
    assert set(reasons.MEANING) == {*StopReason, *FailureReason}


def test_stages_that_only_make_files_show_what_they_cost(run: Path, params: Params) -> None:
    build(
        run, params, {"export@envace-1": 9.6, "policy": 204.0, "stage_data": 5.2, "evaluate@start-desk": 12.0}
    )
    text = (run / "report/report.md").read_text().split("## Cost")[1]
    rows = [line for line in text.splitlines() if line.startswith(("| stage\\_data", "| policy", "| export"))]
    assert [row.split("|")[1].strip() for row in rows] == ["stage\\_data", "policy", "export envace-1"]
