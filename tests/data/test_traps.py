"""Known traps of foreign rows, each with what must come of it (traps.jsonl)."""

import json
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest

from envace.data.check import Options, examine
from envace.data.schema import row_from_task, stored, task_from_row
from envace.data.sources import READERS
from envace.data.stage import stage
from envace.data.store import SCHEMA
from envace.params import parse

TRAPS = [json.loads(line) for line in Path(__file__).with_name("traps.jsonl").read_text().splitlines()]


def line_of(trap):
    return trap.get("line") or json.dumps(trap["row"])


@pytest.mark.parametrize("trap", TRAPS, ids=lambda t: t["trap"])
def test_a_trap_has_the_outcome_written_beside_it(trap, tmp_path):
    (tmp_path / "r.jsonl").write_text(line_of(trap) + "\n")
    [raw] = READERS[".jsonl"](tmp_path / "r.jsonl", "r.jsonl")
    checked = None if raw.fault else examine(raw.row, Options(**trap.get("options", {})))
    faults = checked.faults if checked else [raw.fault]
    assert list(dict.fromkeys(f.reason for f in faults)) == trap["expect"], faults
    if faults:
        assert faults[0].field == trap["field"]
    else:
        assert stored(checked) == row_from_task(task_from_row(raw.row))
        pa.Table.from_pylist([stored(checked)], schema=SCHEMA)


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
