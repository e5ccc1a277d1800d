"""Takes requests one by one as they end, and keeps their figures: memory grows by a few numbers a request.

Times of tokens wait in a buffer of fixed size until there are enough to work on many requests at once.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from slob_opt.errors import InputError
from slob_opt.metrics.answers import Answers, first_due_ns, gaps_ns, step_ns, times_s, worth
from slob_opt.metrics.histogram import LogHistogram
from slob_opt.metrics.request_columns import RequestColumns, Status
from slob_opt.metrics.satisfaction import SatisfactionMeter, SatisfactionSpec
from slob_opt.metrics.window import Window
from slob_opt.problem.workload import NS_PER_S, Workload

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

BUFFER = 8_192
"""Tokens that are worked on together, some 30 answers. With twice as many, arrays are so large that each is taken from
and given back to the system, which costs more than the work."""

_FLOATS = ("queueing_s", "ttft_s", "e2e_s", "tpot_s", "longest_stall_s")
_ZERO_UNTIL_ENTERED = ("idle_s", "satisfaction")
_UNSEEN, _FINISHED, _UNFINISHED, _REJECTED, _FAILED = (
    int(status) for status in (Status.UNSEEN, Status.FINISHED, Status.UNFINISHED, Status.REJECTED, Status.FAILED)
)


class MetricsAccumulator:
    """Figures of the requests of a workload.

    Parameters
    ----------
    workload
        Requests, which are named by their number in it.
    spec
        Of satisfaction; QoE takes its tau and v. ``None`` takes the defaults.
    has_qoe
        Whether QoE is computed, which is about a third of the work where tokens are late.
    end_ns
        End of the observation, nanoseconds: what was cut off then stalls until then. ``None`` takes the last token of
        each request that was cut off, so that a stall that never ended isn't seen.
    window
        Arrivals whose times between tokens enter :attr:`itl`, so that they go with a summary of the same window;
        ``None`` is all. Columns are of all requests all the same.
    """

    def __init__(
        self, workload: Workload, spec: SatisfactionSpec | None = None, *, has_qoe: bool = True,
        end_ns: int | None = None, window: Window | None = None,
    ) -> None:  # fmt: skip
        self.workload, self.spec, self.has_qoe, self.end_ns = workload, spec or SatisfactionSpec(), has_qoe, end_ns
        self._meter = SatisfactionMeter(self.spec)
        size = workload.num_requests
        self._status = np.full(size, Status.UNSEEN, np.int8)
        self._delivered = np.zeros(size, np.int64)
        names = (*_FLOATS, *_ZERO_UNTIL_ENTERED, "qoe") if has_qoe else (*_FLOATS, *_ZERO_UNTIL_ENTERED)
        self._floats = {name: np.full(size, np.nan if name in _FLOATS else 0.0) for name in names}
        self._first_due, self._step = first_due_ns(workload, self.spec), step_ns(workload, self.spec)
        self._in_window = None if window is None else window.holds(workload)
        self._itl = LogHistogram()
        self._tokens = np.empty(BUFFER, np.int64)
        self._fill = 0
        self._pending: list[int] = []

    @property
    def itl(self) -> LogHistogram:
        """Times between tokens of finished requests, seconds, as vLLM has them."""
        self._work()
        return self._itl

    def add(self, request: int, status: Status, started_ns: int | None, token_ns: IntArray) -> None:
        """Enter a request that is over.

        Parameters
        ----------
        request
            Its number in the workload.
        status
            How it ended.
        started_ns
            When it was first in a batch, nanoseconds; ``None`` when it never was.
        token_ns
            (T,) int64, when its tokens were delivered, not falling.

        Raises
        ------
        InputError
            When there is no such request, it was entered before or started before it arrived, its tokens are out of
            order or don't fit how it ended: a finished one has all of its true length, a rejected one none.
        """
        w, size, state = self.workload, token_ns.size, int(status)
        if not 0 <= request < self._status.size:
            raise InputError(f"request {request} isn't one of the {self._status.size} of the workload")
        if state == _UNSEEN:
            raise InputError(f"request {request} is entered as unseen, expected how it ended")
        if self._status.item(request) != _UNSEEN:
            raise InputError(f"request {request} was entered before")
        length, arrival = w.output_tokens.item(request), w.arrival_ns.item(request)
        if size > length:
            raise InputError(f"request {request} has {size} tokens delivered, more than its {length}")
        if size and token_ns.item(0) < arrival:
            raise InputError(f"request {request} has a token from before it arrived")
        if size > 1 and (gaps := token_ns[1:] - token_ns[:-1]).item(gaps.argmin()) < 0:  # argmin is quicker than min
            raise InputError(f"request {request} has a token from before the one that precedes it")
        if (state == _FINISHED and size < length) or (state == _REJECTED and size):
            raise InputError(f"request {request} is {status.name.lower()} with {size} of its {length} tokens")
        if started_ns is not None and started_ns < arrival:
            raise InputError(f"request {request} started before it arrived")
        self._status[request], self._delivered[request] = state, size
        if started_ns is not None:
            self._floats["queueing_s"][request] = (started_ns - arrival) / NS_PER_S
        if not size:
            if state == _UNFINISHED and self.end_ns is not None:
                waited = max(arrival, self.end_ns) - self._first_due.item(request)
                self._floats["idle_s"][request] = max(waited, 0.0) / NS_PER_S
            return
        end = self._fill + size
        if end > BUFFER:
            self._work()
            end = size
            if size > BUFFER:
                self._enter([request], token_ns)
                return
        self._tokens[self._fill : end] = token_ns
        self._fill = end
        self._pending.append(request)

    def _work(self) -> None:
        """Work on what waits in the buffer."""
        if self._pending:
            self._enter(self._pending, self._tokens[: self._fill])
            self._pending, self._fill = [], 0

    def _enter(self, requests: list[int], token_ns: IntArray) -> None:
        """Enter the figures of requests that have tokens, laid one after the other."""
        index = np.array(requests, np.int64)
        w, state, sizes = self.workload, self._status[index], self._delivered[index]
        is_open = state == _UNFINISHED
        end = token_ns[np.cumsum(sizes) - 1]
        if self.end_ns is not None:
            end = np.where(is_open, np.maximum(end, self.end_ns), end)
        answers = Answers(
            token_ns, sizes, w.output_tokens[index], w.arrival_ns[index], self._first_due[index], self._step[index],
            end, is_open,
        )  # fmt: skip
        gaps, is_gap = gaps_ns(answers)
        for name, values in times_s(answers, gaps).items():
            self._floats[name][index] = values
        for name, values in worth(answers, self._meter, has_qoe=self.has_qoe).items():
            self._floats[name][index] = values if name == "idle_s" else np.where(state == _FAILED, 0.0, values)
        is_told = state == _FINISHED
        if self._in_window is not None:
            is_told = is_told & self._in_window[index]
        if is_told.any():
            self._itl.add_ns(gaps[is_gap] if is_told.all() else gaps[is_gap & np.repeat(is_told, sizes)])

    def columns(self) -> RequestColumns:
        """Return the figures so far; later entries don't change what was returned."""
        self._work()
        floats = {name: column.copy() for name, column in self._floats.items()}
        qoe = floats.pop("qoe", None)
        return RequestColumns(self.workload, self._status.copy(), self._delivered.copy(), **floats, qoe=qoe)
