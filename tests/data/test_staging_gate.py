"""The bars of staging: each is met or missed by the numbers beside it."""

import pytest

from benchmarks.staging_gate import bars, sizes, slope, table


def at(rows, **more):
    good = {
        "rows": rows, "workers": 1, "seconds": rows / 1000, "cpu_seconds": rows / 1200, "peak_mib": 240.0,
        "row_bytes": 12_500, "exact": True,
    }  # fmt: skip
    return good | more


PEERS = [
    {"what": what, "rows_a_second": {"plain loop": 90.0, "remembered": 600.0, "envace": 1500.0}}
    for what in ("verdicts", "staging")
]


def missed(*scaled, peers=PEERS):
    return [b.what for b in bars(scaled, peers, "envace") if not b.met]


@pytest.mark.parametrize("power", [0.5, 1.0, 2.0])
def test_the_slope_is_the_power(power):
    assert slope([(n, 3 * n**power) for n in (10, 20, 50)]) == pytest.approx(power)


def test_good_numbers_miss_nothing_and_each_bad_one_its_own_bar():
    small, large = at(10_000), at(50_000)
    assert missed(small, large) == []
    assert missed(small, at(50_000, exact=False)) == ["stagings with a wrong count of a reason"]
    assert missed(small, at(50_000, row_bytes=11_999)) == ["bytes of a row, mean"]
    assert missed(at(10_000, peak_mib=1500.0), at(50_000, peak_mib=1537.0)) == ["peak memory, MiB"]
    assert missed(small, at(50_000, peak_mib=265.0)) == ["peak memory, 50,000 rows over 10,000"]
    assert missed(small, at(50_000, cpu_seconds=52.0)) == [
        "slope of CPU seconds over rows, log-log"
    ]  # ln 6.24 / ln 5
    slow = [
        {"what": "staging", "rows_a_second": {"plain loop": 90.0, "remembered": 1001.0, "envace": 1500.0}}
    ]
    assert missed(small, large, peers=slow) == ["staging, rows a CPU second over: remembered"]


def test_the_tables_have_a_line_each():
    scaled = [at(10_000), at(50_000, peak_mib=300.0)]
    told = table(bars(scaled, PEERS, "envace"))
    assert "| peak memory, 50,000 rows over 10,000 | 1.25 | at most 1.1 | **missed** |" in told
    assert "| verdicts, rows a CPU second over: plain loop | 16.7 | at least 1.5 | met |" in told
    assert sizes(scaled).splitlines()[-1] == "| 50,000 | 1 | 50.0 | 41.7 | 300 |"
