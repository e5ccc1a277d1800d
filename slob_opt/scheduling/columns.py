"""Requests that a scheduler holds, as columns indexed by slot; a slot is used again once its request is gone."""

from __future__ import annotations

from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slob_opt.scheduling.records import Arrival

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]


class State(IntEnum):
    """Where a request is.

    ``WAITING`` has no KV; ``RUNNING`` holds KV in a lane; ``PREEMPTED`` lost its KV and waits to compute prompt and
    generated tokens again. A request that holds KV but computes nothing in an iteration is paused: it's RUNNING and not
    in the batch.
    """

    FREE = 0
    WAITING = 1
    PREEMPTED = 2
    RUNNING = 3


_COLUMNS: dict[str, type[np.generic]] = {
    "request": np.int64,
    "arrival_ns": np.int64,
    "prompt": np.int64,
    "max_new": np.int64,
    "priority": np.float64,
    "ttft_s": np.float64,
    "tpot_s": np.float64,
    "state": np.int8,
    "pipeline": np.int64,
    "lane": np.int64,
    "place": np.int64,
    "cached": np.int64,
    "generated": np.int64,
    "left": np.int64,
    "blocks": np.int64,
    "started_ns": np.int64,
    "last_token_ns": np.int64,
    "predicted": np.float64,
}


_NOWHERE = -(1 << 40)
_NAN = float("nan")
_WAITING, _FREE = int(State.WAITING), int(State.FREE)


def waiting_at(pipeline: int) -> int:
    """Return the `place` of a request that waits, or was preempted, at a pipeline."""
    return -1 - pipeline


def running_at(pipeline: int, lane: int) -> int:
    """Return the `place` of a request that holds KV in a lane."""
    return (pipeline << 20) + lane


class RequestColumns:
    """Read-only columns of all slots, and the scheduler's way to change them.

    Attributes
    ----------
    request
        The caller's number of the request.
    arrival_ns
        Nanoseconds.
    prompt, max_new
        Prompt length and the client's limit of new tokens.
    priority
        Weight, above zero.
    ttft_s, tpot_s
        Service targets, seconds; NaN where the metric's defaults hold (a column can't hold ``None``).
    state
        :class:`State`.
    pipeline, lane
        Where it is; meaningless while it is FREE, and the lane while it isn't RUNNING.
    place
        Where it is, in one number for quick comparisons: see :func:`waiting_at` and :func:`running_at`.
    cached
        Tokens whose keys and values are in memory.
    generated
        Tokens delivered.
    left
        Tokens known and not cached: prompt + generated - cached. A request that decodes has one.
    blocks
        KV blocks held.
    started_ns, last_token_ns
        When it was first in a batch, and when its last token was delivered; meaningless before.
    predicted
        Predicted output length, tokens; NaN without a predictor.
    arrays
        The arrays behind the columns by name, which the scheduler alone may write.

    Notes
    -----
    The arrays are views that can't be written through, and they show later changes: a policy must not keep them from
    one decision to the next, since growing replaces them.
    """

    request: IntArray
    arrival_ns: IntArray
    prompt: IntArray
    max_new: IntArray
    priority: FloatArray
    ttft_s: FloatArray
    tpot_s: FloatArray
    state: NDArray[np.int8]
    pipeline: IntArray
    lane: IntArray
    place: IntArray
    cached: IntArray
    generated: IntArray
    left: IntArray
    blocks: IntArray
    started_ns: IntArray
    last_token_ns: IntArray
    predicted: FloatArray

    def __init__(self, capacity: int = 256) -> None:
        self.arrays: dict[str, NDArray[Any]] = {name: np.zeros(capacity, kind) for name, kind in _COLUMNS.items()}
        self.arrays["place"][:] = _NOWHERE
        self._free = list(range(capacity - 1, -1, -1))
        self._show()

    def _show(self) -> None:
        for name, column in self.arrays.items():
            view = column.view()
            view.setflags(write=False)
            setattr(self, name, view)

    @property
    def capacity(self) -> int:
        """Number of slots."""
        return int(self.state.size)

    def enter(self, arrival: Arrival, now_ns: int, pipeline: int) -> int:
        """Put a new request, which waits at a pipeline, into a free slot; return the slot."""
        slot = self.take()
        own = self.arrays
        own["request"][slot] = arrival.request
        own["arrival_ns"][slot] = now_ns
        own["prompt"][slot] = own["left"][slot] = arrival.prompt
        own["max_new"][slot] = arrival.max_new
        own["priority"][slot] = arrival.priority
        own["ttft_s"][slot] = _NAN if arrival.ttft_s is None else arrival.ttft_s
        own["tpot_s"][slot] = _NAN if arrival.tpot_s is None else arrival.tpot_s
        own["predicted"][slot] = _NAN if arrival.predicted is None else arrival.predicted
        own["state"][slot] = _WAITING
        own["pipeline"][slot] = pipeline
        own["place"][slot] = -1 - pipeline
        own["cached"][slot] = own["generated"][slot] = own["blocks"][slot] = 0
        own["started_ns"][slot] = own["last_token_ns"][slot] = -1
        return slot

    def arrival_of(self, slot: int) -> Arrival:
        """Return the request of a slot as its client sent it."""
        ttft_s, tpot_s, predicted = (float(column[slot]) for column in (self.ttft_s, self.tpot_s, self.predicted))
        return Arrival(
            self.request.item(slot), self.prompt.item(slot), self.max_new.item(slot), self.priority.item(slot),
            None if np.isnan(ttft_s) else ttft_s, None if np.isnan(tpot_s) else tpot_s,
            None if np.isnan(predicted) else predicted,
        )  # fmt: skip

    def take(self) -> int:
        """Return a free slot, growing the columns when there is none."""
        if not self._free:
            size = self.capacity
            self.arrays = {
                name: np.concatenate([column, np.zeros_like(column)]) for name, column in self.arrays.items()
            }
            self.arrays["place"][size:] = _NOWHERE
            self._free = list(range(2 * size - 1, size - 1, -1))
            self._show()
        return self._free.pop()

    def release(self, slot: int) -> None:
        """Give a slot back."""
        self.arrays["state"][slot] = _FREE
        self.arrays["place"][slot] = _NOWHERE
        self._free.append(slot)
