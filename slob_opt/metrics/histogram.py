"""A histogram of times with bins of nearly equal ratio: any quantile to half a per cent, in constant memory.

The bin of a time is read off its float32: the exponent and the first seven bits of the mantissa. That makes 128 bins
an octave, which are at most 0.8 % wide, for a tenth of the work of a logarithm.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from slob_opt.problem.workload import NS_PER_S

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

BINS_PER_OCTAVE = 128
"""Bins are at most ``1 / 128`` wide, relatively; the middle of one is off by half of it, 0.4 %."""

NUM_BINS = 64 * BINS_PER_OCTAVE
"""From 1 ns up to any time that int64 nanoseconds can tell; what's shorter than 1 ns shares the first bin."""

BUFFER = 8192
"""Times that are counted together; 64 KiB stay in the cache, larger ones were slower by far."""

_SHIFT = 23 - 7
_BITS_OF_ONE = 127 * BINS_PER_OCTAVE  # float32 1.0, shifted


class LogHistogram:
    """Counts of times; sum and extremes are exact to the nanosecond.

    Examples
    --------
    >>> histogram = LogHistogram()
    >>> histogram.add(np.array([0.1, 0.1, 0.4]))
    >>> histogram.count, round(histogram.mean, 3), round(histogram.quantile(0.5), 2)
    (3, 0.2, 0.1)
    """

    def __init__(self) -> None:
        self._bins = np.zeros(NUM_BINS, np.int64)
        self._buffer = np.empty(BUFFER, np.int64)
        self._fill = 0
        self._num = self._sum_ns = 0
        self._squares = 0.0
        self._least_ns, self._most_ns = np.iinfo(np.int64).max, 0

    def add(self, times_s: FloatArray) -> None:
        """Enter times, seconds, from 0; fractions of a nanosecond are dropped."""
        self.add_ns((times_s * NS_PER_S).astype(np.int64))

    def add_ns(self, times_ns: IntArray) -> None:
        """Enter times, whole nanoseconds, from 0."""
        end = self._fill + times_ns.size
        if end > BUFFER:
            self._count()
            end = times_ns.size
            if end > BUFFER:
                self._enter(times_ns)
                return
        self._buffer[self._fill : end] = times_ns
        self._fill = end

    def _count(self) -> None:
        if self._fill:
            self._enter(self._buffer[: self._fill])
            self._fill = 0

    def _enter(self, times_ns: IntArray) -> None:
        index = (times_ns.astype(np.float32).view(np.int32) >> _SHIFT) - _BITS_OF_ONE
        self._bins += np.bincount(np.maximum(index, 0), minlength=NUM_BINS)
        self._num += times_ns.size
        self._sum_ns += int(times_ns.sum())
        times = times_ns.astype(np.float64)
        self._squares += float(np.dot(times, times))
        self._least_ns = min(self._least_ns, int(times_ns.min()))
        self._most_ns = max(self._most_ns, int(times_ns.max()))

    @property
    def count(self) -> int:
        """Times entered."""
        self._count()
        return self._num

    @property
    def mean(self) -> float:
        """Mean, seconds; zero of nothing."""
        return self._sum_ns / self.count / NS_PER_S if self.count else 0.0

    @property
    def std(self) -> float:
        """Standard deviation of the population, seconds."""
        if not self.count:
            return 0.0
        return float(np.sqrt(max(0.0, self._squares / NS_PER_S**2 / self.count - self.mean**2)))

    def quantile(self, share: float) -> float:
        """Return a quantile as ``numpy.quantile`` defines it, seconds, to half a per cent; zero of nothing.

        It lies on the line between two neighbours in the order of times, each of which is told to half a per cent.
        """
        if not self.count:
            return 0.0
        place = min(max(share, 0.0), 1.0) * (self.count - 1)
        below = int(place)
        ranks = np.array([below + 1, min(below + 2, self.count)])
        index = np.searchsorted(np.cumsum(self._bins), ranks)
        low, high = np.clip(_middle_ns(index), self._least_ns, self._most_ns).tolist()
        return float(low + (place - below) * (high - low)) / NS_PER_S


def _middle_ns(index: IntArray) -> FloatArray:
    """Return the middles of bins, nanoseconds; edges are the float32s whose bits are the index."""
    octave, part = np.divmod(index, BINS_PER_OCTAVE)
    return np.asarray(np.exp2(octave) * (1 + (part + 0.5) / BINS_PER_OCTAVE))
