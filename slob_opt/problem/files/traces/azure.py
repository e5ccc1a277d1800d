"""Azure's traces of 2023 and 2024: a date and time, and two counts of tokens.

References
----------
github.com/Azure/AzurePublicDataset, AzureLLMInferenceDataset2023.md; Patel et al. 2024, Splitwise, ISCA. The files of
2023 have seven fractional digits, no zone, lines that end in CR LF and no end of the last line; those of 2024 have a
zone, ``+00:00``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

from slob_opt.errors import InputError
from slob_opt.problem.files.traces.cells import cells_of, columns_of, tokens
from slob_opt.problem.files.traces.faults import Row
from slob_opt.problem.files.traces.lines import at_line, first_line, lines_of

COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")

_TIME = re.compile(r"(\d{4}-\d\d-\d\d \d\d:\d\d):(\d\d)(?:\.(\d{1,9}))?(Z|[+-]\d\d:\d\d)?", re.ASCII)
_WITH, _WITHOUT, _NO_TIME = "date and time with a zone", "date and time without a zone", "no time"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SECOND = timedelta(seconds=1)


def rows(path: Path) -> Iterator[Row]:
    """Yield the rows of a file; times are nanoseconds since 1970 (UTC where there is no zone)."""
    lines = lines_of(path)
    first, text = first_line(path, lines)
    header = [name.strip() for name in text.split(",")]
    at_time, at_prompt, at_output = columns_of(path, first, header, COLUMNS)
    first_form: str | None = None
    minute, minute_ns = "", 0
    for line, text in lines:
        cells = cells_of(path, line, text, len(header))
        time = cells[at_time]
        match = _TIME.fullmatch(time)
        form = form_of(time) if match is None else _WITHOUT if match.group(4) is None else _WITH
        if first_form is None:
            first_form = form
        elif form not in (first_form, _NO_TIME):
            raise InputError(
                f"TIMESTAMP mixes formats: {form} ({time!r}) after {first_form} in the lines above",
                file=at_line(path, line),
            )
        if match is None:
            raise InputError(f"TIMESTAMP is {time!r}, expected YYYY-MM-DD HH:MM:SS.fffffff", file=at_line(path, line))
        start, second, fraction, zone = match.groups()
        if start + (zone or "") != minute:  # most rows share their minute with the one above
            minute, minute_ns = start + (zone or ""), _minute_ns(path, line, time, start, zone)
        if second > "59":
            raise InputError(f"TIMESTAMP is {time!r}, which is no time", file=at_line(path, line))
        yield Row(
            line,
            minute_ns + int(second + fraction.ljust(9, "0")) if fraction else minute_ns + int(second) * 10**9,
            tokens(path, line, COLUMNS[1], cells[at_prompt]),
            tokens(path, line, COLUMNS[2], cells[at_output]),
        )


def _minute_ns(path: Path, line: int, text: str, start: str, zone: str | None) -> int:
    try:
        moment = datetime.fromisoformat(f"{start}{zone or '+00:00'}")
    except ValueError as error:
        raise InputError(f"TIMESTAMP is {text!r}, which is no time", file=at_line(path, line)) from error
    return (moment - _EPOCH) // _SECOND * 10**9


def form_of(text: str) -> str:
    """Return in words how a time is written, to tell one way from another."""
    match = _TIME.fullmatch(text)
    if match is not None:
        return _WITHOUT if match.group(4) is None else _WITH
    if re.fullmatch(r"-?\d+(\.\d*)?", text):
        return "a number"
    if re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d.*", text):
        return "date and time with a T between"
    return _NO_TIME
