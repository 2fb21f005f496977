"""The road that is open to everybody: raw rows on a hub, filtered, drawn, annotated and staged by the
commands alone."""

import io
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from annotate_kit import BAD, Says, lines, raw_row, serving, well
from hub_kit import ID, REVISION, Hub, params, served

from envace.config import parse
from envace.data.__main__ import main
from envace.data.stage import stage
from envace.data.store import read_tasks
from envace.errors import DataError, ParamsError

BLOCK = {"source": "hub", "uri": ID, "revision": REVISION, "patterns": ["data/tool-*"]}


def parquet(rows):
    into = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows), into)
    return into.getvalue()


@pytest.fixture
def hub(monkeypatch, tmp_path):
    """Twenty raw rows in two shards: u-4 breaks a rule, u-6 is a repetition, odd ones have one turn; and a
    decoy."""
    rows = [raw_row(k, turns=2 - k % 2) for k in range(20)]
    rows[4]["messages"].pop()
    rows[6] = raw_row(2, uuid="u-6")
    shards = {"data/tool-00.parquet": parquet(rows[:8]), "data/tool-01.parquet": parquet(rows[8:])}
    with served(
        Hub(shards | {"data/math-00.parquet": b"no rows", "README.md": b"#"}, large={"data/tool-00.parquet"})
    ) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        monkeypatch.setenv("ENVACE_STATE", str(tmp_path / "state"))
        monkeypatch.delenv("HF_TOKEN", raising=False)
        monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", str(tmp_path / "none"))
        yield hub


def write_params(path, **data):
    path.write_text(yaml.safe_dump({"data": BLOCK | data}))
    return path


def command(tmp_path, url, *more):
    given = f"--params {tmp_path}/raw.yaml --out {tmp_path}/annotated --base-url {url} --model m"
    return ["annotate", *given.split(), *"--passes low,high --price-in 1 --price-out 2".split(), *more]


def test_rows_of_a_hub_are_filtered_selected_drawn_annotated_and_staged(hub, tmp_path, capsys):
    write_params(tmp_path / "raw.yaml", select={"turns": {1: 1.0}})
    given = ("--select", "--limit", "5")
    with serving(lambda a: Says(BAD) if a.row == 2 else well(a)) as mill:
        assert main(command(tmp_path, mill.url, *given, "--dry-run")) == 0
        said = capsys.readouterr().out
        assert "rows: 20 read, 8 pass the rules, 5 of them drawn (--limit)" in said
        assert "left out: 10 not_selected, 1 duplicate_content, 1 role_order" in said
        assert "at most 15 for 5 rows" in said and "USD, at 1 read and 2 written" in said and not mill.log
        assert main(command(tmp_path, mill.url, *given, "--yes")) == 0
    assert not hub.asked("math-00.parquet") and len(hub.asked("tool-00.parquet")) == 1
    report = json.loads((tmp_path / "annotated/report.json").read_text())
    counts = report["counts"]
    assert counts["annotated"] + counts["rejected"] - 12 == 5 and counts["not_sampled"] == 3
    assert report["hits"] == {"duplicate_content": 1, "not_selected": 10, "role_order": 1}
    assert report["source"]["revision"] == REVISION and report["source"]["licence"] == "cc-by-4.0"
    rows = lines(tmp_path / "annotated/annotated.jsonl")
    assert {r["annotator"]["source"] for r in rows} == {f"hub {ID} at {REVISION}"}
    staged = parse(
        {
            "data": {
                "source": "local",
                "uri": str(tmp_path / "annotated"),
                "patterns": ["annotated.jsonl"],
                "select": {"turns": {1: 1.0}},
            }
        }
    )
    assert stage(staged, tmp_path / "staged")["counts"]["kept"] == len(rows) == counts["annotated"]
    tasks = [t for split in ("train", "held") for t in read_tasks(tmp_path / f"staged/{split}.parquet")]
    assert {t.id for t in tasks} == {r["uuid"] for r in rows} and all(t.n_turns == 2 for t in tasks)


def test_a_source_that_changed_is_not_annotated_unasked(hub, tmp_path):
    write_params(tmp_path / "raw.yaml")
    with serving() as mill:
        assert main(command(tmp_path, mill.url, "--dry-run")) == 0
        hub.files["data/tool-00.parquet"] = parquet([raw_row(0)])
        with pytest.raises(
            DataError, match="is not what was fetched from it before: changed data/tool-00.parquet"
        ):
            main(command(tmp_path, mill.url, "--dry-run"))
        write_params(tmp_path / "raw.yaml", accept_changed=True)
        assert main(command(tmp_path, mill.url, "--dry-run")) == 0


def test_without_a_source_and_with_the_desk_the_way_out_is_named(tmp_path):
    (tmp_path / "raw.yaml").write_text("{}")
    with pytest.raises(
        ParamsError, match="data.source is desk, whose rows have checklists; name a file or folder"
    ):
        main(command(tmp_path, "http://127.0.0.1:1", "--dry-run"))


def test_staging_raw_rows_names_the_command_that_writes_checklists(hub, tmp_path):
    with pytest.raises(
        DataError,
        match="20 no_checklist.*raw rows need checklists first, which `python -m envace.data annotate`",
    ):
        stage(params(patterns=["data/tool-*"]), tmp_path / "out")
