"""`python -m envace.data check FILE`: every fault of a file, also those that only its other rows or a
tokenizer tell."""

import json

import pytest
from test_cm2_rows import foreign_row
from test_staging import local, write_jsonl

from envace.data.__main__ import main
from envace.data.schema import row_from_task
from envace.data.stage import stage
from envace.data.store import write_tasks
from envace.errors import DataError
from envace.worlds.desk.tasks import generate


def test_checking_a_file_explains_each_fault(tmp_path, capsys):
    bad = foreign_row("bad")
    bad["extra_info"]["interaction_kwargs"]["checklist_list"][0][0][0]["focus_on"] = "tools"
    write_jsonl(tmp_path / "r.jsonl", [foreign_row(), bad, "{"])
    assert main(["check", str(tmp_path / "r.jsonl")]) == 1
    out = capsys.readouterr().out
    assert (
        "r.jsonl:2: extra_info.interaction_kwargs.checklist_list[0][0][0].focus_on: 'tools' is none of" in out
    )
    assert "r.jsonl:3: row: is not JSON" in out and "3 rows, 1 usable, 2 with faults" in out
    write_tasks(tmp_path / "t.parquet", generate(1, "train", 2))
    assert main(["check", str(tmp_path / "t.parquet")]) == 0
    assert "judged by their rules: mean reward 1.000, 2 earn 1\n" in capsys.readouterr().out
    row = row_from_task(generate(1, "train", 1)[0])
    row["extra_info"]["messages"][-1]["content"] = "as you like"
    write_jsonl(tmp_path / "silent.jsonl", [row])
    assert main(["check", str(tmp_path / "silent.jsonl")]) == 0
    told = capsys.readouterr().out
    assert "silent.jsonl:1: its own dialogue fails turn " in told and ", 0 earn 1\n" in told
    with pytest.raises(DataError):
        main(["check", str(tmp_path / "none.jsonl")])


def test_checking_a_file_finds_equal_rows_and_long_prompts(tmp_path, capsys):
    same, long = foreign_row("zz"), foreign_row("long")
    same["extra_info"]["messages"] = foreign_row("u-1")["extra_info"]["messages"]
    same["messages"] = foreign_row("u-1")["messages"]
    for messages in (long["messages"], long["extra_info"]["messages"]):
        messages[0]["content"] = "north " * 5000
    write_jsonl(
        tmp_path / "r.jsonl", [foreign_row("u-0"), foreign_row("u-1"), foreign_row("u-0"), same, long]
    )
    params = {"data": {"select": {"turns": {2: 1.0}}}, "policy": {"kind": "tiny"}}
    (tmp_path / "params.yaml").write_text(json.dumps(params))
    assert main(["check", str(tmp_path / "r.jsonl"), "--params", str(tmp_path / "params.yaml")]) == 1
    told = capsys.readouterr().out.splitlines()
    assert told[0].startswith("r.jsonl:5: messages: the first prompt has") and told[0].endswith(
        "[prompt_too_long]"
    )
    assert told[1:3] == [
        "r.jsonl:3: uuid: 'u-0' is also the id of r.jsonl:1, which is kept [duplicate_id]",
        "r.jsonl:4: row: has the dialogue and tools of 'u-1' (r.jsonl:2) [duplicate_content]",
    ]
    assert [line.split(maxsplit=1) for line in told[3:6]] == [
        ["1", "duplicate_content"],
        ["1", "duplicate_id"],
        ["1", "prompt_too_long (estimated: UTF-8 bytes / 2.5)"],
    ]
    earned = "reference dialogues, judged by their rules: 4 need a language model as judge"
    assert told[6:] == [earned, f"{tmp_path / 'r.jsonl'}: 5 rows, 2 usable, 3 with faults"]
    staged = stage(local(tmp_path), tmp_path / "out")["counts"]
    assert staged["kept"] == 2  # as the check said; what data.select would leave out is no fault
