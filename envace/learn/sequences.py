"""Episodes -> training sequences, and back to one advantage a token.

Flows in: a finished episode; later the advantages of all rows of a batch. Flows out: one sequence for each
forward pass, which knows where its rows' tokens lie; a vector of token advantages for each sequence.
Invariant: ids, loss mask and log-probabilities have one length and are never re-tokenised. However rows are
merged, every trained token is predicted from the same tokens before it and has the same weight in the loss,
so loss and gradient are those of one sequence a generation. The last sequence of an episode holds its last
ACT generation, because verl reads an episode's outcome from its last output.

Rewards and advantages are facts about generations: a row stays one generation, in whatever sequence it is
trained. A sequence of ACT only grows when the prompt of a generation begins with all tokens of the one
before, prompt and output: `[1 2 | 3 4]` and `[1 2 3 4 5 6 | 7]` become `[1 2 | 3 4 5 6 7]` with loss mask `1
1 0 0 1`. What lies between, the observations, is masked. Where a prompt was written anew (thoughts of an
earlier turn dropped, say) a new sequence begins. A merged sequence is as long as its last row alone, so it
needs no more context than that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from envace.config.method import Method
from envace.learn.rewards import credited_reward
from envace.learn.weights import LOSS_AGG_MODE, row_weights, verl_weights
from envace.types import Episode, Role, replace

COPIED_TO = 8  # rows a rank: the published code fills up to its log-probability micro-batch on every rank


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingRow:
    """One generation inside a training sequence, with what it earned.

    `TrainingRow(role=Role.ACT, group_id="s1p0", episode_id="s1p0-0", turn=0, reward=0.5, length=12,
    trained=12)`
    """

    role: Role
    group_id: str
    episode_id: str
    turn: int
    reward: float | None
    """None when the episode is unscored."""
    start: int = 0
    """Of its first token in the response of its sequence."""
    length: int
    trained: int
    """Tokens that the loss counts; none of a frozen role, of a placeholder, of padding."""
    sequence: int = 0
    """Number of its sequence in the batch."""
    source: str = ""
    """Of its task (`Task.source`), where something is kept apart by it."""
    advantage: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingSequence:
    """What one forward pass reads: one or more rows of the same role and episode."""

    prompt_ids: tuple[int, ...]
    response_ids: tuple[int, ...]
    loss_mask: tuple[int, ...]
    """[len(response_ids)] 1 where a trained role wrote the token."""
    logprobs: tuple[float, ...]
    """[len(response_ids)] 0 between rows; empty when the policy reports none."""
    rows: tuple[TrainingRow, ...]


def sequences_of(episode: Episode, method: Method) -> list[TrainingSequence]:
    """The sequences an episode is trained in, each at the place of its last row.

    The switch `rows` says how: "generation" gives one sequence a generation, "merged" joins those of ACT.
    Raises ValueError when log-probabilities and ids of a generation differ in length.
    """
    return JOINS[method.rows](generation_sequences(episode, method))


def generation_sequences(episode: Episode, method: Method) -> list[TrainingSequence]:
    """One sequence for each generation that produced a token, in order, the last ACT one moved to the end.

    Those of a role outside `method.roles` keep their place with a zero loss mask: that role is frozen.
    """
    found, last = list[TrainingSequence](), None
    for generation in (g for g in episode.generations if g.output_ids):
        n, known = len(generation.output_ids), len(generation.logprobs)
        if known not in (0, n):
            raise ValueError(f"episode {episode.id}: {known} log-probabilities for {n} tokens")
        trained = generation.role in method.roles
        row = TrainingRow(
            role=generation.role,
            group_id=episode.group_id,
            episode_id=episode.id,
            turn=generation.turn,
            reward=credited_reward(episode, generation, method),
            length=n,
            trained=n * trained,
        )
        last = len(found) if generation.role is Role.ACT else last
        found.append(
            TrainingSequence(
                prompt_ids=generation.prompt_ids,
                response_ids=generation.output_ids,
                loss_mask=(int(trained),) * n,
                logprobs=generation.logprobs,
                rows=(row,),
            )
        )
    return found if last is None else [*found[:last], *found[last + 1 :], found[last]]


def merged(sequences: Sequence[TrainingSequence]) -> list[TrainingSequence]:
    """Sequences of one generation each, those of ACT joined where they continue one another: where the prompt
    begins with the whole sequence before, and both or neither know their log-probabilities."""
    done = list[TrainingSequence]()
    growing: TrainingSequence | None = None
    for new in sequences:
        if new.rows[0].role is not Role.ACT:
            done.append(new)
            continue
        before = growing.prompt_ids + growing.response_ids if growing else ()
        if (
            growing
            and new.prompt_ids[: len(before)] == before
            and bool(new.logprobs) == bool(growing.logprobs)
        ):
            between = new.prompt_ids[len(before) :]
            growing = replace(
                growing,
                response_ids=growing.response_ids + between + new.response_ids,
                loss_mask=growing.loss_mask + (0,) * len(between) + new.loss_mask,
                logprobs=growing.logprobs + (0.0,) * len(between) + new.logprobs if new.logprobs else (),
                rows=(*growing.rows, replace(new.rows[0], start=len(growing.response_ids) + len(between))),
            )
        else:
            done += [growing] if growing else []
            growing = new
    return done + ([growing] if growing else [])


JOINS: dict[str, Callable[[Sequence[TrainingSequence]], list[TrainingSequence]]] = {
    "generation": list,
    "merged": merged,
}


def batch_rows(
    rows_S: Sequence[Sequence[TrainingRow]], masks: Sequence[np.ndarray], live_S: Sequence[bool]
) -> list[TrainingRow]:
    """The rows of a batch with the tokens that are trained as verl sees them, from the rows of every
    sequence.

    A sequence that is not live (padding, a placeholder) stands as one row without a trained token. masks
    [S][tokens of the response]. Raises ValueError for a row that its mask does not cover: tokens were lost on
    the way.
    """
    found = []
    for s, (rows, mask, live) in enumerate(zip(rows_S, masks, live_S, strict=True)):
        for row in rows if live else rows[:1]:
            end = row.start + row.length
            if live and end > len(mask):
                raise ValueError(
                    f"a row of {row.episode_id} ends at token {end}, but its sequence has {len(mask)}"
                )
            trained = int(np.count_nonzero(mask[row.start : end])) if live else 0
            found.append(replace(row, sequence=s, trained=trained))
    return found


def token_advantages(
    rows: Sequence[TrainingRow], masks: Sequence[np.ndarray], method: Method
) -> list[np.ndarray]:
    """Advantages as verl is to get them: one float64 vector for each sequence, as long as its response.

    rows: every row of the batch with its advantage, in any order; masks: the response masks of all sequences
    of the batch as verl will see them, padding included. A row's advantage is multiplied by the weight its
    tokens should have over the weight verl gives them (see weights.py). Rows without a reward are not counted
    in the weight of any other.
    """
    role_weight = dict(zip((Role.ACT, Role.REHEARSE), method.role_weights, strict=True))
    wanted_R = row_weights(
        [0 if row.reward is None else row.trained for row in rows],
        method.loss_weight,
        role_weight_R=[role_weight[row.role] for row in rows],
        episode_R=[row.episode_id for row in rows],
    )
    lengths = [int(np.count_nonzero(mask)) for mask in masks]
    given_S = verl_weights(lengths, LOSS_AGG_MODE[method.loss_weight])
    found = [np.zeros(len(mask)) for mask in masks]
    for row, wanted in zip(rows, wanted_R, strict=True):
        if wanted:
            here = slice(row.start, row.start + row.length)
            found[row.sequence][here] = row.advantage * (wanted / given_S[row.sequence])
    return [values * (np.asarray(mask) != 0) for values, mask in zip(found, masks)]


def copies(how: str, n: int, ranks: int, seed: int, step: int) -> list[int]:
    """Numbers of the sequences (of `n`, in an order the caller fixes) to be copied, under the switch
    `padding`.

    `duplicates`: as the published code, sequences drawn at random stand in the batch once more, before
    baselines, so they count in their group's mean and have their gradient twice. `masked`: none is copied;
    the engine adds sequences without a trained token, which enter no baseline and have no weight. The same
    seed and step choose the same copies.
    """
    missing = -n % (ranks * COPIED_TO) if how == "duplicates" else 0
    if not n or not missing:
        return []
    drawn = np.random.default_rng([seed, step]).choice(n, missing, replace=missing > n)
    return [int(i) for i in drawn]
