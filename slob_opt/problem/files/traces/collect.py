"""Rows of a trace, judged and gathered as columns."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Collection
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from slob_opt.errors import InputError
from slob_opt.problem.files.traces.faults import Row, RowFault, TraceReport, fault_of, sentence
from slob_opt.problem.files.traces.formats import TraceFormat
from slob_opt.problem.files.traces.lines import at_line
from slob_opt.problem.workload import Workload

IntArray = NDArray[np.int64]

MAX_NEW_TOKENS = 1024
"""The client's limit that requests of a trace are given, or their true length where that is longer. Chosen: the
default answer length of many clients; it is what a scheduler that reserves memory has to reckon with."""


class RowCollector:
    """Takes the rows of one trace in order of the file; then gives the workload and the report, once.

    Parameters
    ----------
    entry, file
        Format, and path for messages.
    skip
        Faults of rows that are left out instead of refused.
    max_tokens
        Most tokens of prompt and output together; ``None`` is no limit.
    is_clipping
        Whether rows over the limit have their prompt shortened.
    span_ns
        ``[first, end)`` of the rows to keep, nanoseconds; ``None`` keeps all.
    """

    def __init__(
        self,
        entry: TraceFormat,
        file: Path,
        skip: Collection[RowFault],
        max_tokens: int | None,
        is_clipping: bool,
        span_ns: tuple[int, int] | None,
    ) -> None:
        if is_clipping and (max_tokens is None or max_tokens < 2):
            raise InputError(f"clipping needs a limit of at least 2 tokens, found {max_tokens}")
        if span_ns is not None and not 0 <= span_ns[0] < span_ns[1]:
            raise InputError("the window of a trace ends before it starts, or starts before 0")
        self.num_read = 0
        self.is_past = False
        self._entry, self._file, self._span_ns = entry, file, span_ns
        self._skip = frozenset(skip) | ({RowFault.FAILED} if entry.has_failures else frozenset())
        self._max_tokens, self._is_clipping = max_tokens, is_clipping
        self._skipped: Counter[RowFault] = Counter()
        self._outside = self._clipped = 0
        self._origin_ns: int | None = 0 if entry.has_origin else None
        self._before_ns: int | None = None
        self._time, self._prompt, self._output = array("q"), array("q"), array("q")
        self._limit, self._session = array("q"), array("q")
        self._priority, self._ttft, self._tpot = array("d"), array("d"), array("d")
        self._sessions: dict[str, int] = {}

    @property
    def num_kept(self) -> int:
        """Rows that became requests so far."""
        return len(self._prompt)

    def add(self, row: Row) -> None:
        """Judge one row and keep what it says, if it's kept; sets `is_past` once a row lies behind the window.

        Raises
        ------
        InputError
            When the row has a fault that isn't skipped.
        """
        self.num_read += 1
        prompt, output = row.prompt, row.output
        fault = fault_of(row, self._before_ns, self._max_tokens, self._entry.has_failures)
        if fault is RowFault.TOO_LONG and self._is_clipping and self._max_tokens is not None:
            output = min(output, self._max_tokens - 1)
            prompt = self._max_tokens - output
        elif fault is not None:
            if fault not in self._skip:
                message = sentence(fault, row, self._before_ns, self._max_tokens)
                raise InputError(message, file=at_line(self._file, row.line))
            self._skipped[fault] += 1
            return
        if row.time_ns is not None:
            self._before_ns = row.time_ns
            if self._origin_ns is None:
                self._origin_ns = row.time_ns
            time_ns = row.time_ns - self._origin_ns
            if self._span_ns is not None:
                if not self._span_ns[0] <= time_ns < self._span_ns[1]:
                    self._outside += 1
                    self.is_past = time_ns >= self._span_ns[1]
                    return
                time_ns -= self._span_ns[0]
            self._time.append(time_ns)
        self._clipped += fault is not None
        self._prompt.append(prompt)
        self._output.append(output)
        self._keep_optional(row, output)

    def _keep_optional(self, row: Row, output: int) -> None:
        limit = MAX_NEW_TOKENS if row.max_new_tokens is None else row.max_new_tokens
        self._limit.append(limit if limit > output else output)
        if row.priority is not None:
            self._priority.append(row.priority)
        if row.ttft_s is not None:
            self._ttft.append(row.ttft_s)
        if row.tpot_s is not None:
            self._tpot.append(row.tpot_s)
        if isinstance(row.session, int):
            self._session.append(row.session)
        elif row.session is not None:
            # a blank key says nothing: the request stands alone
            key = row.session or f"\0{len(self._sessions)}"
            self._session.append(self._sessions.setdefault(key, len(self._sessions)))

    def workload(self, name: str, arrivals: Callable[[int], IntArray] | None) -> Workload:
        """Return what was kept.

        Parameters
        ----------
        name
            Of the workload.
        arrivals
            From a number of requests to their times in place of the trace's own; ``None`` keeps those.

        Raises
        ------
        InputError
            When nothing was kept.
        """
        if not self.num_kept:
            raise InputError(self._why_empty(), file=str(self._file))
        size = self.num_kept
        priority, ttft, tpot = self._floats(self._priority), self._floats(self._ttft), self._floats(self._tpot)
        return Workload(
            name=name,
            arrival_ns=_ints(self._time) if arrivals is None else arrivals(size),
            prompt_tokens=_ints(self._prompt),
            output_tokens=_ints(self._output),
            max_new_tokens=_ints(self._limit),
            priority=np.ones(size) if priority is None else priority,
            ttft_s=ttft,
            tpot_s=tpot,
            session=_ints(self._session) if len(self._session) == size else None,
        )

    def _floats(self, column: array[float]) -> NDArray[np.float64] | None:
        return np.array(column, np.float64) if len(column) == self.num_kept else None

    def _why_empty(self) -> str:
        if not self.num_read:
            return "no rows"
        reasons = [f"{rows} {fault.value}" for fault, rows in self._skipped.items()]
        reasons += [f"{self._outside} outside the window"] if self._outside else []
        return f"no rows left of {self.num_read}: {', '.join(reasons)}"

    def report(self, file: str) -> TraceReport:
        """Return what became of the rows.

        Parameters
        ----------
        file
            Path as it was given.
        """
        return TraceReport(
            file=file,
            kind=self._entry.name,
            read=self.num_read,
            kept=self.num_kept,
            outside=self._outside,
            skipped=tuple((fault, self._skipped[fault]) for fault in RowFault if self._skipped[fault]),
            clipped=self._clipped,
            has_prefix_ids=self._entry.has_prefix_ids,
        )


def _ints(column: array[int]) -> IntArray:
    return np.array(column, np.int64)
