"""A call that the serving layer could not read and left in the text, in three harnesses that take it for
words.

(BFCL's own stand in test_bfcl_parse.) The strict score is 0 and the cause is named; what upstream counts
stays.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from kit_finmcp import Gold
from kit_server import Server
from kit_vita import BROKEN
from test_finmcp_replay import key, played, request_of  # noqa: F401  (key: a fixture)
from test_vita_parse import parsed

from envace.bench.tau2.parse import parse_folder
from envace.bench.tau2.scores import Tau2Domain, domain_scores
from envace.bench.vita import scores as vita_scores
from envace.serving.replies import chat_message
from envace.types import SampleStatus

FIXTURES = Path(__file__).parent / "fixtures"
S = SampleStatus
UNREAD = chat_message(BROKEN, tools=True)["content"]  # as our own server hands it on


def edited(folder: Path, name: str, simulation: int, message: str = UNREAD) -> None:
    """Put a message of the agent's into a recorded dialogue, after its first words."""
    data = json.loads((folder / name).read_text(encoding="utf-8"))
    messages = data["simulations"][simulation]["messages"]
    at = next(i for i, m in enumerate(messages) if m["role"] == "user")
    messages.insert(at + 1, {"role": "assistant", "content": message, "tool_calls": None})
    (folder / name).write_text(json.dumps(data), encoding="utf-8")


def test_tau2_has_it_said_to_the_customer_and_may_still_reward_it(tmp_path):
    folder = shutil.copytree(FIXTURES / "tau2" / "upstream_ok", tmp_path / "raw")
    edited(folder, "results.json", 0)
    edited(folder, "results.json", 1, "Let me look that up.")
    samples = parse_folder(folder, "airline")
    broken, other = samples[:2]
    assert (broken.status, broken.error) == (
        S.AGENT_FAILURE,
        "agent: malformed call (call markup in the text)",
    )
    assert broken.metrics["upstream"] == 1.0 and broken.metrics["malformed"] == 1.0 and broken.reward is None
    assert other.status is S.SCORED and other.metrics["malformed"] == 0.0
    made = domain_scores(Tau2Domain(name="airline", samples=samples, trials=2), bootstrap=50)
    strict, upstream = (
        next(r for r in made if r.source == s and r.metric == "reward") for s in ("strict", "upstream")
    )
    assert strict.score == pytest.approx(7 / 8) and upstream.score == 1.0 and strict.n_agent_failure == 1


def test_vita_has_it_said_to_the_user_and_may_still_reward_it(tmp_path):
    parsed(tmp_path, "ok.json", trials=2)
    edited(tmp_path, "results.json", 0)
    samples = parsed(tmp_path, None, trials=2)
    broken, *others = samples
    assert (broken.status, broken.error) == (
        S.AGENT_FAILURE,
        "agent: malformed_call (call markup in the text)",
    )
    assert broken.metrics["upstream"] == 1.0 and broken.metrics["malformed"] == 1.0
    assert {s.status for s in others} == {S.SCORED}
    made = {
        r.source: r
        for r in vita_scores.records(("delivery",), samples, {"delivery": 0.0})
        if r.metric == "reward"
    }
    assert made["strict"].score == pytest.approx(5 / 6) and made["upstream"].score == 1.0


def test_finmcp_takes_it_for_an_answer(tmp_path):
    with Server(Gold({1: "raw"}), "m") as server:
        scores, samples = played(request_of(tmp_path, server, subsets=("single",)))
    broken, other = samples
    assert (broken.status, broken.error) == (
        S.AGENT_FAILURE,
        "agent: malformed_call (call markup in the text)",
    )
    assert broken.stop == "malformed_call" and broken.metrics["malformed"] == 1.0
    assert other.status is S.SCORED
    # one gold call of two is missed in both readings: the published scorer scores the text as an answer
    assert scores["single", "tr", "strict"].score == scores["single", "tr", "upstream"].score == 0.5
    assert scores["single", "emr", "strict"].score == 0.5


def test_finmcp_counts_upstream_what_was_called_before_it(tmp_path):
    """Calls before the broken one stand upstream; strict misses the conversation's gold calls altogether."""

    class Late(Gold):
        def __call__(self, body):
            last = max(i for i, m in enumerate(body["messages"]) if m["role"] == "user")
            ours = body["messages"][last]["content"].startswith("Compare")
            late = ours and any(m["role"] == "assistant" for m in body["messages"][last:])
            return Gold({3: "raw"} if late else {})(body)

    with Server(Late(), "m") as server:
        scores, samples = played(request_of(tmp_path, server, subsets=("multi",)))
    assert [s.status for s in samples] == [S.AGENT_FAILURE, S.SCORED, S.SCORED]
    # gold calls: 3, 4 and 2; of the first conversation's one was made
    assert scores["multi", "tr", "strict"].score == pytest.approx(6 / 9)
    assert scores["multi", "tr", "upstream"].score == pytest.approx(7 / 9)
