"""What people see of a run: the preview before it, the line during it, and the page after it."""

import json
from collections import Counter
from html.parser import HTMLParser

import pytest
from annotate_kit import BAD, Says, item, label, lines, options, raw_row, run, serving, well, write_rows

from envace.data.__main__ import main
from envace.data.annotate.run import AnnotateRun
from envace.errors import DataError, ParamsError


def command(source, out, url, *more):
    given = f"{source} --out {out} --base-url {url} --model m --passes low,high --label-effort low"
    return ["annotate", *given.split(), "--concurrency", "2", *more]


def test_the_preview_comes_first_and_a_dry_run_stops_there(tmp_path, capsys):
    cut = raw_row(5)
    cut["messages"].pop()
    cut["messages"][0]["content"] = ""
    source = write_rows(tmp_path / "a.jsonl", [*(raw_row(k) for k in range(3)), cut])
    with serving() as mill:
        prices = ["--price-in", "2", "--price-out", "10"]
        assert main(command(source, tmp_path / "out", mill.url, "--dry-run", *prices)) == 0
        said = capsys.readouterr().out
        assert "4 read, 3 pass the rules; left out: 1 role_order\n" in said
        assert "faults, of which a row may have several: 1 empty_content, 1 role_order\n" in said
        assert "at most 9 for 3 rows (2 filter passes, one label each" in said and "USD, at 2 read" in said
        with pytest.raises(ParamsError, match="add --yes"):
            main(command(source, tmp_path / "out", mill.url))
        assert not mill.log and not (tmp_path / "out/report.json").exists()
        assert "unknown without --price-in" in capsys.readouterr().out
        assert main(command(source, tmp_path / "out", mill.url, "--yes")) == 0
        said = capsys.readouterr()
        assert "4 read, 3 annotated, 1 rejected, 0 undecided, 0 failed" in said.out
        assert "3 of 3 rows (3 annotated)" in said.err and "9 calls, 9,900 tokens" in said.err
        assert main(command(source, tmp_path / "out", mill.url)) == 0  # nothing is open, nobody need agree
        assert "settled by the journal: 3 annotated" in capsys.readouterr().out and len(mill.log) == 9


def test_undecided_rows_show_in_the_exit_status(tmp_path):
    source = write_rows(tmp_path / "a.jsonl", [raw_row()])
    with serving(lambda a: Says("hm")) as mill:
        assert main(command(source, tmp_path / "out", mill.url, "--yes")) == 1


def test_a_command_that_cannot_work_is_refused_with_the_way_out(tmp_path):
    source = write_rows(tmp_path / "a.jsonl", [raw_row()])
    for more, told in (
        (["--price-in", "1"], "give both"),
        (["--budget", "1"], "add --price-in"),
        (["--passes", "x"], "use a list"),
    ):
        with pytest.raises(ParamsError, match=told):
            main(command(source, tmp_path / "out", "http://127.0.0.1:1", *more))
    with pytest.raises(DataError, match="holds no rows"):
        main(command(tmp_path / "nothing", tmp_path / "out", "http://127.0.0.1:1"))
    with pytest.raises(SystemExit):
        main(command(source, tmp_path / "out", "http://127.0.0.1:1", "--concurrency", "0"))


def test_every_output_says_what_it_is_and_the_report_holds_its_checksum(tmp_path):
    source = write_rows(tmp_path / "a.jsonl", [raw_row(k) for k in range(4)])
    replies = {0: Says(BAD), 1: Says("hm")}
    with serving(lambda a: replies.get(a.row) or well(a)) as mill:
        report, _ = run(options(source, tmp_path / "out", mill.url))
    assert {n: o["rows"] for n, o in report["outputs"].items()} == {
        "annotated.jsonl": 2,
        "rejected.jsonl": 1,
        "unfinished.jsonl": 1,
        "spot.html": 2,
    }
    assert report["labels"] == {
        "turns": 4,
        "items": 12,
        "evidence": 12,
        "verbatim_evidence": 12,
        "required": 12,
        "renormalised_turns": 0,
        "repaired_rows": 0,
        "focus_on": {"assistant.content.user_visible_reply": 4, "assistant.tool_calls": 4, "tool.content": 4},
    }
    assert report["licences"] == {"CC BY 4.0": 2}
    assert report["reasons"] == {"rejected": {"llm_filter": 1}, "undecided": {"reply_not_json": 1}}
    calls = report["calls"]["filter:low:0"]
    assert (calls["calls"], calls["tokens_read"], calls["usd"]) == (5, 5000, None)
    assert json.loads((tmp_path / "out/report.json").read_text()) == report


def test_a_price_is_only_told_where_every_count_is_known(tmp_path):
    source = write_rows(tmp_path / "a.jsonl", [raw_row(0), raw_row(1)])

    def script(asked):
        says = well(asked)
        says.usage = {"prompt_tokens": True} if asked.row == 0 else says.usage
        return says

    with serving(script) as mill:
        report, _ = run(options(source, tmp_path / "out", mill.url, price_in=1.0, price_out=1.0))
    without, known = lines(tmp_path / "out/annotated.jsonl")
    assert without["annotator"]["price_usd"] is None and without["checklists"][0][0][0]["extra_info"] is None
    assert known["annotator"]["price_usd"] == pytest.approx(3 * 1100 / 1e6)
    assert report["total"]["usd"] is None and report["total"]["replies_without_tokens"] == 3


class Page(HTMLParser):
    """What a page consists of."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.links, self.said = set(), [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.links += [v for k, v in attrs if k in ("href", "src", "action") or k.startswith("on")]

    def handle_data(self, data):
        self.said.append(data)


def test_the_page_shows_chosen_rows_as_text_and_runs_nothing(tmp_path):
    nasty = raw_row(0)
    nasty["messages"][3]["content"] = "<think>\nx\n</think>\n\n<script>alert(1)</script> 4.1 m."
    source = write_rows(tmp_path / "a.jsonl", [nasty, *(raw_row(k) for k in range(1, 6))])
    bent = label()
    bent["turns"][0]["items"][0] |= {
        "question": "<img src=x onerror=alert(1)>?",
        "evidence": [{**item()["evidence"][0], "snippet": "made up"}],
    }
    with serving(lambda a: Says(bent) if a.row == 0 and a.kind == "label" else well(a)) as mill:
        run(options(source, tmp_path / "out", mill.url, spot=9))
        whole = Page((tmp_path / "out/spot.html").read_text())
        run(options(source, tmp_path / "out", mill.url, spot=2))
        small = Page((tmp_path / "out/spot.html").read_text())
    text = " ".join(whole.said)
    assert "<script>alert(1)</script> 4.1 m." in text and "<img src=x onerror=alert(1)>?" in text
    assert "not found word for word" in text and "get_tide" in text and "CC BY 4.0" in text
    assert not whole.tags & {"script", "img", "iframe", "form", "object"}
    assert all(link.startswith("#") or link == "data:," for link in whole.links)
    assert len([link for link in small.links if link.startswith("#")]) == 2


def test_the_line_of_progress_counts_what_was_done_and_guesses_the_rest():
    run = AnnotateRun(None, None, None, 10, outcomes=Counter(annotated=1, rejected=1))
    run.worked, run.calls, run.retries, run.tokens, run.usd = 1, 1, 2, 1200, 0.5
    run.started -= 100
    assert run.line() == (
        "2 of 10 rows (1 annotated, 1 rejected), 0.01 rows/s, 1 calls, 1,200 tokens, 2 retries, 0.50 USD, 13 "
        "min left"
    )
