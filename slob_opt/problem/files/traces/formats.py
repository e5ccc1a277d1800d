"""The formats by name, and which one a file is in."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from slob_opt.errors import InputError
from slob_opt.problem.catalogue.lookup import nearest
from slob_opt.problem.files.traces import azure, mooncake, own, servegen, tables
from slob_opt.problem.files.traces.cells import columns_of
from slob_opt.problem.files.traces.faults import Row
from slob_opt.problem.files.traces.lines import at_line, lines_of


@dataclass(frozen=True, slots=True)
class TraceFormat:
    """One format.

    Attributes
    ----------
    name
        What users call it.
    rows
        Yields the rows of a file; ``None`` for ServeGen, whose requests are sampled.
    columns
        Names in the first line of a table; empty for other kinds of files.
    has_times
        Whether requests have times of arrival.
    has_failures
        Whether an answer of 0 tokens is a request that failed.
    has_prefix_ids
        Whether rows say which prompts share their beginnings.
    has_origin
        Whether times count from the start of the workload; otherwise the first request that is kept sets the clock
        to 0.
    """

    name: str
    rows: Callable[[Path], Iterator[Row]] | None
    columns: tuple[str, ...] = ()
    has_times: bool = True
    has_failures: bool = False
    has_prefix_ids: bool = False
    has_origin: bool = False


SERVEGEN = TraceFormat("servegen", None, has_origin=True)

FORMATS = {
    entry.name: entry
    for entry in (
        TraceFormat("azure", azure.rows, azure.COLUMNS),
        TraceFormat("burstgpt", tables.burstgpt, tables.BURSTGPT, has_failures=True),
        TraceFormat("mooncake", mooncake.rows, has_prefix_ids=True, has_origin=True),
        SERVEGEN,
        TraceFormat("vidur", tables.vidur, tables.VIDUR, has_times=False),
        TraceFormat("slob-csv", own.table, has_origin=True),
        TraceFormat("slob-jsonl", own.jsonl, has_origin=True),
    )
}
"""Every format by name."""


def format_names() -> tuple[str, ...]:
    """Return the names of all formats."""
    return tuple(FORMATS)


def find_format(name: str) -> TraceFormat:
    """Return a format by name; raises InputError when there is none, with the nearest."""
    if name not in FORMATS:
        near = nearest(name, FORMATS, 1)
        hint = f"did you mean {near[0]}?" if near else f"expected one of {', '.join(FORMATS)}"
        raise InputError(f"no trace format {name!r}; {hint}")
    return FORMATS[name]


def detect(path: Path) -> str:
    """Return the name of the format that the first line of a file is in.

    Raises
    ------
    InputError
        When the file is empty, in no known format, or nearly in one: then with the column that is missing.
    """
    if path.is_dir() or servegen.TRACE_NAME.fullmatch(path.name):
        return "servegen"
    for line, text in lines_of(path):
        if text.startswith("#"):
            return "slob-csv"
        if text.startswith("{"):
            return "slob-jsonl" if '"schema_version"' in text else "mooncake"
        return _table_format(path, line, text)
    raise InputError("no rows", file=str(path))


def _table_format(path: Path, line: int, text: str) -> str:
    """The table whose columns a header has; when none fits, the one that it looks most like tells what is missing."""
    header = [name.strip() for name in text.split(",")]

    def likeness(entry: TraceFormat) -> int:
        exact = sum(name in header for name in entry.columns)
        return 10 * exact + sum(bool(nearest(name, entry.columns, 1)) for name in header if name not in entry.columns)

    tables_ = [entry for entry in FORMATS.values() if entry.columns]
    best = max(tables_, key=likeness)
    if likeness(best) < 2:
        raise InputError(
            f"found {text[:60]!r}, expected the first line of a known format ({', '.join(FORMATS)})",
            file=at_line(path, line),
        )
    columns_of(path, line, header, best.columns)
    return best.name
