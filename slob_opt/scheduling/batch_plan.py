"""What a policy decides, and the log of decisions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

IntArray = NDArray[np.int64]

NO_SLOTS: IntArray = np.zeros(0, np.int64)
NO_SLOTS.setflags(write=False)


_ONES: IntArray = np.ones(4096, np.int64)
_ONES.setflags(write=False)


def ones(size: int) -> IntArray:
    """Return (size,) int64 ones, read-only."""
    return _ONES[:size] if size <= _ONES.size else np.ones(size, np.int64)


TRUES = np.ones(4096, dtype=bool)
TRUES.setflags(write=False)


def trues(size: int) -> NDArray[np.bool_]:
    """Return (size,) bool, all true, read-only."""
    return TRUES[:size] if size <= TRUES.size else np.ones(size, dtype=bool)


def is_ones(tokens: IntArray) -> bool:
    """Return whether an array is all ones; at once when it comes from :func:`ones`."""
    return tokens.base is _ONES or bool((tokens == 1).all())


class BatchPlan(NamedTuple):
    """One iteration of one lane: how many tokens each request computes.

    Attributes
    ----------
    slots
        (B,) int64, slots of the requests in the batch.
    tokens
        (B,) int64, tokens that each computes, from 1. Prefill, chunk and decode are one thing: a request computes its
        next tokens, and gets a new one when it has computed all it knows.
    preempt
        Slots that lose their KV before the batch starts.
    idle_rows
        Rows that an engine computes for no one: members of a batch that finished and stay until it ends.
    max_repeats
        The same plan holds for this many iterations, unless a request leaves the lane or is aborted in it, blocks run
        short, or requests wait and one arrived at, left or was aborted on the pipeline. More than 1 only where each
        request computes one token.
    """

    slots: IntArray
    tokens: IntArray
    preempt: IntArray = NO_SLOTS
    idle_rows: int = 0
    max_repeats: int = 1

    @classmethod
    def decode(cls, slots: IntArray, *, max_repeats: int = 1, idle_rows: int = 0) -> BatchPlan:
        """Return the plan in which each request computes one token."""
        return cls(slots, ones(slots.size), NO_SLOTS, idle_rows, max_repeats)


@dataclass(frozen=True, slots=True)
class Decision:
    """One entry of the log.

    Attributes
    ----------
    pipeline, lane
        Where.
    requests, tokens
        The caller's numbers of the requests, and the tokens of each.
    preempted
        Requests that lost their KV.
    repeats
        How many iterations in a row of this lane were the same.
    """

    pipeline: int
    lane: int
    requests: tuple[int, ...]
    tokens: tuple[int, ...]
    preempted: tuple[int, ...] = ()
    repeats: int = 1


@dataclass(slots=True)
class _Run:
    """A decision that is still being counted."""

    pipeline: int
    lane: int
    requests: tuple[int, ...]
    tokens: tuple[int, ...]
    preempted: tuple[int, ...]
    repeats: int = 1


class DecisionLog:
    """Decisions in order, run-length encoded per lane: equal iterations in a row are one entry with a count.

    The order of entries is that of their first iterations.

    Parameters
    ----------
    is_kept
        Whether to keep anything.
    """

    def __init__(self, *, is_kept: bool = True) -> None:
        self.is_kept = is_kept
        self._runs: list[_Run] = []
        self._last: dict[tuple[int, int], _Run] = {}

    def enter(
        self, pipeline: int, lane: int, requests: IntArray, tokens: IntArray, preempted: IntArray = NO_SLOTS
    ) -> None:
        """Enter one iteration."""
        if not self.is_kept:
            return
        run = _Run(
            pipeline, lane, tuple(requests.tolist()), tuple(tokens.tolist()), tuple(preempted.tolist())
        )  # fmt: skip
        last = self._last.get((pipeline, lane))
        if last is not None and not run.preempted and (last.requests, last.tokens) == (run.requests, run.tokens):
            last.repeats += 1
            return
        self._runs.append(run)
        self._last[pipeline, lane] = run

    def repeat(self, pipeline: int, lane: int, times: int) -> None:
        """Enter the lane's last iteration `times` more."""
        if self.is_kept and times:
            self._last[pipeline, lane].repeats += times

    def __len__(self) -> int:
        """Return the number of entries."""
        return len(self._runs)

    def __iter__(self) -> Iterator[Decision]:
        """Return the entries in order."""
        for run in self._runs:
            yield Decision(run.pipeline, run.lane, run.requests, run.tokens, run.preempted, run.repeats)
