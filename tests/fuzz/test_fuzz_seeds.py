"""The fuzzed promises hold for every published case and for all that fuzzing found; a broken parser is
told."""

import subprocess
import sys
from dataclasses import replace

import fuzz_run as run
import fuzz_targets as targets
import pytest
from hypothesis import given
from hypothesis import strategies as st

from envace.chat import calls, contract
from envace.errors import EnvironmentUnready, StageFailed

SEEDS = run.seeds()
GET = '<tool_call>{"name": "get", "arguments": {"q": 1}}</tool_call>'


@pytest.mark.parametrize("name", targets.TARGETS)
def test_every_published_case_and_every_finding_keeps_the_promises(name):
    assert len(SEEDS) > 200  # two of each case
    for data in SEEDS:
        targets.TARGETS[name](data)


@given(
    st.binary(max_size=80) | st.sampled_from(SEEDS).flatmap(lambda s: st.binary(max_size=8).map(s.__add__))
)
def test_bytes_of_any_kind_keep_the_promises(data):
    for target in targets.TARGETS.values():
        target(data)


def test_bytes_stand_for_a_text_and_a_way_of_reading_thoughts():
    assert targets.text_of(targets.bytes_of("é <think>")[1:]) == "é <think>"
    assert targets.text_of(b"a\xffb") == "a\udcffb"  # what is no UTF-8 becomes a lone surrogate
    assert [targets.bytes_of("", mode)[0] for mode in targets.MODES] == [0, 1]


BROKEN_CALLS = {
    "a broken message yields calls": lambda r: replace(r, failure="bad_json", detail="d"),
    "a failure without its reason": lambda r: replace(r, failure="bad_json", calls=()),
    "neither calls nor a text nor a failure": lambda r: replace(r, calls=()),
    "a character a tokenizer chokes on is left": lambda r: replace(r, content="\0"),
    "written again it makes other calls": lambda r: replace(r, calls=r.calls + r.calls),
}


@pytest.mark.parametrize("promise", BROKEN_CALLS)
def test_a_parser_of_calls_that_breaks_a_promise_is_found(promise, monkeypatch):
    wrong = BROKEN_CALLS[promise]
    monkeypatch.setattr(targets, "parse_assistant", lambda t, **how: wrong(calls.parse_assistant(t, **how)))
    with pytest.raises(AssertionError, match=promise):
        targets.calls(targets.bytes_of(GET))


def test_a_parser_that_reads_thoughts_is_found(monkeypatch):
    def reads_thoughts(text, **_):
        return calls.parse_assistant(text, thought_calls="execute")

    monkeypatch.setattr(targets, "parse_assistant", reads_thoughts)
    with pytest.raises(AssertionError, match="an open thought makes calls"):
        targets.calls(targets.bytes_of(GET))


BROKEN_RESULTS = {
    "a refusal is told by its key alone": lambda r: replace(r, error=True),
    "neither a list nor a full object": lambda r: replace(r, value={}),
    "a value nests too deep": lambda r: replace(r, value=deep(65)),
    "a broken response yields a value": lambda r: replace(r, failure="result_bad_type", detail="d"),
}


def deep(levels):
    return [deep(levels - 1)] if levels > 1 else []


@pytest.mark.parametrize("promise", BROKEN_RESULTS)
def test_a_parser_of_responses_that_breaks_a_promise_is_found(promise, monkeypatch):
    wrong = BROKEN_RESULTS[promise]
    monkeypatch.setattr(targets, "parse_result", lambda text: wrong(contract.parse_result(text)))
    monkeypatch.setattr(targets, "strict_loads", targets.json.loads)  # which refuses no depth
    with pytest.raises(AssertionError, match=promise):
        targets.contract(targets.bytes_of('<execution_result>{"a": 1}</execution_result>'))


# --- the command
# ------------------------------------------------------------------------------------------------


def test_without_the_fuzzer_the_command_says_how_to_get_it(monkeypatch, capsys):
    monkeypatch.setattr(run, "find_spec", lambda _: None)
    with pytest.raises(SystemExit) as ended:
        run.main(["calls"])
    assert ended.value.code == EnvironmentUnready.exit_code
    assert "atheris is not installed: use `make fuzz`" in capsys.readouterr().err


def test_a_finding_is_told_with_its_promise_and_how_to_see_it_again(monkeypatch, tmp_path):
    said = "noise\nAssertionError: a call without a name\nTest unit written to /x/crash-1\n"

    def fake(command, stdout, **_):
        stdout.write(said)
        return subprocess.CompletedProcess(command, 77)

    monkeypatch.setattr(run.subprocess, "run", fake)
    with pytest.raises(StageFailed, match="a call without a name; again: .* calls --replay /x/crash-1"):
        run.fuzz("calls", 1, tmp_path)
    assert len(list((tmp_path / "calls/seeds").iterdir())) > 150


def test_a_file_is_replayed_without_the_fuzzer(tmp_path):
    kept = tmp_path / "crash"
    kept.write_bytes(targets.bytes_of(GET))
    replay = [sys.executable, run.HERE / "fuzz_run.py", "calls", "--replay", kept]
    assert subprocess.run(replay, cwd=tmp_path).returncode == 0
