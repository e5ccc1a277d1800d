"""From a trace file to a workload."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from slob_opt.errors import InputError
from slob_opt.problem.files.traces import own, servegen
from slob_opt.problem.files.traces.collect import RowCollector
from slob_opt.problem.files.traces.faults import Row, RowFault, TraceReport
from slob_opt.problem.files.traces.formats import TraceFormat, detect, find_format
from slob_opt.problem.workload import NS_PER_S, Workload

PROGRESS_ROWS = 50_000
"""Rows between two calls of `progress`."""


def read_trace(
    path: str | Path,
    kind: str | None = None,
    *,
    skip: Collection[RowFault] = (),
    max_tokens: int | None = None,
    is_clipping: bool = False,
    max_requests: int | None = None,
    window_s: tuple[float, float] | None = None,
    arrivals: Callable[[int], NDArray[np.int64]] | None = None,
    seed: int = 0,
    progress: Callable[[int], None] | None = None,
) -> tuple[Workload, TraceReport]:
    """Return the requests of a trace and a report of what became of its rows.

    Rows are read one by one; what is kept of each is its numbers (and each conversation's key), not its text.

    Parameters
    ----------
    path
        File; gzip is unpacked on the way. A folder for ServeGen.
    kind
        Name of the format; ``None`` looks at the first line.
    skip
        Faults of rows that are left out and counted instead of refused. Failed requests of BurstGPT always are.
    max_tokens
        Most tokens of prompt and output together that the model takes; ``None`` sets no limit. A simulation that
        should run whatever the trace holds skips :attr:`RowFault.TOO_LONG`; a server would refuse such a request.
    is_clipping
        Whether prompts of rows over `max_tokens` are shortened until they fit, and counted. The output keeps its
        length, or the limit less one.
    max_requests
        Stop after so many kept rows; ``None`` reads all.
    window_s
        Only requests in ``[first, end)``, seconds from the first row (from the start of the workload where times count
        from there); the window's start becomes 0. ``None`` takes all.
    arrivals
        From a number of requests to that many times, int64 nanoseconds from 0, not falling; in place of the trace's
        own times. Needed for formats without times.
    seed
        Of the sampling of ServeGen; no other format draws anything.
    progress
        Called now and then with the number of rows read; ``None`` tells nobody.

    Raises
    ------
    InputError
        With file and line: nothing to read, a missing column, a bad value, a row that isn't skipped.
    """
    file = Path(path)
    entry = find_format(kind or detect(file))
    if not entry.has_times and window_s is not None:
        raise InputError(f"format {entry.name} has no times to cut a window from", file=str(file))
    if not entry.has_times and arrivals is None:
        raise InputError(f"format {entry.name} has no times; name an arrival process, as poisson", file=str(file))
    span_ns = None if window_s is None else (round(window_s[0] * NS_PER_S), round(window_s[1] * NS_PER_S))
    collector = RowCollector(entry, file, skip, max_tokens, is_clipping, span_ns)
    for row in _rows(entry, file, seed, span_ns):
        collector.add(row)
        if progress is not None and collector.num_read % PROGRESS_ROWS == 0:
            progress(collector.num_read)
        if collector.is_past or (max_requests is not None and collector.num_kept >= max_requests):
            break
    name = own.name_of(file) if entry.name.startswith("slob-") else file.name.removesuffix(".gz")
    return collector.workload(name, arrivals), collector.report(str(path))


def _rows(entry: TraceFormat, file: Path, seed: int, span_ns: tuple[int, int] | None) -> Iterator[Row]:
    return servegen.rows(file, seed, span_ns) if entry.rows is None else entry.rows(file)
