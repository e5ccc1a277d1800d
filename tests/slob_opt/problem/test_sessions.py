"""Conversations: their turns, the times between them, and prompts that hold what was said before."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from slob_opt.errors import InputError
from slob_opt.problem.distributions import LogNormal
from slob_opt.problem.sessions import SessionShape, TurnCounts, sample_sessions

TEN, FIVE, NINETY = (LogNormal(np.log(x), 1e-6, x, x) for x in (10, 5, 90))
FIXED = SessionShape(
    turns=TurnCounts(single=0.0, stop=1.0),  # two turns, always
    think_s=NINETY,
    answer_s_per_token=0.5,
    system_tokens=100,
    user_tokens=TEN,
    attachment_share=0.0,
    attachment_tokens=NINETY,
    output_tokens=FIVE,
)


def test_two_turns_by_hand() -> None:
    """First prompt 100 + 10; the second holds it, its answer of 5 and 10 more. It comes after 5 x 0.5 s and 90 s."""
    drawn = sample_sessions(np.array([0, 7 * 10**9]), FIXED, 0)
    assert (drawn.arrival_ns / 1e9).tolist() == [0.0, 7.0, 92.5, 99.5]
    assert drawn.prompt_tokens.tolist() == [110, 110, 125, 125]
    assert drawn.output_tokens.tolist() == [5] * 4
    assert drawn.session.tolist() == [0, 1, 0, 1]
    assert drawn.turn.tolist() == [0, 0, 1, 1]


def test_attachments_stay_in_the_context() -> None:
    drawn = sample_sessions(np.array([0]), replace(FIXED, attachment_share=1.0), 0)
    assert drawn.prompt_tokens.tolist() == [200, 305]


def test_the_context_grows_by_what_was_said() -> None:
    """In every conversation each prompt is longer than the one before it with its answer."""
    varied = replace(
        FIXED,
        turns=TurnCounts(0.3, 0.3),
        user_tokens=LogNormal(3, 1, 1, 500),
        output_tokens=LogNormal(4, 1, 1, 900),
        think_s=LogNormal(3, 1, 1, 1000),
        attachment_share=0.2,
    )
    drawn = sample_sessions(np.arange(500) * 10**9, varied, 3)
    assert np.all(np.diff(drawn.arrival_ns) >= 0)
    for number in range(500):
        mine = np.flatnonzero(drawn.session == number)
        assert drawn.turn[mine].tolist() == list(range(mine.size))
        said = drawn.prompt_tokens[mine] + drawn.output_tokens[mine]
        assert np.all(drawn.prompt_tokens[mine][1:] > said[:-1])
    assert drawn.session.size / 500 == pytest.approx(varied.turns.mean, rel=0.1)


def test_turns_have_their_mean() -> None:
    turns = TurnCounts(single=0.58, stop=0.31)
    drawn = turns.draw(np.random.default_rng(0), 100_000)
    # The figures that the numbers were fitted to: mean 2.35, two and more 42.1 %, five and more 12.4 %.
    assert drawn.mean() == pytest.approx(turns.mean, rel=0.01) == pytest.approx(2.35, rel=0.01)
    assert (drawn >= 2).mean() == pytest.approx(0.421, abs=0.01)
    assert (drawn >= 5).mean() == pytest.approx(0.124, abs=0.03)


def test_no_conversation_no_request() -> None:
    assert sample_sessions(np.zeros(0, np.int64), FIXED, 0).arrival_ns.size == 0


@pytest.mark.parametrize(("single", "stop"), [(1.5, 0.5), (0.5, 0.0), (-0.1, 0.5)])
def test_wrong_probabilities_are_told(single: float, stop: float) -> None:
    with pytest.raises(InputError, match="expected probabilities"):
        TurnCounts(single, stop)
