"""What is kept on disk: answers by the hash of their question, whoever writes and whatever breaks."""

import multiprocessing
from pathlib import Path

import pytest
from chat_server_kit import completion, says, serving
from judge_kit import FINE, ITEMS, MESSAGES, judge_turns, params

from envace.errors import EnvironmentUnready
from envace.judge.cache import AnswerCache, SharedLines, content_key
from envace.judge.llm_requests import turn_request
from envace.types import Answer, replace

BOTH = {"C0": Answer.YES, "C1": Answer.NO}


def test_what_was_answered_is_not_asked_again_even_by_another_judge(tmp_path):
    with serving(says(FINE)) as server:
        o = params(server.url, cache=str(tmp_path))
        first = judge_turns(o)[1][0]
        judge, [second] = judge_turns(o)
    assert len(server.bodies) == 1 and judge.cached == 1
    assert [v.answer for v in second] == [v.answer for v in first]
    assert all(v.cached and not (v.cost_tokens or v.requests or v.endpoint) for v in second)


@pytest.mark.parametrize(
    ("changes", "mode"), [({"model": "other"}, "turn"), ({"temperature": 0.1}, "turn"), ({}, "step_item")]
)
def test_another_model_sampling_or_mode_is_asked_anew(changes, mode, tmp_path):
    with serving(lambda n: (200, completion({"answer": True, **FINE}), 0.0)) as server:
        o = params(server.url, cache=str(tmp_path))
        judge_turns(o)
        judge, _ = judge_turns(replace(o, **changes), mode=mode)
    assert judge.cached == 0


def test_another_transcript_or_item_has_another_key():
    o = params("http://x")
    other = replace(ITEMS[0], question="else")
    bodies = [
        turn_request(o, ITEMS, 0, MESSAGES),
        turn_request(o, ITEMS, 0, MESSAGES[:-1]),
        turn_request(o, (other, ITEMS[1]), 0, MESSAGES),
        turn_request(o, ITEMS, 1, MESSAGES),
    ]
    assert len({content_key(b) for b in bodies}) == 4


def test_an_unscored_turn_is_not_kept(tmp_path):
    with serving(lambda n: (200, completion({"C0": True} if n == 1 else FINE), 0.0)) as server:
        o = params(server.url, cache=str(tmp_path), attempts=1)
        judge_turns(o)
        assert judge_turns(o)[1][0][1].answer is Answer.NO
    assert len(server.bodies) == 2


def test_two_caches_on_one_folder_see_each_others_answers(tmp_path):
    a, b = AnswerCache(tmp_path), AnswerCache(tmp_path)
    assert b.get("k", ITEMS) is None
    a.put("k", BOTH)
    assert b.get("k", ITEMS) == BOTH
    b.put("k2", BOTH | {"C1": Answer.UNSCORED})
    assert a.get("k2", ITEMS) is None


@pytest.mark.parametrize(
    "line",
    [
        b'{"key": "k", "answers": {"C0": "false", "C1": true}}\n',
        b'{"key": "k", "answers": {"C0": 1, "C1": true}}\n',
        b'{"key": "k", "answers": {"C0": true}}\n',
        b'{"key": "k", "answers": [true, true]}\n',
        b'{"key": "k"}\n[1]\nnull\n',
        b'{"key": "k", "answers": {"C0": true, "C1": true}}',
        b"\xff\xfe\n\n\n{{{\n",
    ],
)
def test_a_damaged_file_of_answers_answers_nothing_and_is_written_on(line, tmp_path):
    (tmp_path / "answers.jsonl").write_bytes(line)
    cache = AnswerCache(tmp_path)
    assert cache.get("k", ITEMS) is None
    cache.put("new", BOTH)
    assert AnswerCache(tmp_path).get("new", ITEMS) == BOTH


def _write(folder: Path, name: int) -> None:
    cache = AnswerCache(folder)
    for i in range(200):
        cache.put(f"{name}/{i}", BOTH)


def test_several_processes_write_one_file_and_lose_nothing(tmp_path):
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=_write, args=(tmp_path, k)) for k in range(3)]
    for w in writers:
        w.start()
    for w in writers:
        w.join()
    kept = SharedLines(tmp_path / "answers.jsonl").news()
    assert len({record["key"] for record in kept}) == len(kept) == 600


def test_a_full_disk_costs_no_verdict(tmp_path):
    (tmp_path / "answers.jsonl").symlink_to("/dev/full")
    with serving(says(FINE)) as server:
        judge, [verdicts] = judge_turns(params(server.url, cache=str(tmp_path)))
    assert [v.answer.value for v in verdicts] == ["yes", "no"] and judge.unkept == 1


def test_a_folder_that_cannot_be_written_is_said_at_the_start(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(EnvironmentUnready, match="judge.cache needs a folder"):
        judge_turns(params("http://127.0.0.1:9", cache=str(tmp_path / "file")))
