"""A rate that changes over the day: any arrival process, run on a clock that is fast in busy hours."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from slob_opt.errors import InputError
from slob_opt.problem.arrivals import HOUR_S
from slob_opt.problem.workload import NS_PER_S

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class RateProfile:
    """Weights of the rate over a period that repeats, constant between edges; their mean over time is 1.

    A process of rate r that is :meth:`applied` has rate ``r * weight`` at each time and r on average. The gaps between
    neighbours keep their law in the stretched time, so bursts stay bursts (a Poisson process becomes the
    non-homogeneous one).

    Attributes
    ----------
    edges_s
        Seconds, rising from 0; the last one is the period.
    weights
        One less than edges, from 0, with mean 1 over time.

    References
    ----------
    Çinlar 1975, Introduction to Stochastic Processes, section 4.7: time change by the cumulative rate.

    Examples
    --------
    >>> day = RateProfile.of_hours({8: 1.0, 9: 3.0})
    >>> day.period_s, day.weights
    (7200.0, (0.5, 1.5))
    """

    edges_s: tuple[float, ...]
    weights: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.edges_s) != len(self.weights) + 1 or not self.weights:
            raise InputError(f"{len(self.weights)} weights with {len(self.edges_s)} edges, expected one edge more")
        steps = np.diff(self.edges_s)
        if self.edges_s[0] != 0 or not np.all(steps > 0) or not math.isfinite(self.edges_s[-1]):
            raise InputError("edges_s must rise from 0")
        if not all(math.isfinite(weight) and weight >= 0 for weight in self.weights):
            raise InputError("weights must be finite numbers from 0")
        if not math.isclose(float(np.dot(steps, self.weights)), self.period_s, rel_tol=1e-9):
            raise InputError("weights must have mean 1 over the period")

    @classmethod
    def scaled(cls, edges_s: tuple[float, ...], weights: tuple[float, ...]) -> RateProfile:
        """Return the profile of weights in any unit; raises InputError when all are zero."""
        mean = float(np.dot(np.diff(edges_s), weights)) / edges_s[-1] if len(edges_s) == len(weights) + 1 else 0.0
        if not mean > 0:
            raise InputError("weights must be at least one number above zero, one less than edges")
        return cls(edges_s, tuple(weight / mean for weight in weights))

    @classmethod
    def of_hours(cls, weights: Mapping[int, float]) -> RateProfile:
        """Return the profile of hours that follow each other, as 8 to 18; what lies between two days is left out.

        Raises
        ------
        InputError
            When hours are missing in between, or all weights are zero.
        """
        hours = sorted(weights)
        if not hours or hours != list(range(hours[0], hours[0] + len(hours))):
            raise InputError(f"hours {hours} don't follow each other")
        return cls.scaled(tuple(HOUR_S * i for i in range(len(hours) + 1)), tuple(weights[hour] for hour in hours))

    @property
    def period_s(self) -> float:
        """Seconds after which the profile repeats."""
        return self.edges_s[-1]

    def work(self, time_s: float) -> float:
        """Return the integral of the weight from 0 to a time, seconds."""
        whole, rest = divmod(time_s, self.period_s)
        return whole * self.period_s + float(np.interp(rest, self.edges_s, self._cumulative()))

    def _cumulative(self) -> FloatArray:
        """(len(edges_s),) float64, seconds of work up to each edge."""
        return np.concatenate([[0.0], np.cumsum(np.diff(self.edges_s) * self.weights)])

    def applied(self, duration_s: float, process: Callable[[float], IntArray]) -> IntArray:
        """Return the arrivals of a process under this profile, (N,) int64 nanoseconds in ``[0, duration_s)``.

        Parameters
        ----------
        duration_s
            Length, seconds.
        process
            From a duration in seconds to arrivals in nanoseconds, at an even rate.
        """
        total = self.work(duration_s)
        if total <= 0:
            return np.zeros(0, np.int64)
        whole, rest = np.divmod(process(total) / NS_PER_S, self.period_s)
        cumulative = self._cumulative()
        # side="right" passes over steps of weight 0, where no time is to be found
        step = np.searchsorted(cumulative[:-1], rest, side="right") - 1
        step = np.minimum(step, np.flatnonzero(self.weights)[-1])
        times = (
            whole * self.period_s
            + np.asarray(self.edges_s)[step]
            + (rest - cumulative[step]) / np.asarray(self.weights)[step]
        )
        ns = np.floor(times * NS_PER_S).astype(np.int64)
        return np.maximum.accumulate(ns[ns < round(duration_s * NS_PER_S)])
