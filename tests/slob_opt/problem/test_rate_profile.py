"""Rates over the day: where arrivals fall, and that their number stays what the even process has."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slob_opt.errors import InputError
from slob_opt.problem.arrivals import gamma, poisson
from slob_opt.problem.rate_profile import RateProfile


def test_work_by_hand() -> None:
    """Weights 0.5 and 1.5 in hours: after 30 min 900 s of work, after 1.5 h 1800 + 2700 s, after 3 h 7200 + 1800 s."""
    day = RateProfile.of_hours({8: 1.0, 9: 3.0})
    assert [day.work(t) for t in (0.0, 1800.0, 5400.0, 7200.0, 10800.0)] == [0.0, 900.0, 4500.0, 7200.0, 9000.0]


def test_arrivals_by_hand() -> None:
    """One arrival per 1800 s of work: at 1 h, 1 h 20, 1 h 40, and so on in the next period."""
    day = RateProfile.of_hours({8: 1.0, 9: 3.0})
    times = day.applied(14_400.0, lambda length_s: np.arange(0, round(length_s), 1800, dtype=np.int64) * 10**9)
    assert (times / 1e9).tolist() == [0, 3600, 4800, 6000, 7200, 10_800, 12_000, 13_200]


def test_nothing_falls_into_hours_of_weight_zero() -> None:
    day = RateProfile.scaled((0.0, 10.0, 20.0, 40.0), (0.0, 2.0, 0.0))
    times = day.applied(400.0, lambda length_s: poisson(5.0, length_s, 0)) / 1e9 % 40
    assert times.size > 100
    assert np.all((times >= 10) & (times <= 20))
    assert day.applied(5.0, lambda length_s: poisson(5.0, length_s, 0)).size == 0


def test_a_poisson_process_becomes_the_one_of_the_hours() -> None:
    day = RateProfile.of_hours({0: 1.0, 1: 4.0, 2: 1.0})
    times = day.applied(100 * 10_800.0, lambda length_s: poisson(0.5, length_s, 1))
    counts = np.bincount(times // (3600 * 10**9) % 3)
    assert counts == pytest.approx([100 * 900, 100 * 3600, 100 * 900], rel=0.02)
    in_the_peak = times[(times // (3600 * 10**9)) % 3 == 1]
    minutes = np.bincount(in_the_peak // (60 * 10**9))
    minutes = minutes[minutes > 0]
    assert minutes.var() / minutes.mean() == pytest.approx(1.0, abs=0.1)


@given(
    weights=st.lists(st.floats(0, 10), min_size=1, max_size=6).filter(lambda w: sum(w) > 0.1),
    length_s=st.floats(1.0, 1e5),
    seed=st.integers(0, 99),
)
def test_order_number_and_range(weights: list[float], length_s: float, seed: int) -> None:
    day = RateProfile.scaled(tuple(1000.0 * i for i in range(len(weights) + 1)), tuple(weights))
    even = 0

    def process(work_s: float) -> np.ndarray:
        nonlocal even
        times = gamma(0.05, 2.0, work_s, seed)
        even = times.size
        return times

    times = day.applied(length_s, process)
    assert times.size <= even <= times.size + 1  # one may fall on the very end
    assert np.all(np.diff(times) >= 0)
    assert times.size == 0 or (times[0] >= 0 and times[-1] < length_s * 1e9)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: RateProfile((0.0, 1.0), (1.0, 1.0)), "2 weights with 2 edges"),
        (lambda: RateProfile((0.0, 1.0, 1.0), (1.0, 1.0)), "must rise from 0"),
        (lambda: RateProfile((0.0, 1.0), (2.0,)), "mean 1"),
        (lambda: RateProfile((0.0, 1.0), (-1.0,)), "from 0"),
        (lambda: RateProfile.scaled((0.0, 1.0), (0.0,)), "at least one number above zero"),
        (lambda: RateProfile.of_hours({8: 1.0, 10: 1.0}), r"hours \[8, 10\] don't follow"),
    ],
)
def test_wrong_profiles_are_told(make: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        make()  # type: ignore[operator]
