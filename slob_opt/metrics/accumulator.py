"""Takes requests one by one as they end, and keeps their figures: memory grows by a few numbers a request."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from slob_opt.errors import InputError
from slob_opt.metrics.histogram import LogHistogram
from slob_opt.metrics.qoe import qoe_of_reading
from slob_opt.metrics.request_columns import RequestColumns, Status
from slob_opt.metrics.satisfaction import SatisfactionMeter, SatisfactionSpec
from slob_opt.problem.workload import NS_PER_S, Workload

IntArray = NDArray[np.int64]

_FLOATS = ("queueing_s", "ttft_s", "e2e_s", "tpot_s", "longest_stall_s", "idle_s", "satisfaction", "qoe")
_ZERO_UNTIL_ENTERED = ("idle_s", "satisfaction", "qoe")
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

    Attributes
    ----------
    itl
        Times between tokens of finished requests, seconds, as vLLM has them.
    """

    def __init__(
        self, workload: Workload, spec: SatisfactionSpec | None = None, *, has_qoe: bool = True,
        end_ns: int | None = None,
    ) -> None:  # fmt: skip
        self.workload, self.spec, self.has_qoe, self.end_ns = workload, spec or SatisfactionSpec(), has_qoe, end_ns
        self._meter = SatisfactionMeter(self.spec)
        size = workload.num_requests
        self._status = np.full(size, Status.UNSEEN, np.int8)
        self._delivered = np.zeros(size, np.int64)
        self._floats = {name: np.full(size, np.nan) for name in _FLOATS}
        for name in _ZERO_UNTIL_ENTERED:
            self._floats[name][:] = 0.0
        self.itl = LogHistogram()

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
        gaps = token_ns[1:] - token_ns[:-1]
        if size > 1 and gaps.item(gaps.argmin()) < 0:  # argmin is quicker than min
            raise InputError(f"request {request} has a token from before the one that precedes it")
        if (state == _FINISHED and size < length) or (state == _REJECTED and size):
            raise InputError(f"request {request} is {status.name.lower()} with {size} of its {length} tokens")
        if started_ns is not None and started_ns < arrival:
            raise InputError(f"request {request} started before it arrived")
        self._status[request], self._delivered[request] = state, size
        if started_ns is not None:
            self._floats["queueing_s"][request] = (started_ns - arrival) / NS_PER_S
        last = token_ns.item(size - 1) if size else arrival
        end = last if self.end_ns is None or state != _UNFINISHED else max(last, self.end_ns)
        if size:
            self._enter_times(request, token_ns, gaps, arrival, end)
            if state == _FINISHED and size > 1:
                self.itl.add_ns(gaps)
        self._enter_worth(request, state, token_ns, arrival, end)

    def _enter_times(self, request: int, token_ns: IntArray, gaps: IntArray, arrival: int, end: int) -> None:
        """Enter latencies and the longest stall of a request that has tokens."""
        floats, size = self._floats, token_ns.size
        first, last = token_ns.item(0), token_ns.item(size - 1)
        floats["ttft_s"][request] = (first - arrival) / NS_PER_S
        floats["e2e_s"][request] = (last - arrival) / NS_PER_S
        stall = end - last
        if size > 1:
            floats["tpot_s"][request] = (last - first) / NS_PER_S / (size - 1)
            stall = max(stall, gaps.item(gaps.argmax()))
        if size > 1 or stall:
            floats["longest_stall_s"][request] = stall / NS_PER_S

    def _enter_worth(self, request: int, state: int, token_ns: IntArray, arrival: int, end: int) -> None:
        """Enter idle time, satisfaction and QoE. All come from how late tokens are, which is computed once."""
        w, meter, floats, size = self.workload, self._meter, self._floats, token_ns.size
        length = w.output_tokens.item(request)
        tpot_s = None if w.tpot_s is None else w.tpot_s.item(request)
        patience_s = self.spec.ttft_s if w.ttft_s is None else w.ttft_s.item(request)
        step = NS_PER_S / self.spec.tokens_per_s if tpot_s is None else tpot_s * NS_PER_S
        due = arrival + patience_s * NS_PER_S
        worst = end - due - size * step if state == _UNFINISHED else 0.0
        is_timely = True
        if size:
            offsets = meter.offsets_ns(size, tpot_s)
            lead = token_ns - offsets  # when the first token had to be due for this one to be in time
            latest = lead.item(lead.argmax()) - due
            worst, is_timely = max(worst, latest), latest <= 0
        floats["idle_s"][request] = max(worst, 0.0) / NS_PER_S
        if not size or state == _FAILED:
            return
        floats["satisfaction"][request] = (
            meter.of_timely(size, length) if is_timely else meter.of_late(lead - due, length)
        )
        if not self.has_qoe:
            return
        if is_timely and size == length:
            floats["qoe"][request] = 1.0
        else:
            read = np.maximum.accumulate(lead) + offsets
            floats["qoe"][request] = qoe_of_reading(read, length, due, step, end)

    def columns(self) -> RequestColumns:
        """Return the figures so far; later entries don't change what was returned."""
        return RequestColumns(
            self.workload,
            self._status.copy(),
            self._delivered.copy(),
            **{name: column.copy() for name, column in self._floats.items()},
        )
