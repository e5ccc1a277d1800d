"""Arrival processes against their means, variations and dispersion."""

from __future__ import annotations

import numpy as np
import pytest

from slob_opt.errors import InputError
from slob_opt.problem.arrivals import batches, gamma, hourly, on_off, poisson, weibull, weibull_shape

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
        (lambda: batches(np.zeros(1, np.int64), 0.5, 1.0, rng()), "mean_size is 0.5"),
    ],
)
def test_wrong_parameters_are_told(call: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        call()  # type: ignore[operator]
