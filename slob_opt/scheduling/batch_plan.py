"""What a policy decides, and the log of decisions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from slob_opt.errors import PolicyError

IntArray = NDArray[np.int64]

NO_SLOTS: IntArray = np.zeros(0, np.int64)
NO_SLOTS.setflags(write=False)


def _no_slots() -> IntArray:
    return NO_SLOTS


@dataclass(frozen=True, slots=True)
class BatchPlan:
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
        The same plan holds for this many iterations, unless a request arrives at, leaves or is aborted on the pipeline,
        or blocks run short. More than 1 only where each request computes one token.
    """

    slots: IntArray
    tokens: IntArray
    preempt: IntArray = field(default_factory=_no_slots)
    idle_rows: int = 0
    max_repeats: int = 1

    def __post_init__(self) -> None:
        if self.slots.shape != self.tokens.shape or self.slots.ndim != 1:
            raise PolicyError(f"plan of {self.slots.shape} slots and {self.tokens.shape} token counts")
        if self.max_repeats < 1 or self.idle_rows < 0:
            raise PolicyError(f"plan with max_repeats {self.max_repeats} and {self.idle_rows} idle rows")

    @classmethod
    def decode(cls, slots: IntArray, *, max_repeats: int = 1, idle_rows: int = 0) -> BatchPlan:
        """Return the plan in which each request computes one token."""
        return cls(slots, np.ones(slots.size, np.int64), NO_SLOTS, idle_rows, max_repeats)


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
