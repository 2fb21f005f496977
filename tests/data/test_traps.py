"""Known traps of foreign rows, each with what must come of it (traps.jsonl): the reasons against it, or what
its parts become in the stored row; as JSON and as parquet whose types were inferred."""

import copy
import json
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from envace.config import parse
from envace.data.check import examine
from envace.data.rules import RuleOptions
from envace.data.schema import row_from_task, task_from_row, task_of
from envace.data.sources import READERS
from envace.data.stage import stage
from envace.data.store import SCHEMA

TRAPS = [json.loads(line) for line in Path(__file__).with_name("traps.jsonl").read_text().splitlines()]
JSON_ONLY = {  # what no column of Arrow can hold
    "two variants of a checklist, the second broken",  # text beside a list
    "content in parts",  # a list beside text
    "a list of mixed types",
}


def line_of(trap):
    return trap.get("line") or json.dumps(trap["row"])


def at(row, path):
    """The part of a row at a dotted path; `#` counts, an absent key is "absent"."""
    for key in path.split("."):
        row = len(row) if key == "#" else row[int(key)] if isinstance(row, list) else row.get(key, "absent")
    return row


def outcome(raw, trap):
    checked = None if raw.fault else examine(raw.row, RuleOptions(**trap.get("options", {})))
    return checked, checked.faults if checked else [raw.fault]


def as_written(raw, trap):
    """Hold what comes of a row against what is written beside it; the stored row, None where it has
    faults."""
    checked, faults = outcome(raw, trap)
    assert list(dict.fromkeys(f.reason for f in faults)) == trap["expect"], faults
    if faults:
        assert faults[0].field == trap["field"]
        return None
    row = row_from_task(task_of(checked))
    assert {path: at(row, path) for path in trap["becomes"]} == trap["becomes"]
    return row


@pytest.mark.parametrize("trap", TRAPS, ids=lambda t: t["trap"])
def test_a_trap_has_the_outcome_written_beside_it(trap, tmp_path):
    (tmp_path / "r.jsonl").write_text(line_of(trap) + "\n")
    [raw] = READERS[".jsonl"](tmp_path / "r.jsonl", "r.jsonl")
    if (row := as_written(raw, trap)) is not None:
        assert row == row_from_task(task_from_row(raw.row))
        pa.Table.from_pylist([row], schema=SCHEMA)


def neighbours():
    """Plain rows to stand beside a row in one table: with texts, or with objects of other keys where it has
    objects."""
    plain = TRAPS[0]["row"]
    arguments, tools = copy.deepcopy(plain), copy.deepcopy(plain)
    arguments["extra_info"]["messages"][1]["tool_calls"][0]["function"]["arguments"] = {
        "ship": "Ulla",
        "knots": 7,
    }
    tools["extra_info"]["tools"] = json.loads(tools["extra_info"]["tools"])
    tools["extra_info"]["tools"][0]["function"]["parameters"]["properties"] = {
        "ship": {"type": "string", "enum": ["Ulla"]}
    }
    return plain, arguments, tools


def nulled(value):
    """Empty objects as null, as the publishers write them."""
    if isinstance(value, dict):
        return {k: nulled(v) for k, v in value.items()} or None
    return [nulled(v) for v in value] if isinstance(value, list) else value


def through_parquet(row, path):
    """A row as read back from a table whose types were inferred from it and a neighbour; None when none can
    hold it."""
    for other in neighbours():
        try:
            pq.write_table(pa.Table.from_pylist([nulled(row), other]), path)
        except pa.ArrowException:
            continue
        return next(READERS[".parquet"](path, path.name))
    return None


@pytest.mark.parametrize("trap", [t for t in TRAPS if "row" in t], ids=lambda t: t["trap"])
def test_a_trap_in_parquet_has_the_same_outcome(trap, tmp_path):
    raw = through_parquet(trap["row"], tmp_path / "r.parquet")
    assert (raw is None) is (trap["trap"] in JSON_ONLY)
    if raw is None:
        return
    if (row := as_written(raw, trap)) is not None:
        assert row == row_from_task(task_of(examine(trap["row"], RuleOptions(**trap.get("options", {})))))


def test_objects_of_other_keys_do_fill_a_row_with_nulls_on_the_way(tmp_path):
    """Or the test above would show nothing."""
    [trap] = [t for t in TRAPS if t["trap"] == "arguments as an object"]
    raw = through_parquet(trap["row"], tmp_path / "r.parquet")
    function = raw.row["extra_info"]["messages"][1]["tool_calls"][0]["function"]
    assert function["arguments"] == {"port": "Brest", "ship": None, "knots": None}


def test_staging_leaves_out_exactly_the_traps(tmp_path):
    plain = [t for t in TRAPS if "options" not in t]
    (tmp_path / "in").mkdir()
    (tmp_path / "in/r.jsonl").write_text("".join(line_of(t) + "\n" for t in plain))
    counts = stage(parse({"data": {"source": "local", "uri": str(tmp_path / "in")}}), tmp_path / "out")[
        "counts"
    ]
    assert counts["rejected_by_reason"] == Counter(t["expect"][0] for t in plain if t["expect"])
    assert counts["hits"] == Counter(reason for t in plain for reason in t["expect"])
    assert counts["kept"] == sum(not t["expect"] for t in plain)
    assert counts["more_variants"] == 1 and counts["forms"]["annotated"] == 2 and counts["forms"]["raw"] == 1
