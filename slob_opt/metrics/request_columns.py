"""What is kept of each request: one number a column, never its tokens."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from slob_opt.problem.workload import Workload

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


class Status(IntEnum):
    """How a request ended. UNSEEN ones were never handed over, so nothing came of them."""

    FINISHED = 0
    UNFINISHED = 1
    REJECTED = 2
    ABORTED = 3
    FAILED = 4
    UNSEEN = 5


@dataclass(frozen=True, slots=True)
class RequestColumns:
    """Figures of N requests.

    Attributes
    ----------
    workload
        The requests.
    status
        (N,) int8, :class:`Status`.
    delivered
        (N,) int64, tokens that came.
    queueing_s
        (N,) float64, from arrival until it was first in a batch; NaN where it never was.
    ttft_s, e2e_s
        (N,) float64, from arrival to the first token and to the last one that came; NaN without a token.
    tpot_s
        (N,) float64, ``(e2e - ttft) / (delivered - 1)``; NaN with fewer than two tokens.
    longest_stall_s
        (N,) float64, longest time between two tokens, the first one's wait not included, and of a request that was cut
        off also from its last token to the end of the observation; NaN where there is no such time.
    idle_s
        (N,) float64, seconds that a reader at speed v sat without anything to read, tau at the start not counted.
    satisfaction
        (N,) float64 from 0 to 1; zero where nothing came, and of failed requests.
    qoe
        The same of Andes' quality of experience; ``None`` where it wasn't computed.
    """

    workload: Workload
    status: NDArray[np.int8]
    delivered: IntArray
    queueing_s: FloatArray
    ttft_s: FloatArray
    e2e_s: FloatArray
    tpot_s: FloatArray
    longest_stall_s: FloatArray
    idle_s: FloatArray
    satisfaction: FloatArray
    qoe: FloatArray | None

    @property
    def counts(self) -> NDArray[np.bool_]:
        """(N,) requests that metrics count: all but those that their client aborted."""
        return np.asarray(self.status != Status.ABORTED)

    @property
    def num_finished(self) -> int:
        """Requests whose last token came."""
        return int(np.count_nonzero(self.status == Status.FINISHED))
