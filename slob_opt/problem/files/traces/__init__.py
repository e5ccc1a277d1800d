"""Request traces in the formats they were published in, and in our own: strict, and read row by row.

>>> from slob_opt.problem.presets import EXAMPLE_TRACE
>>> workload, report = read_trace(EXAMPLE_TRACE)
>>> report.kind, report.kept == workload.num_requests, report.skipped
('slob-csv', True, ())
"""

from __future__ import annotations

from slob_opt.problem.files.traces.faults import RowFault, TraceReport
from slob_opt.problem.files.traces.find import find_trace
from slob_opt.problem.files.traces.formats import detect, format_names
from slob_opt.problem.files.traces.read import read_trace

__all__ = ["RowFault", "TraceReport", "detect", "find_trace", "format_names", "read_trace"]
