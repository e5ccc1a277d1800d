"""QoE's closed form against numeric integration, and the values the metric is known by."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slob_opt.metrics.qoe import digest_times, qoe, qoe_of_reading

K = np.arange(100)
BROKEN = 1 + 0.1 * K + np.where(K >= 50, 10.0, 0.0)


@pytest.mark.parametrize(
    ("token_s", "expected"),
    [(np.full(100, 30.0), 0.0), (1 + 0.1 * K, 1.0), (20 + 0.1 * K, 0.127), (BROKEN, 0.834)],
    ids=["all at once", "on time", "late", "broken"],
)
def test_known_values(token_s: np.ndarray, expected: float) -> None:
    assert round(qoe(token_s, 100, 1.0, 4.8), 3) == expected


def curve(starts: np.ndarray, speed: float, at: np.ndarray) -> np.ndarray:
    """Tokens read at some times: each grows from 0 to 1 over 1 / v from its start."""
    return np.clip((at[:, None] - starts[None, :]) * speed, 0.0, 1.0).sum(axis=1)


@given(st.lists(st.floats(0, 3), min_size=1, max_size=25), st.floats(0.1, 3), st.floats(0.5, 20))
@settings(max_examples=60, deadline=None)
def test_is_the_ratio_of_areas(gaps: list[float], ttft: float, speed: float) -> None:
    token_s = np.cumsum(gaps)
    at = np.linspace(0.0, token_s[-1], 20_001)
    actual = np.trapezoid(curve(digest_times(token_s, speed), speed, at), at)
    ideal = np.trapezoid(curve(ttft + np.arange(token_s.size) / speed, speed, at), at)
    expected = 1.0 if ideal <= 1e-9 else min(1.0, actual / ideal)
    assert qoe(token_s, token_s.size, ttft, speed) == pytest.approx(expected, abs=2e-3)


@given(st.lists(st.floats(0, 3), min_size=1, max_size=25), st.floats(0.5, 20))
def test_a_reader_never_reads_ahead_or_too_fast(gaps: list[float], speed: float) -> None:
    token_s = np.cumsum(gaps)
    read = digest_times(token_s, speed)
    assert np.all(read >= token_s - 1e-12)
    assert np.all(np.diff(read) >= 1 / speed - 1e-9)


def test_nothing_delivered() -> None:
    assert qoe(np.zeros(0), 5, 1.0, 5.0) == 0.0


def test_the_unit_of_time_does_not_matter() -> None:
    read = digest_times(20 + 0.1 * K, 4.8)
    assert qoe_of_reading(read, 100, 1.0, 1 / 4.8, 29.9) == pytest.approx(0.127, abs=5e-4)
    assert qoe_of_reading(read * 1e9, 100, 1e9, 1e9 / 4.8, 29.9e9) == pytest.approx(0.127, abs=5e-4)
