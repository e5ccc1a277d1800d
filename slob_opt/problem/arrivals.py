"""When requests arrive: renewal processes, bursts, hour profiles. Each returns int64 nanoseconds from 0, not falling.

Where a function takes `rng`, a generator or a seed will do; the same seed gives the same arrivals.

References
----------
Wang et al. 2025, BurstGPT, KDD, section 4, and Xiang et al. 2025, ServeGen, arXiv 2505.09999, section 3: gaps of real
requests are gamma or Weibull with a coefficient of variation above 1; clients come and go in bursts. Interrupted
Poisson process: Kuczura 1973, "The interrupted Poisson process as an overflow process", Bell System Technical Journal
52(3). Start of a renewal process in equilibrium: Cox 1962, Renewal Theory, chapter 5.
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

Seed = np.random.Generator | int
"""A generator, or the seed of a new one."""

HOUR_S = 3600.0

MAX_DURATION_S = 2e9
"""Longest time that arrivals are made for, seconds: 63 years. Chosen: nanoseconds fit 64 bits four times over."""

MAX_BURSTS = 10_000_000
"""Most bursts of an on/off process. Chosen: some ten seconds of work."""


def _renewal(
    rate: float, duration_s: float, gaps: Callable[[int], FloatArray], first_s: float | None = None
) -> IntArray:
    """Arrivals of a renewal process up to a time; the first one at `first_s`, or after a whole gap where it's None."""
    require_positive(rate, "rate")
    require_positive(duration_s, "duration_s")
    parts: list[FloatArray] = [] if first_s is None else [np.array([first_s])]
    end = first_s or 0.0
    while end < duration_s:
        more = np.cumsum(gaps(max(16, math.ceil(1.1 * rate * (duration_s - end))))) + end
        parts.append(more)
        end = float(more[-1])
    times = np.concatenate(parts)
    return np.rint(times[times < duration_s] * NS_PER_S).astype(np.int64)


def poisson(rate: float, duration_s: float, rng: Seed) -> IntArray:
    """Return arrivals that know nothing of each other, at a mean rate in requests/s.

    Examples
    --------
    >>> times = poisson(2.0, 1000.0, 0)
    >>> abs(times.size - 2000) < 150
    True
    """
    rng = np.random.default_rng(rng)
    require_positive(rate, "rate")
    return _renewal(rate, duration_s, lambda size: rng.exponential(1 / rate, size))


def gamma(rate: float, cv: float, duration_s: float, rng: Seed, *, is_stationary: bool = False) -> IntArray:
    """Return arrivals with gamma gaps of a coefficient of variation; 1 is Poisson, more comes in clumps.

    Parameters
    ----------
    rate, cv, duration_s
        Mean rate, requests/s; standard deviation over mean of the gaps; length, seconds.
    rng
        Generator or seed.
    is_stationary
        Whether the process runs since ever when the clock starts, so that the expected number of arrivals is exactly
        rate x duration; otherwise the first gap is a whole one, which adds about ``(cv^2 - 1) / 2`` arrivals.
    """
    rng = np.random.default_rng(rng)
    require_positive(cv, "cv")
    require_positive(rate, "rate")
    shape = 1 / cv**2
    scale = 1 / (rate * shape)
    # The gap that covers the start has density ~ length x density of a gap: gamma again, of a shape one higher.
    first = float(rng.gamma(shape + 1, scale) * rng.random()) if is_stationary else None
    return _renewal(rate, duration_s, lambda size: rng.gamma(shape, scale, size), first)


def weibull(rate: float, cv: float, duration_s: float, rng: Seed, *, is_stationary: bool = False) -> IntArray:
    """Return arrivals with Weibull gaps of a coefficient of variation, from 0.1 to 20; parameters as :func:`gamma`."""
    rng = np.random.default_rng(rng)
    shape = weibull_shape(cv)
    require_positive(rate, "rate")
    scale = 1 / (rate * math.gamma(1 + 1 / shape))
    # With lengths as weights, (gap / scale)^shape is gamma of shape 1 + 1/shape instead of exponential.
    first = float(scale * rng.gamma(1 + 1 / shape) ** (1 / shape) * rng.random()) if is_stationary else None
    return _renewal(rate, duration_s, lambda size: scale * rng.weibull(shape, size), first)


