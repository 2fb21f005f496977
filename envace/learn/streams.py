"""Rows -> streams, the sequences of tokens that are trained on, and back to one advantage a token.

Flows in: the rows of an episode; later the advantages and weights of all rows of a batch. Flows out: one stream for
each forward pass, which knows where its rows' tokens lie; a vector of token advantages for each stream.
Invariant: however rows are merged, every trained token is predicted from the same tokens before it and has the same
weight in the loss, so loss and gradient are those of one row a generation.

A stream of ACT only grows when the prompt of a generation begins with all tokens of the one before, prompt and output:
`[1 2 | 3 4]` and `[1 2 3 4 5 6 | 7]` become `[1 2 | 3 4 5 6 7]` with loss mask `1 1 0 0 1`. What lies between, the
observations, is masked. Where a prompt was written anew (thoughts of an earlier turn dropped, say) a new stream
begins. A merged stream is as long as its last row alone, so it needs no more context than that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from envace.config.method import Method
from envace.learn.weights import LOSS_AGG_MODE, row_weights, verl_weights
from envace.types import Role, Row, replace


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """One row's tokens inside a stream: `Segment(start=4, tokens=1, turn=1, reward=0.5)`."""

    start: int  # of its first token in the stream's response
    tokens: int
    turn: int
    reward: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """One training sequence of one or more rows of the same role and episode."""

    prompt_ids: tuple[int, ...]
    response_ids: tuple[int, ...]
    loss_mask: tuple[int, ...]  # [len(response_ids)] 1 where a trained role wrote the token
    logprobs: tuple[float, ...]  # [len(response_ids)] 0 between segments; empty when the policy reports none
    role: Role
    group_id: str
    episode_id: str
    segments: tuple[Segment, ...]


def streams_of(rows: Iterable[Row], how: str) -> list[Stream]:
    """The streams of one episode's rows, each at the place of its last row: an ACT row at the end stays there.

    `how` is the switch `rows`: "generation" gives one stream a row, "merged" joins ACT rows.
    """
    return JOINS[how](list(rows))


def _single(rows: Sequence[Row]) -> list[Stream]:
    return [_stream(row) for row in rows]


def _merged(rows: Sequence[Row]) -> list[Stream]:
    done: list[Stream] = []
    growing: Stream | None = None
    for row in rows:
        if row.role is not Role.ACT:
            done.append(_stream(row))
        elif growing is not None and _extends(row, growing):
            growing = _joined(growing, row)
        else:
            done += [growing] if growing is not None else []
            growing = _stream(row)
    return done + ([growing] if growing is not None else [])


def _stream(row: Row) -> Stream:
    segment = Segment(start=0, tokens=len(row.response_ids), turn=row.turn, reward=row.reward)
    return Stream(
        prompt_ids=row.prompt_ids, response_ids=row.response_ids, loss_mask=row.loss_mask, logprobs=row.logprobs,
        role=row.role, group_id=row.group_id, episode_id=row.episode_id, segments=(segment,),
    )  # fmt: skip


def _extends(row: Row, stream: Stream) -> bool:
    """Whether the row's prompt begins with the whole stream, and both or neither know their log-probabilities."""
    before = stream.prompt_ids + stream.response_ids
    return row.prompt_ids[: len(before)] == before and bool(row.logprobs) == bool(stream.logprobs)


def _joined(stream: Stream, row: Row) -> Stream:
    start = len(row.prompt_ids) - len(stream.prompt_ids)
    gap = start - len(stream.response_ids)
    between = row.prompt_ids[len(row.prompt_ids) - gap :] if gap else ()
    return replace(
        stream,
        response_ids=stream.response_ids + between + row.response_ids,
        loss_mask=stream.loss_mask + (0,) * gap + row.loss_mask,
        logprobs=stream.logprobs + (0.0,) * gap + row.logprobs if row.logprobs else (),
        segments=(
            *stream.segments,
            Segment(start=start, tokens=len(row.response_ids), turn=row.turn, reward=row.reward),
        ),
    )


JOINS: dict[str, Callable[[Sequence[Row]], list[Stream]]] = {"generation": _single, "merged": _merged}


# --- a batch of streams -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Where the tokens of a row of the batch lie: response tokens [start, start + tokens) of stream `stream`."""

    stream: int
    start: int
    tokens: int


def rows_of_streams(
    records: Sequence[dict[str, Any]], masks: Sequence[np.ndarray], live_S: Sequence[bool]
) -> tuple[list[Row], list[Span]]:
    """The rows of a batch without their ids, and where each lies, from the `record` of every stream.

    A row's loss mask is one 1 for each trained token. A stream that is not live (padding, a placeholder) stands as
    one row without any. masks [S][tokens of the response]. Raises ValueError for a row that its mask does not cover:
    tokens were lost on the way.
    """
    rows, spans = [], []
    for s, (record, mask, live) in enumerate(zip(records, masks, live_S, strict=True)):
        for start, tokens, turn, reward in record["segments"] if live else record["segments"][:1]:
            if live and start + tokens > len(mask):
                raise ValueError(
                    f"a row of {record['episode']} ends at token {start + tokens}, but its sequence has {len(mask)}"
                )
            trained = int(np.count_nonzero(mask[start : start + tokens])) if live else 0
            rows.append(Row(
                prompt_ids=(), response_ids=(), loss_mask=(1,) * trained, logprobs=(), role=Role(record["role"]),
                group_id=record["group"], episode_id=record["episode"], turn=turn, reward=reward,
            ))  # fmt: skip
            spans.append(Span(stream=s, start=start, tokens=tokens))
    return rows, spans


def record(stream: Stream) -> dict[str, Any]:
    """What travels beside a stream's tokens, as plain JSON data."""
    return {
        "role": stream.role.value,
        "group": stream.group_id,
        "episode": stream.episode_id,
        "segments": [[s.start, s.tokens, s.turn, s.reward] for s in stream.segments],
    }


def token_advantages(
    rows: Sequence[Row], spans: Sequence[Span], masks: Sequence[np.ndarray], method: Method
) -> list[np.ndarray]:
    """Advantages as verl is to get them: one float64 vector for each stream, as long as its response.

    rows: every row of the batch with its advantage and trained tokens (ones of its loss mask), in any order; spans:
    where each lies; masks: the response masks of all streams of the batch as verl will see them, padding included.
    A row's advantage is multiplied by the weight its tokens should have over the weight verl gives them (see
    weights.py).
    """
    mode = LOSS_AGG_MODE[method.loss_weight]
    role_weight = dict(zip((Role.ACT, Role.REHEARSE), method.role_weights, strict=True))
    wanted_R = row_weights(
        [sum(row.loss_mask) for row in rows],
        method.loss_weight,
        role_weight_R=[role_weight[row.role] for row in rows],
        episode_R=[row.episode_id for row in rows],
    )
    given_S = verl_weights([int(np.count_nonzero(mask)) for mask in masks], mode)
    found = [np.zeros(len(mask)) for mask in masks]
    for row, span, wanted in zip(rows, spans, wanted_R, strict=True):
        if wanted:
            here = slice(span.start, span.start + span.tokens)
            found[span.stream][here] = row.advantage * (wanted / given_S[span.stream])
    return [values * (np.asarray(mask) != 0) for values, mask in zip(found, masks)]
