"""From a trace file to a workload."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from slob_opt.errors import InputError
from slob_opt.problem.catalogue.lookup import unknown
from slob_opt.problem.files.traces.formats import FORMATS, detect
from slob_opt.problem.files.traces.lines import Row, TraceReport, at_line
from slob_opt.problem.workload import Workload

MAX_NEW_TOKENS = 1024
"""The client's limit that requests of a trace are given, or their true length where that is longer."""


def read_trace(
    path: str | Path,
    kind: str | None = None,
    *,
    max_tokens: int | None = None,
    skips_bad_rows: bool = False,
    max_requests: int | None = None,
    arrival_s: NDArray[np.float64] | None = None,
) -> tuple[Workload, TraceReport]:
    """Return the requests of a trace, its first arrival at 0, and a report of what was left out.

    Parameters
    ----------
    path
        File; ``.gz`` is unpacked on the way.
    kind
        Name of the format; ``None`` looks at the first line.
    max_tokens
        Longest prompt with output that the model takes; ``None`` sets no limit.
    skips_bad_rows
        Whether rows without tokens, too long ones and ones that go back in time are left out and counted; otherwise
        they are errors. Failed requests of BurstGPT (no answer) are always left out and counted.
    max_requests
        Stop after so many kept rows; ``None`` reads all.
    arrival_s
        (at least as many as there are rows) seconds, for formats without times.

    Raises
    ------
    InputError
        With file and line: nothing to read, a missing column, a bad value, a row that isn't skipped.
    """
    file = Path(path)
    if kind is not None and kind not in FORMATS:
        raise unknown("trace format", kind, FORMATS)
    kind = kind or detect(file)
    report = TraceReport(file.name, kind)
    times: list[float] = []
    prompts: list[int] = []
    outputs: list[int] = []
    for row in FORMATS[kind](file):
        report.read += 1
        before = times[-1] if times else None
        reason = _fault(row, before, max_tokens)
        if reason is None:
            time = row.time
            if time is None:
                if arrival_s is None:
                    raise InputError(f"format {kind} has no times; give an arrival process", file=str(file))
                if report.kept >= arrival_s.size:
                    break
                time = float(arrival_s[report.kept])
            times.append(time)
            prompts.append(row.prompt)
            outputs.append(row.output)
            report.kept += 1
            if max_requests is not None and report.kept >= max_requests:
                break
        elif skips_bad_rows or (kind == "burstgpt" and row.output == 0):
            report.skipped["failed (no answer)" if kind == "burstgpt" and row.output == 0 else reason[0]] += 1
        else:
            raise InputError(reason[1], file=at_line(file, row.line))
    if not times:
        what = "has no request" if not report.read else f"has no request left of {report.read}"
        raise InputError(what, file=str(file))
    arrivals = np.array(times)
    workload = Workload.of(
        file.name.removesuffix(".gz"), arrivals - arrivals[0], prompts, outputs, max_new_tokens=MAX_NEW_TOKENS
    )
    return workload, report


def _fault(row: Row, before: float | None, max_tokens: int | None) -> tuple[str, str] | None:
    """Return why a row can't be a request, in short and as a sentence; ``None`` when it can."""
    if row.prompt < 1:
        return "no prompt tokens", "prompt of 0 tokens, expected at least 1"
    if row.output < 1:
        return "no output tokens", "output of 0 tokens, expected at least 1"
    if max_tokens is not None and row.prompt + row.output > max_tokens:
        return "too long for the model", f"{row.prompt} + {row.output} tokens, the model takes {max_tokens}"
    if row.time is not None and row.time < 0:
        return "negative time", f"time {row.time} s, expected at least 0"
    if row.time is not None and before is not None and row.time < before:
        return "out of order", f"time {row.time} s after {before} s, expected order of arrival"
    return None
