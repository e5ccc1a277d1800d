"""The measured window: requests that arrive while a run warms up or runs dry don't count, and its bounds are told.

A burst at the start queues in a way that the steady run never does, and a run that ends with the last arrival is half
empty in its last seconds. Both bend percentiles. A window cuts by *arrival*, so that a request is in or out whatever a
policy does with it; cutting by completion would let a policy choose.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slob_opt.errors import InputError
from slob_opt.metrics.request_columns import RequestColumns
from slob_opt.problem.workload import NS_PER_S, Workload


@dataclass(frozen=True, slots=True)
class Window:
    """Arrivals in ``[first_ns, end_ns)`` count.

    Attributes
    ----------
    first_ns, end_ns
        Nanoseconds from the start of the workload.

    Raises
    ------
    InputError
        When the window is empty.

    Examples
    --------
    >>> w = Workload.of("three", [0.0, 5.0, 10.0], [1, 1, 1], [1, 1, 1])
    >>> window = Window.cut(w, warm_up_s=2.0, cool_down_s=1.0)
    >>> window.holds(w).tolist(), window.duration_s
    ([False, True, False], 7.0)
    """

    first_ns: int
    end_ns: int

    def __post_init__(self) -> None:
        if self.first_ns >= self.end_ns:
            raise InputError(f"the window from {self.first_ns} ns to {self.end_ns} ns is empty")

    @classmethod
    def cut(cls, workload: Workload, *, warm_up_s: float = 0.0, cool_down_s: float = 0.0) -> Window:
        """Return the window between the first and the last arrival without its first and last seconds.

        Raises
        ------
        InputError
            When a time is below zero or no request arrives in between.
        """
        if not (warm_up_s >= 0 and cool_down_s >= 0):
            raise InputError(f"warm-up {warm_up_s} s and cool-down {cool_down_s} s, expected at least zero")
        first = int(workload.arrival_ns[0]) + round(warm_up_s * NS_PER_S)
        # Without a cool-down the last arrival is in; with one, what arrives exactly that long before the end is out.
        end = int(workload.arrival_ns[-1]) + (1 if cool_down_s == 0 else -round(cool_down_s * NS_PER_S))
        if first >= end or not np.any((workload.arrival_ns >= first) & (workload.arrival_ns < end)):
            raise InputError(
                f"no request is left of {workload.span_s} s of arrivals without {warm_up_s} s of warm-up and"
                f" {cool_down_s} s of cool-down"
            )
        return cls(first, end)

    @property
    def duration_s(self) -> float:
        """Seconds."""
        return (self.end_ns - self.first_ns) / NS_PER_S

    def holds(self, workload: Workload) -> NDArray[np.bool_]:
        """Return (N,) whether each request counts."""
        return np.asarray((workload.arrival_ns >= self.first_ns) & (workload.arrival_ns < self.end_ns))


def columns_in(columns: RequestColumns, window: Window) -> RequestColumns:
    """Return the figures of the requests that count.

    Times between tokens aren't in columns: give the window to the accumulator whose `itl` is read.
    """
    index = np.flatnonzero(window.holds(columns.workload))
    if not index.size:
        raise InputError("no request arrives in the window")
    changed: dict[str, Any] = {
        item.name: value[index]
        for item in fields(columns)
        if isinstance(value := getattr(columns, item.name), np.ndarray)
    }
    return replace(columns, workload=columns.workload.take(index), **changed)
