"""A histogram of times with bins of equal ratio: any quantile to half a per cent, in constant memory."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]

RATIO = 1.01
"""Ratio of neighbouring bin edges; a value is told to half of it, 0.5 %."""

LEAST_S = 1e-7
"""Smallest time that is told apart, seconds."""

NUM_BINS = 2600
"""Bins: up to ``LEAST_S * RATIO ** 2600``, which is five hours."""


class LogHistogram:
    """Counts of times; sum and extremes are exact.

    Examples
    --------
    >>> histogram = LogHistogram()
    >>> histogram.add(np.array([0.1, 0.1, 0.4]))
    >>> histogram.count, round(histogram.mean, 3), round(histogram.quantile(0.5), 2)
    (3, 0.2, 0.1)
    """

    def __init__(self) -> None:
        self._bins = np.zeros(NUM_BINS, np.int64)
        self._pending: list[FloatArray] = []
        self._num_pending = 0
        self._num = 0
        self._sum = self._squares = 0.0
        self._least, self._most = np.inf, 0.0

    def add(self, times_s: FloatArray) -> None:
        """Enter times, seconds, from 0. The array must not change afterwards: it's counted with others, later."""
        self._pending.append(times_s)
        self._num_pending += times_s.size
        if self._num_pending > 50_000:
            self._count()

    def _count(self) -> None:
        if not self._num_pending:
            return
        times_s = np.concatenate(self._pending)
        self._pending, self._num_pending = [], 0
        index = (np.log(np.maximum(times_s, LEAST_S)) - _LOG_LEAST) * _PER_LOG
        self._bins += np.bincount(np.minimum(index.astype(np.int64), NUM_BINS - 1), minlength=NUM_BINS)
        self._num += int(times_s.size)
        self._sum += float(times_s.sum())
        self._squares += float(np.dot(times_s, times_s))
        self._least = min(self._least, float(times_s.min()))
        self._most = max(self._most, float(times_s.max()))

    @property
    def count(self) -> int:
        """Times entered."""
        self._count()
        return self._num

    @property
    def mean(self) -> float:
        """Mean, seconds; zero of nothing."""
        return self._sum / self.count if self.count else 0.0

    @property
    def std(self) -> float:
        """Standard deviation of the population, seconds."""
        if not self.count:
            return 0.0
        return float(np.sqrt(max(0.0, self._squares / self.count - self.mean**2)))

    def quantile(self, share: float) -> float:
        """Return the time that a share of all is at or below, seconds, to half a per cent; zero of nothing."""
        if not self.count:
            return 0.0
        rank = min(max(int(np.ceil(share * self.count)), 1), self.count)
        index = int(np.searchsorted(np.cumsum(self._bins), rank))
        middle = LEAST_S * RATIO ** (index + 0.5)
        return float(min(max(middle, self._least), self._most))


_LOG_LEAST = float(np.log(LEAST_S))
_PER_LOG = float(1 / np.log(RATIO))
