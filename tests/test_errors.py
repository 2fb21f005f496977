"""What a user sees when something goes wrong."""

import pytest

from envace.errors import DataError, StageFailed, boundary, describe


def test_user_error_is_one_line_without_traceback(capsys):
    with pytest.raises(SystemExit) as e, boundary("train"):
        raise DataError("rows are missing: run the data stage")
    assert e.value.code == 2
    assert capsys.readouterr().err == "train: rows are missing: run the data stage\n"


def test_innermost_cause_is_named():
    try:
        try:
            raise ConnectionRefusedError("port 5000")
        except ConnectionRefusedError as cause:
            raise RuntimeError("store unreachable") from cause
    except RuntimeError as e:
        assert describe(e) == "RuntimeError: store unreachable (cause: ConnectionRefusedError: port 5000)"


def test_stage_failure_carries_its_log(tmp_path):
    assert str(StageFailed("verl ended", tmp_path / "x.log")).endswith(f"(log: {tmp_path / 'x.log'})")


def test_a_bug_keeps_its_traceback(capsys):
    with pytest.raises(SystemExit) as e, boundary("report"):
        raise KeyError("step")
    assert e.value.code == 1 and "Traceback" in capsys.readouterr().err