def weibull_shape(cv: float) -> float:
    """Return the shape of a Weibull distribution of a coefficient of variation; InputError outside 0.1 to 20."""
    if not 0.1 <= cv <= 20:
        raise InputError(f"cv is {cv}, expected from 0.1 to 20")

    def excess(shape: float) -> float:
        # log of E[x^2] / E[x]^2, which is log(1 + cv^2)
        return math.lgamma(1 + 2 / shape) - 2 * math.lgamma(1 + 1 / shape) - math.log1p(cv * cv)

    return float(brentq(excess, 0.1, 30.0))


def on_off(on_rate: float, mean_on_s: float, mean_off_s: float, duration_s: float, rng: Seed) -> IntArray:
    """Return an interrupted Poisson process: bursts and pauses of exponential length, requests at `on_rate` in bursts.

    The mean rate is ``on_rate * mean_on_s / (mean_on_s + mean_off_s)``. It starts in either state with its share of
    time.
    """
    for name, value in (("on_rate", on_rate), ("mean_on_s", mean_on_s), ("mean_off_s", mean_off_s)):
        require_positive(value, name)
    require_positive(duration_s, "duration_s")
    if duration_s > MAX_BURSTS * (mean_on_s + mean_off_s):
        raise InputError(f"more than {MAX_BURSTS:,} bursts in {duration_s:g} s; take longer bursts or less time")
    rng = np.random.default_rng(rng)
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


def hourly(rates: Mapping[int, float], duration_s: float, rng: Seed, *, first_hour: int = 0) -> IntArray:
    """Return a Poisson process whose rate changes by the hour of the day.

    For other processes and other steps than hours see :class:`slob_opt.problem.rate_profile.RateProfile`.

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
    rng = np.random.default_rng(rng)
    parts = []
    for index in range(math.ceil(duration_s / HOUR_S)):
        rate = rates.get((first_hour + index) % 24, 0.0)
        count = int(rng.poisson(rate * HOUR_S))
        parts.append(index * HOUR_S + np.sort(rng.random(count)) * HOUR_S)
    times = np.concatenate(parts)
    return np.rint(times[times < duration_s] * NS_PER_S).astype(np.int64)


def batches(starts_ns: IntArray, mean_size: float, mean_gap_s: float, rng: Seed) -> IntArray:
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
    rng = np.random.default_rng(rng)
    sizes = rng.geometric(1 / mean_size, starts_ns.size)
    total = int(sizes.sum())
    gaps = rng.exponential(mean_gap_s * NS_PER_S, total)
    heads = np.cumsum(sizes) - sizes
    gaps[heads] = 0.0
    offsets = np.cumsum(gaps)
    offsets -= np.repeat(offsets[heads], sizes)
    return np.sort(np.repeat(starts_ns, sizes) + np.rint(offsets).astype(np.int64))


def first_arrivals(count: int, rate: float, process: Callable[[float], IntArray]) -> IntArray:
    """Return the first arrivals of a process, for lengths that come without times.

    Parameters
    ----------
    count
        How many, from 1.
    rate
        Mean rate of the process, requests/s; says how long it has to run.
    process
        From a duration in seconds to the arrivals in it. It must give the same ones on each call with the same
        duration: close over a seed, not over a generator.

    Examples
    --------
    >>> first_arrivals(3, 2.0, lambda duration_s: poisson(2.0, duration_s, 7)).size
    3
    """
    require_positive(rate, "rate")
    duration, found = (1.2 * count + 10) / rate, 0
    while duration < MAX_DURATION_S:
        times = process(duration)
        if times.size >= count:
            return times[:count]
        duration, found = 2 * duration, times.size
    raise InputError(f"{count} requests don't come within {MAX_DURATION_S:g} s at {rate:g} requests/s; found {found}")
