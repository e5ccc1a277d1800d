"""Takes requests one by one as they end, and keeps their figures: memory grows by a few numbers a request."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from slob_opt.errors import InputError
from slob_opt.metrics.histogram import LogHistogram
from slob_opt.metrics.qoe import qoe
from slob_opt.metrics.request_columns import RequestColumns, Status
from slob_opt.metrics.satisfaction import SatisfactionMeter, SatisfactionSpec
from slob_opt.problem.workload import NS_PER_S, Workload

IntArray = NDArray[np.int64]

_FLOATS = ("queueing_s", "ttft_s", "e2e_s", "tpot_s", "longest_stall_s", "satisfaction", "qoe")


class MetricsAccumulator:
    """Figures of the requests of a workload.

    Parameters
    ----------
    workload
        Requests, which are named by their number in it.
    spec
        Of satisfaction; QoE takes its tau and v. ``None`` takes the defaults.
    has_qoe
        Whether QoE is computed, which is about half of the work.

    Attributes
    ----------
    itl
        Times between tokens of all requests, seconds.
    """

    def __init__(self, workload: Workload, spec: SatisfactionSpec | None = None, *, has_qoe: bool = True) -> None:
        self.workload, self.spec, self.has_qoe = workload, spec or SatisfactionSpec(), has_qoe
        self._meter = SatisfactionMeter(self.spec)
        size = workload.num_requests
        self._status = np.full(size, Status.UNSEEN, np.int8)
        self._delivered = np.zeros(size, np.int64)
        self._floats = {name: np.full(size, np.nan) for name in _FLOATS}
        self._floats["satisfaction"][:] = 0.0
        self._floats["qoe"][:] = 0.0
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
            (T,) int64, when its tokens were delivered.

        Raises
        ------
        InputError
            When the request was entered before, or has more tokens than its true length.
        """
        w, size = self.workload, int(token_ns.size)
        if self._status[request] != Status.UNSEEN:
            raise InputError(f"request {request} was entered before")
        length = int(w.output_tokens[request])
        if size > length:
            raise InputError(f"request {request} has {size} tokens delivered, more than its {length}")
        arrival = int(w.arrival_ns[request])
        self._status[request] = status
        self._delivered[request] = size
        floats = self._floats
        if started_ns is not None:
            floats["queueing_s"][request] = (started_ns - arrival) / NS_PER_S
        if not size:
            return
        ttft = (int(token_ns[0]) - arrival) / NS_PER_S
        e2e = (int(token_ns[-1]) - arrival) / NS_PER_S
        floats["ttft_s"][request], floats["e2e_s"][request] = ttft, e2e
        if size > 1:
            floats["tpot_s"][request] = (e2e - ttft) / (size - 1)
            gaps = (token_ns[1:] - token_ns[:-1]) / NS_PER_S
            floats["longest_stall_s"][request] = np.maximum.reduce(gaps)
            self.itl.add(gaps)
        own_ttft = None if w.ttft_s is None else float(w.ttft_s[request])
        own_tpot = None if w.tpot_s is None else float(w.tpot_s[request])
        floats["satisfaction"][request] = self._meter.of(arrival, token_ns, length, own_ttft, own_tpot)
        if self.has_qoe:
            tau = self.spec.ttft_s if own_ttft is None else own_ttft
            speed = self.spec.tokens_per_s if own_tpot is None else 1 / own_tpot
            floats["qoe"][request] = qoe((token_ns - arrival) / NS_PER_S, length, tau, speed)

    def columns(self) -> RequestColumns:
        """Return the figures so far; later entries don't change what was returned."""
        return RequestColumns(
            self.workload,
            self._status.copy(),
            self._delivered.copy(),
            **{name: column.copy() for name, column in self._floats.items()},
        )
