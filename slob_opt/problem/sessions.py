"""Conversations: several turns with time to think in between, each prompt holding all that was said before."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from slob_opt.errors import InputError
from slob_opt.problem.arrivals import Seed
from slob_opt.problem.distributions import Distribution, draw_tokens
from slob_opt.problem.workload import NS_PER_S

IntArray = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class TurnCounts:
    """How many turns a conversation has: one with a probability, else one and a geometric number of further ones.

    Attributes
    ----------
    single
        Probability of a single turn, from 0 to 1.
    stop
        Probability that a further turn is the last, above 0 and at most 1.

    Examples
    --------
    >>> round(TurnCounts(single=0.58, stop=0.31).mean, 3)
    2.355
    """

    single: float
    stop: float

    def __post_init__(self) -> None:
        if not (0 <= self.single <= 1 and 0 < self.stop <= 1):
            raise InputError(f"single is {self.single} and stop {self.stop}, expected probabilities, stop above 0")

    @property
    def mean(self) -> float:
        """Mean number of turns."""
        return self.single + (1 - self.single) * (1 + 1 / self.stop)

    def draw(self, rng: np.random.Generator, size: int) -> IntArray:
        """Return (size,) int64 numbers of turns, from 1."""
        more = 1 + rng.geometric(self.stop, size)
        return np.where(rng.random(size) < self.single, 1, more).astype(np.int64)


@dataclass(frozen=True, slots=True)
class SessionShape:
    """What happens in a conversation.

    Attributes
    ----------
    turns
        How many requests it has.
    think_s
        Time from the end of an answer to the next request, seconds.
    answer_s_per_token
        Time that an answer is taken to last, seconds per output token. Arrivals are fixed before anything is served,
        so it is an assumption of the workload, not the served speed.
    system_tokens
        Tokens that stand before every conversation.
    user_tokens
        New tokens of a turn.
    attachment_share, attachment_tokens
        Probability that a turn brings a document, and its tokens, on top.
    output_tokens
        Tokens of an answer.
    """

    turns: TurnCounts
    think_s: Distribution
    answer_s_per_token: float
    system_tokens: int
    user_tokens: Distribution
    attachment_share: float
    attachment_tokens: Distribution
    output_tokens: Distribution


@dataclass(frozen=True, slots=True)
class SessionRequests:
    """Requests of many conversations, in order of arrival.

    Attributes
    ----------
    arrival_ns
        (N,) int64, nanoseconds.
    prompt_tokens, output_tokens
        (N,) int64; a prompt is system text, all earlier turns with their answers, and the new tokens.
    session, turn
        (N,) int64, number of the conversation in order of their starts, and of the turn in it, both from 0.
    """

    arrival_ns: IntArray
    prompt_tokens: IntArray
    output_tokens: IntArray
    session: IntArray
    turn: IntArray


def sample_sessions(starts_ns: IntArray, shape: SessionShape, rng: Seed) -> SessionRequests:
    """Return the requests of conversations that start at given times.

    Parameters
    ----------
    starts_ns
        (S,) int64, nanoseconds; when each conversation sends its first request.
    shape
        What happens in each.
    rng
        Generator or seed.
    """
    rng = np.random.default_rng(rng)
    alive = np.arange(starts_ns.size, dtype=np.int64)
    turns = shape.turns.draw(rng, alive.size)
    now = starts_ns.astype(np.int64)
    context = np.full(alive.size, shape.system_tokens, np.int64)
    columns: list[tuple[IntArray, IntArray, IntArray, IntArray, IntArray]] = []
    turn = 0
    while alive.size:
        size = alive.size
        has_attachment = rng.random(size) < shape.attachment_share
        added = draw_tokens(shape.user_tokens, rng, size)
        added += np.where(has_attachment, draw_tokens(shape.attachment_tokens, rng, size), 0)
        output = draw_tokens(shape.output_tokens, rng, size)
        prompt = context + added
        columns.append((now, prompt, output, alive, np.full(size, turn, np.int64)))
        gap_s = shape.think_s.draw(rng, size) + shape.answer_s_per_token * output
        turn += 1
        goes_on = turns[alive] > turn
        now = (now + np.rint(gap_s * NS_PER_S).astype(np.int64))[goes_on]
        context = (prompt + output)[goes_on]
        alive = alive[goes_on]
    if not columns:
        none = np.zeros(0, np.int64)
        return SessionRequests(none, none, none, none, none)
    joined = [np.concatenate(column) for column in zip(*columns, strict=True)]
    order = np.lexsort((joined[4], joined[3], joined[0]))  # by time, then conversation, then turn
    return SessionRequests(*(column[order] for column in joined))
