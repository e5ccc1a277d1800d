"""Arrival processes against their means, variations and dispersion."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from slob_opt.errors import InputError
from slob_opt.problem.arrivals import (
    batches,
    first_arrivals,
    gamma,
    hourly,
    on_off,
    poisson,
    weibull,
    weibull_shape,
)

DAY_S = 86_400.0


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def cv(times: np.ndarray) -> float:
    gaps = np.diff(times) / 1e9
    return float(gaps.std() / gaps.mean())


@pytest.mark.parametrize(
    ("times", "expected"),
    [
        (poisson(0.5, DAY_S, rng()), 1.0),
        (gamma(0.5, 2.5, DAY_S, rng()), 2.5),
        (gamma(0.5, 0.3, DAY_S, rng()), 0.3),
        (weibull(0.5, 1.7, DAY_S, rng()), 1.7),
        (weibull(0.5, 0.5, DAY_S, rng()), 0.5),
    ],
    ids=["poisson", "gamma clumped", "gamma regular", "weibull clumped", "weibull regular"],
)
def test_rate_and_variation(times: np.ndarray, expected: float) -> None:
    assert times.size == pytest.approx(0.5 * DAY_S, rel=0.06)
    assert cv(times) == pytest.approx(expected, rel=0.06)
    assert times.dtype == np.int64
    assert np.all(np.diff(times) >= 0)
    assert 0 <= times[0] <= times[-1] < DAY_S * 1e9


def test_bursts_and_pauses() -> None:
    # The fit of Azure's code trace: on 21.9 s, off 52.8 s, 1.02 requests/s while on, 0.30 on average.
    times = on_off(1.02, 21.9, 52.8, 10 * DAY_S, rng(1))
    assert times.size / (10 * DAY_S) == pytest.approx(1.02 * 21.9 / (21.9 + 52.8), rel=0.05)
    counts = np.histogram(times / 1e9, np.arange(0, 10 * DAY_S, 60.0))[0]
    assert counts.var() / counts.mean() > 5


def test_hours_of_the_day() -> None:
    times = hourly({9: 1.0, 12: 0.25}, 48 * 3600.0, rng(2), first_hour=8)
    hour = (8 + times // (3600 * 10**9)) % 24
    assert set(hour.tolist()) == {9, 12}
    assert np.count_nonzero(hour == 9) == pytest.approx(2 * 3600, rel=0.05)
    assert np.count_nonzero(hour == 12) == pytest.approx(2 * 900, rel=0.1)


def test_batches_follow_their_start() -> None:
    starts = np.arange(500, dtype=np.int64) * 1_000 * 10**9
    times = batches(starts, 4.0, 2.0, rng(3))
    assert times.size / 500 == pytest.approx(4.0, rel=0.12)
    nearest = times - starts[np.searchsorted(starts, times, side="right") - 1]
    assert set(starts.tolist()) <= set(times.tolist())
    assert nearest.max() < 200 * 10**9
    gaps = np.diff(times)
    assert gaps[gaps < 400 * 10**9].mean() / 1e9 == pytest.approx(2.0, rel=0.1)


def test_same_seed_same_arrivals() -> None:
    assert gamma(1.0, 2.0, 500.0, rng(7)).tolist() == gamma(1.0, 2.0, 500.0, rng(7)).tolist()
    assert gamma(1.0, 2.0, 500.0, rng(7)).tolist() != gamma(1.0, 2.0, 500.0, rng(8)).tolist()


def test_a_seed_does_for_a_generator() -> None:
    calls = (
        lambda r: poisson(1.0, 500.0, r),
        lambda r: gamma(1.0, 2.0, 500.0, r),
        lambda r: weibull(1.0, 2.0, 500.0, r),
        lambda r: on_off(1.0, 20.0, 20.0, 500.0, r),
        lambda r: hourly({0: 0.5}, 500.0, r),
        lambda r: batches(np.arange(9, dtype=np.int64), 3.0, 2.0, r),
    )
    for call in calls:
        assert call(7).tolist() == call(rng(7)).tolist() != call(8).tolist()


@pytest.mark.parametrize("process", [gamma, weibull])
def test_a_process_that_runs_since_ever_has_its_rate_from_the_start(process: Callable[..., np.ndarray]) -> None:
    """Means over 400 short runs of 20 expected arrivals; begun with a whole gap there would be (3^2 - 1)/2 = 4 more."""
    settled = np.mean([process(0.2, 3.0, 100.0, seed, is_stationary=True).size for seed in range(400)])
    begun = np.mean([process(0.2, 3.0, 100.0, seed).size for seed in range(400)])
    # standard deviation of a count about sqrt(9 x 20) = 13, of the mean of 400 0.7
    assert settled == pytest.approx(20.0, abs=2.0)
    assert 2.0 < begun - settled < 6.0


def test_the_first_arrivals_are_those_of_the_process() -> None:
    def process(duration_s: float) -> np.ndarray:
        return on_off(1.0, 2.0, 50.0, duration_s, 11)

    times = first_arrivals(200, 1.0 * 2 / 52, process)
    assert times.size == 200
    assert np.all(np.diff(times) >= 0)
    with pytest.raises(InputError, match=r"3 requests don't come within 2e\+09 s at 1 requests/s; found 0"):
        first_arrivals(3, 1.0, lambda duration_s: np.zeros(0, np.int64))


@pytest.mark.parametrize("value", [0.1, 1.0, 3.0, 20.0])
def test_weibull_shapes(value: float) -> None:
    from math import gamma as g

    shape = weibull_shape(value)
    assert g(1 + 2 / shape) / g(1 + 1 / shape) ** 2 - 1 == pytest.approx(value**2, rel=1e-6)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: poisson(0.0, 10.0, rng()), "rate"),
        (lambda: poisson(1.0, -1.0, rng()), "duration_s"),
        (lambda: gamma(1.0, 0.0, 10.0, rng()), "cv"),
        (lambda: weibull(1.0, 50.0, 10.0, rng()), "cv is 50.0, expected from 0.1 to 20"),
        (lambda: hourly({24: 1.0}, 10.0, rng()), "hour 24 has rate 1.0"),
        (lambda: hourly({3: 0.0}, 10.0, rng()), "every hour has rate 0"),
        (lambda: on_off(1.0, 1e-6, 1e-6, 1e3, rng()), "more than 10,000,000 bursts"),
        (lambda: batches(np.zeros(1, np.int64), 0.5, 1.0, rng()), "mean_size is 0.5"),
    ],
)
def test_wrong_parameters_are_told(call: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        call()  # type: ignore[operator]
