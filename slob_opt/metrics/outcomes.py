"""What became of each request, token by token: the record from which all figures can be computed again.

A record keeps 8 bytes a token, so it's for studies of up to some hundred thousand requests and for changing metrics
afterwards. Longer runs hand requests to :class:`MetricsAccumulator` as they end and keep no tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from slob_opt.errors import InputError
from slob_opt.metrics.accumulator import MetricsAccumulator
from slob_opt.metrics.request_columns import Status
from slob_opt.metrics.satisfaction import SatisfactionSpec
from slob_opt.metrics.window import Window
from slob_opt.problem.workload import Workload

BoolArray = NDArray[np.bool_]
IntArray = NDArray[np.int64]

_ENDS = tuple(status for status in Status if status is not Status.UNSEEN)


@dataclass(frozen=True, slots=True)
class Outcome:
    """A request that is over.

    Attributes
    ----------
    request
        Its number in the workload.
    status
        How it ended.
    pipeline
        Which served it; ``None`` when none did.
    started_ns
        When a token of it was first computed, nanoseconds; ``None`` when none was.
    token_ns
        (T,) int64, when each of its output tokens was delivered, nanoseconds.
    """

    request: int
    status: Status
    pipeline: int | None
    started_ns: int | None
    token_ns: IntArray


@dataclass(frozen=True, slots=True)
class Outcomes:
    """What became of N requests, and when each of their T output tokens was delivered.

    Attributes
    ----------
    workload
        The N requests.
    status
        (N,) int8, :class:`Status`, none of them UNSEEN.
    pipeline
        (N,) int64, which pipeline served it; means nothing where it isn't placed.
    is_placed
        (N,) bool, whether a pipeline got it.
    started_ns
        (N,) int64, when a token of it was first computed; means nothing where none was.
    is_started
        (N,) bool, whether a token of it was computed.
    token_ns
        (T,) int64, delivery of output tokens, request after request, nanoseconds; not falling within a request.
    token_start
        (N + 1,) int64: request i has tokens ``[token_start[i], token_start[i + 1])``.
    end_ns
        End of the observation, nanoseconds; nothing was delivered later.

    Raises
    ------
    InputError
        When columns don't fit together; the message names the first request that is wrong.

    Examples
    --------
    >>> w = Workload.of("two", [0.0, 1.0], [100, 20], [3, 5])
    >>> first = Outcome(0, Status.FINISHED, 0, 10, np.array([100, 200, 300]))
    >>> second = Outcome(1, Status.REJECTED, None, None, np.zeros(0, np.int64))
    >>> record = Outcomes.of(w, [first, second], 2_000_000_000)
    >>> record.num_tokens.tolist(), record.tokens_of(0).tolist()
    ([3, 0], [100, 200, 300])
    """

    workload: Workload
    status: NDArray[np.int8]
    pipeline: IntArray
    is_placed: BoolArray
    started_ns: IntArray
    is_started: BoolArray
    token_ns: IntArray
    token_start: IntArray
    end_ns: int

    def __post_init__(self) -> None:
        size = self.workload.num_requests
        for name in ("status", "pipeline", "is_placed", "started_ns", "is_started"):
            shape = getattr(self, name).shape
            if shape != (size,):
                raise InputError(f"{name} has shape {shape}, expected {(size,)}")
        if self.token_start.shape != (size + 1,) or self.token_ns.ndim != 1:
            raise InputError(
                f"token_start has shape {self.token_start.shape} and token_ns {self.token_ns.shape},"
                f" expected {(size + 1,)} and one dimension"
            )
        if self.token_start[0] != 0 or self.token_start[-1] != self.token_ns.size or np.any(self.num_tokens < 0):
            raise InputError(f"token_start doesn't rise from 0 to the {self.token_ns.size} tokens there are")
        self._check_states()
        self._check_times()
        for name in ("status", "pipeline", "is_placed", "started_ns", "is_started", "token_ns", "token_start"):
            getattr(self, name).setflags(write=False)

    def _check_states(self) -> None:
        """Raise InputError where status, placement and number of tokens contradict each other."""
        status, num, length = self.status, self.num_tokens, self.workload.output_tokens
        is_whole = num == length
        for is_wrong, what in (
            (~np.isin(status, _ENDS), "has a status that tells no end"),
            (num > length, "has more tokens delivered than its true length"),
            ((status == Status.FINISHED) & ~is_whole, "is finished without all of its tokens"),
            ((status == Status.UNFINISHED) & is_whole, "is unfinished with all of its tokens"),
            ((status == Status.REJECTED) & (self.is_started | (num > 0)), "is rejected and was computed"),
            ((num > 0) & ~self.is_started, "has tokens and never started"),
            (self.is_started & ~self.is_placed, "started on no pipeline"),
            (self.is_placed & (self.pipeline < 0), "is placed on a pipeline below 0"),
        ):
            _refuse(is_wrong, what)

    def _check_times(self) -> None:
        """Raise InputError where a time comes before one that must precede it."""
        arrival, num = self.workload.arrival_ns, self.num_tokens
        _refuse(self.is_started & (self.started_ns < arrival), "started before it arrived")
        _refuse(self.is_started & (self.started_ns > self.end_ns), "started after the end of the observation")
        some = np.flatnonzero(num > 0)
        if not some.size:
            return
        is_early = np.zeros(num.size, dtype=bool)
        is_early[some] = self.token_ns[self.token_start[some]] < self.started_ns[some]
        _refuse(is_early, "has a token from before it started")
        falls = np.flatnonzero(np.diff(self.token_ns) < 0) + 1
        falls = falls[~np.isin(falls, self.token_start)]  # where a request begins, times may fall
        if falls.size:
            request = int(np.searchsorted(self.token_start, falls[0], side="right")) - 1
            raise InputError(f"request {request} has a token from before the one that precedes it")
        is_late = np.zeros(num.size, dtype=bool)
        is_late[some] = self.token_ns[self.token_start[some + 1] - 1] > self.end_ns
        _refuse(is_late, "has a token from after the end of the observation")

    @classmethod
    def of(cls, workload: Workload, outcomes: Sequence[Outcome], end_ns: int) -> Outcomes:
        """Return the record of requests in any order; raises InputError unless each is there once.

        Parameters
        ----------
        workload
            The requests.
        outcomes
            One for each request.
        end_ns
            End of the observation, nanoseconds.
        """
        size = workload.num_requests
        order = sorted(outcomes, key=lambda outcome: outcome.request)
        if [outcome.request for outcome in order] != list(range(size)):
            raise InputError(f"{len(order)} outcomes don't name each of {size} requests once")
        counts = np.array([outcome.token_ns.size for outcome in order], np.int64)
        return cls(
            workload,
            np.array([outcome.status for outcome in order], np.int8),
            np.array([0 if outcome.pipeline is None else outcome.pipeline for outcome in order], np.int64),
            np.array([outcome.pipeline is not None for outcome in order]),
            np.array([0 if outcome.started_ns is None else outcome.started_ns for outcome in order], np.int64),
            np.array([outcome.started_ns is not None for outcome in order]),
            np.concatenate([outcome.token_ns for outcome in order]).astype(np.int64),
            np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
            end_ns,
        )

    @property
    def num_tokens(self) -> IntArray:
        """(N,) int64, tokens that were delivered."""
        return np.diff(self.token_start)

    def tokens_of(self, request: int) -> IntArray:
        """Return (T_i,) int64, when the tokens of a request were delivered, nanoseconds."""
        return self.token_ns[self.token_start[request] : self.token_start[request + 1]]

    def take(self, index: IntArray) -> Outcomes:
        """Return the record of some requests, renumbered from 0; `index` must be ascending."""
        parts = [self.tokens_of(int(request)) for request in index]
        return Outcomes(
            self.workload.take(index),
            self.status[index],
            self.pipeline[index],
            self.is_placed[index],
            self.started_ns[index],
            self.is_started[index],
            np.concatenate([np.zeros(0, np.int64), *parts]),
            np.concatenate([[0], np.cumsum(self.num_tokens[index])]).astype(np.int64),
            self.end_ns,
        )

    def accumulate(
        self, spec: SatisfactionSpec | None = None, *, has_qoe: bool = True, window: Window | None = None
    ) -> MetricsAccumulator:
        """Return an accumulator that took all requests: the same figures as if it had been there.

        Parameters
        ----------
        spec
            Of satisfaction; ``None`` takes the defaults.
        has_qoe
            Whether QoE is computed.
        window
            Arrivals whose times between tokens are taken; ``None`` is all.
        """
        found = MetricsAccumulator(self.workload, spec, has_qoe=has_qoe, end_ns=self.end_ns, window=window)
        for request in range(self.workload.num_requests):
            started = int(self.started_ns[request]) if self.is_started[request] else None
            found.add(request, Status(int(self.status[request])), started, self.tokens_of(request))
        return found


def _refuse(is_wrong: BoolArray, what: str) -> None:
    """Raise InputError that names the first request that is wrong."""
    bad = np.flatnonzero(is_wrong)
    if bad.size:
        raise InputError(f"request {bad[0]} {what}")
