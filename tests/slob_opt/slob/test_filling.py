"""Which prompts go into a batch."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slob_opt.slob.filling import best_rectangle


@given(st.data())
@settings(max_examples=80, deadline=None)
def test_rectangles_gain_most_per_token(data: st.DataObject) -> None:
    size = data.draw(st.integers(1, 7))
    left = np.array(data.draw(st.lists(st.integers(1, 60), min_size=size, max_size=size)))
    urgency = np.array(data.draw(st.lists(st.floats(0.01, 5.0), min_size=size, max_size=size)))
    chosen = best_rectangle(left, urgency, np.arange(size))
    rate = urgency[chosen].sum() / (chosen.size * left[chosen].max())
    best = max(
        urgency[list(members)].sum() / (len(members) * left[list(members)].max())
        for count in range(1, size + 1)
        for members in itertools.combinations(range(size), count)
    )
    assert rate == pytest.approx(best, rel=1e-6)


def test_a_rectangle_by_hand() -> None:
    # 1 for 10 tokens; 2 for 2 x 10; 2.9 for 3 x 20: the two short ones gain most, and the more of them the better.
    chosen = best_rectangle(np.array([10, 20, 10]), np.array([1.0, 0.9, 1.0]), np.arange(3))
    assert sorted(chosen.tolist()) == [0, 2]
