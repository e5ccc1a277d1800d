"""When requests arrive: renewal processes, bursts, hour profiles. Each returns int64 nanoseconds from 0, not falling.

References
----------
Wang et al. 2025, BurstGPT, KDD, section 4, and Xiang et al. 2025, ServeGen, arXiv 2505.09999, section 3: gaps of real
requests are gamma or Weibull with a coefficient of variation above 1; clients come and go in bursts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq

from slob_opt.errors import InputError
from slob_opt.problem.device import require_positive
from slob_opt.problem.workload import NS_PER_S

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]

HOUR_S = 3600.0


def _renewal(rate: float, duration_s: float, gaps: Callable[[int], FloatArray]) -> IntArray:
    """Arrivals of a renewal process up to a time, its first gap whole."""
    require_positive(rate, "rate")
    require_positive(duration_s, "duration_s")
    parts: list[FloatArray] = []
    end = 0.0
    while end < duration_s:
        more = np.cumsum(gaps(max(16, math.ceil(1.1 * rate * (duration_s - end))))) + end
        parts.append(more)
        end = float(more[-1])
    times = np.concatenate(parts)
    return np.rint(times[times < duration_s] * NS_PER_S).astype(np.int64)


def poisson(rate: float, duration_s: float, rng: np.random.Generator) -> IntArray:
    """Return arrivals that know nothing of each other, at a mean rate in requests/s.

    Examples
    --------
    >>> times = poisson(2.0, 1000.0, np.random.default_rng(0))
    >>> abs(times.size - 2000) < 150
    True
    """
    return _renewal(rate, duration_s, lambda size: rng.exponential(1 / rate, size))


def gamma(rate: float, cv: float, duration_s: float, rng: np.random.Generator) -> IntArray:
    """Return arrivals with gamma gaps of a coefficient of variation; 1 is Poisson, more comes in clumps."""
    require_positive(cv, "cv")
    shape = 1 / cv**2
    return _renewal(rate, duration_s, lambda size: rng.gamma(shape, 1 / (rate * shape), size))


def weibull(rate: float, cv: float, duration_s: float, rng: np.random.Generator) -> IntArray:
    """Return arrivals with Weibull gaps of a coefficient of variation, from 0.1 to 20."""
    shape = weibull_shape(cv)
    scale = 1 / (rate * math.gamma(1 + 1 / shape))
    return _renewal(rate, duration_s, lambda size: scale * rng.weibull(shape, size))


def weibull_shape(cv: float) -> float:
    """Return the shape of a Weibull distribution of a coefficient of variation; InputError outside 0.1 to 20."""
    if not 0.1 <= cv <= 20:
        raise InputError(f"cv is {cv}, expected from 0.1 to 20")

    def excess(shape: float) -> float:
        # log of E[x^2] / E[x]^2, which is log(1 + cv^2)
        return math.lgamma(1 + 2 / shape) - 2 * math.lgamma(1 + 1 / shape) - math.log1p(cv * cv)

    return float(brentq(excess, 0.1, 30.0))


def on_off(
    on_rate: float, mean_on_s: float, mean_off_s: float, duration_s: float, rng: np.random.Generator
) -> IntArray:
    """Return an interrupted Poisson process: bursts and pauses of exponential length, requests at `on_rate` in bursts.

    The mean rate is ``on_rate * mean_on_s / (mean_on_s + mean_off_s)``. It starts in either state with its share of
    time.
    """
    for name, value in (("on_rate", on_rate), ("mean_on_s", mean_on_s), ("mean_off_s", mean_off_s)):
        require_positive(value, name)
    require_positive(duration_s, "duration_s")
    times: list[FloatArray] = []
    now, is_on = 0.0, bool(rng.random() < mean_on_s / (mean_on_s + mean_off_s))
    while now < duration_s:
        length = float(rng.exponential(mean_on_s if is_on else mean_off_s))
        if is_on:
            count = int(rng.poisson(on_rate * length))
            times.append(now + np.sort(rng.random(count)) * length)
        now += length
        is_on = not is_on
    found = np.concatenate(times) if times else np.zeros(0)
    return np.rint(found[found < duration_s] * NS_PER_S).astype(np.int64)


def hourly(rates: Mapping[int, float], duration_s: float, rng: np.random.Generator, *, first_hour: int = 0) -> IntArray:
    """Return a Poisson process whose rate changes by the hour of the day.

    Parameters
    ----------
    rates
        Requests/s of each hour from 0 to 23; hours left out have none.
    duration_s
        Length, seconds.
    first_hour
        Hour of the day at which it starts.

    Raises
    ------
    InputError
        When an hour isn't one, a rate is negative, or all are zero.
    """
    for hour, rate in rates.items():
        if not 0 <= hour <= 23 or not (math.isfinite(rate) and rate >= 0):
            raise InputError(f"hour {hour} has rate {rate}, expected an hour from 0 to 23 and a rate from 0")
    if not any(rates.values()):
        raise InputError("every hour has rate 0")
    require_positive(duration_s, "duration_s")
    parts = []
    for index in range(math.ceil(duration_s / HOUR_S)):
        rate = rates.get((first_hour + index) % 24, 0.0)
        count = int(rng.poisson(rate * HOUR_S))
        parts.append(index * HOUR_S + np.sort(rng.random(count)) * HOUR_S)
    times = np.concatenate(parts)
    return np.rint(times[times < duration_s] * NS_PER_S).astype(np.int64)


def batches(starts_ns: IntArray, mean_size: float, mean_gap_s: float, rng: np.random.Generator) -> IntArray:
    """Return arrivals in batches of geometric size, each request an exponential gap after the one before it.

    Parameters
    ----------
    starts_ns
        (B,) int64, when each batch starts.
    mean_size
        Mean number of requests of a batch, from 1.
    mean_gap_s
        Mean time between the requests of a batch, seconds.
    """
    if not mean_size >= 1:
        raise InputError(f"mean_size is {mean_size}, expected at least 1")
    require_positive(mean_gap_s, "mean_gap_s")
    sizes = rng.geometric(1 / mean_size, starts_ns.size)
    total = int(sizes.sum())
    gaps = rng.exponential(mean_gap_s * NS_PER_S, total)
    heads = np.cumsum(sizes) - sizes
    gaps[heads] = 0.0
    offsets = np.cumsum(gaps)
    offsets -= np.repeat(offsets[heads], sizes)
    return np.sort(np.repeat(starts_ns, sizes) + np.rint(offsets).astype(np.int64))
