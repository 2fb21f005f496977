"""What every verdict says of its own cost, and what a step's verdicts add up to."""

import pytest
from chat_server_kit import completion, dead_url, serving
from judge_kit import FINE, judge_turns, params

from envace.config.method import Method
from envace.judge.counts import judge_metrics
from envace.learn.advantage import advantages
from envace.learn.metrics import step_metrics
from envace.track.names import sanitise
from envace.types import Answer, Audit, Episode, StopReason, Verdict

USAGE = {"prompt_tokens": 100, "completion_tokens": 10}


def says_then(*contents):
    """The n-th request gets the n-th content; an int is a status."""

    def reply(n):
        content = contents[min(n, len(contents)) - 1]
        return (
            (content, "", 0.0) if isinstance(content, int) else (200, completion(content, usage=USAGE), 0.0)
        )

    return reply


def turn_of(answer, **changes):
    with serving(answer) as server:
        judge, [verdicts] = judge_turns(params(server.url, **changes))
    return judge, verdicts, server


def test_a_verdict_carries_who_answered_and_its_share_of_tokens_requests_and_price():
    _, verdicts, server = turn_of(says_then(FINE), price_in=2.0, price_out=50.0)
    assert [v.cost_tokens for v in verdicts] == [55, 55] and [v.requests for v in verdicts] == [1, 0]
    assert sum(v.cost for v in verdicts) == pytest.approx(100 * 2e-6 + 10 * 50e-6)
    assert {v.endpoint for v in verdicts} == {server.url.removeprefix("http://")}
    assert not any(v.cached or v.retries or v.faults or v.audit for v in verdicts)
    assert [v.step for v in verdicts] == [None, None]


def test_faults_and_retries_that_led_to_an_answer_stay_on_the_verdict():
    _, verdicts, _ = turn_of(says_then(503, "prose", {"C0": True}, {"C1": False}), attempts=5)
    assert [v.answer.value for v in verdicts] == ["yes", "no"]
    # a dead server, prose, an answer to one item of two: three attempts without all answers
    assert verdicts[0].faults == {"judge_unreachable": 1, "judge_malformed": 2} and verdicts[1].faults == {}
    assert sum(v.requests for v in verdicts) == 4 and sum(v.retries for v in verdicts) == 3
    assert sum(v.cost_tokens for v in verdicts) == 3 * 110


# --- counts


def verdict(answer, **more):
    return Verdict(item_id="C0", turn=0, answer=Answer(answer), **more)


ASKED = [
    verdict(
        "yes", requests=2, retries=1, faults={"judge_timeout": 1}, cost_tokens=100, seconds=1.5, cost=0.25
    ),
    verdict("no", cached=True, audit=Audit(answer=Answer.NO, cost_tokens=7, cost=0.5)),
    verdict("unscored", reason="judge_malformed: not JSON", requests=1, faults={"judge_malformed": 1}),
    verdict("yes", requests=1, audit=Audit(answer=Answer.NO, cost_tokens=3, cost=0.25)),
]


def test_counts_by_hand():
    assert judge_metrics(ASKED) == {
        "judge/verdicts": 4,
        "judge/yes": 2,
        "judge/no": 1,
        "judge/unscored": 1,
        "judge/unscored_malformed": 1,
        "judge/requests": 4,
        "judge/retries": 1,
        "judge/timed_out": 1,
        "judge/unreachable": 0,
        "judge/malformed": 1,
        "judge/refused": 0,
        "judge/cached": 1,
        "judge/tokens": 100,
        "judge/seconds": 1.5,
        "judge/cost": 0.25,
        "judge/audited": 2,
        "judge/audit_agreement": 0.5,
        "judge/audit_kappa": 0.0,
        "judge/audit_tokens": 10,
        "judge/audit_cost": 0.75,
    }


def test_a_judge_that_asks_nobody_is_counted_by_its_answers_alone():
    unasked = [verdict("yes"), verdict("unscored", reason="rule_missing")]
    assert judge_metrics(unasked) == {
        "judge/verdicts": 2,
        "judge/yes": 1,
        "judge/no": 0,
        "judge/unscored": 1,
        "judge/unscored_rule_missing": 1,
    }
    assert judge_metrics([]) == {}


@pytest.mark.parametrize("reason", ["a/b c: detail", "", "ünsäglich", "x" * 500, "judge_timeout: 5 s"])
def test_names_have_one_slash_and_pass_unchanged_whatever_a_judge_gives_as_its_reason(reason):
    for name in judge_metrics([verdict("unscored", reason=reason)]):
        assert sanitise(name) == name and name.count("/") == 1


def test_the_step_metrics_of_training_hold_the_judges_counts():
    episode = Episode(
        id="e",
        task_id="t",
        group_id="g",
        seed=1,
        prompt_set="",
        generations=(),
        messages=(),
        verdicts=tuple(ASKED),
        reward=None,
        unscored_reason="judge_failed",
        stop=StopReason.JUDGE_FAILED,
    )
    found = step_metrics([episode, episode], [], advantages([], Method())[1])
    assert {k: v for k, v in found.items() if k.startswith("judge/")}.items() >= {
        "judge/requests": 8.0,
        "judge/cost": 0.5,
        "judge/unscored": 2.0,
        "judge/audit_agreement": 0.5,
    }.items()


def test_a_judge_that_is_down_is_counted_by_its_attempts():
    _, [lost] = judge_turns(params(dead_url(), attempts=2))
    found = judge_metrics(lost)
    assert (found["judge/unreachable"], found["judge/unscored_unreachable"]) == (2, 2)
    assert found["judge/requests"] == 2 and found["judge/tokens"] == 0
