"""What a driver hands over when a request is over."""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

IntArray = NDArray[np.int64]


class End(IntEnum):
    """How a request ended."""

    FINISHED = 0
    UNFINISHED = 1
    REJECTED = 2
    ABORTED = 3


class Delivery(NamedTuple):
    """A request that is over.

    Attributes
    ----------
    request
        The workload's number.
    end
        How it ended.
    pipeline
        Which served it; ``None`` when none did.
    started_ns
        When it was first in a batch; ``None`` when it never was.
    token_ns
        (T,) int64, when each token was delivered.
    reason
        Why it was rejected; empty otherwise.
    """

    request: int
    end: End
    pipeline: int | None
    started_ns: int | None
    token_ns: IntArray
    reason: str = ""

    def all_at(self, now_ns: int) -> Delivery:
        """Return the same with every token delivered at one time."""
        return self._replace(token_ns=np.full(self.token_ns.size, now_ns, np.int64))

    def cut(self) -> Delivery:
        """Return the same as one that was computed and never delivered."""
        return self._replace(end=End.UNFINISHED, token_ns=self.token_ns[:0])
