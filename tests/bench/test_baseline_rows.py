"""The rows that the paper size offers for its baselines can be taken as they stand once their commits are
filled in."""

import re
from pathlib import Path

import yaml

from envace.config import load, parse, to_dict
from envace.report import paper

SIZE = Path(__file__).resolve().parents[2] / "sizes/paper.yaml"


def rows() -> dict[str, dict]:
    lines = re.findall(r"^  #   (\S+: \{uri.*)$", SIZE.read_text(), re.M)
    return yaml.safe_load("\n".join(lines))


def test_every_model_of_the_papers_table_has_a_row_under_a_name_the_report_knows():
    found = rows()
    assert {n for n in paper.MAIN if any(paper.same_model(row, n) for row in found)} == set(paper.MAIN)


def test_the_rows_are_accepted_and_those_without_public_weights_are_left_empty():
    found = rows()
    assert {name for name, row in found.items() if not row["uri"]} == {"simulator-8b", "scaleenv-8b"}
    filled = {name: row | {"revision": "a" * 40} for name, row in found.items() if row["uri"]}
    data = to_dict(load(SIZE))
    data["bench"] |= {"baselines": filled, "policies": ["start", *filled]}
    assert parse(data).bench.baselines["envace-8b"].context == 32768
