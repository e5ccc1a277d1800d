"""Writing a workload as a file of our own format, which reads back equal to the last nanosecond.

Reading is :func:`slob_opt.problem.files.traces.read.read_trace`, as for every other format.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from slob_opt.errors import InputError
from slob_opt.problem.files.checking import SCHEMA_VERSION
from slob_opt.problem.files.documents import write_pieces
from slob_opt.problem.files.traces.own import COLUMNS, KIND
from slob_opt.problem.workload import Workload

_ROWS = 10_000
"""Rows that are made at a time."""


def workload_suffix(path: Path) -> str:
    """Return ``.csv`` or ``.jsonl``, which a file's name ends with, before ``.gz`` if that stands last.

    Raises
    ------
    InputError
        When the name ends otherwise.
    """
    plain = path.with_suffix("") if path.suffix.lower() == ".gz" else path
    suffix = plain.suffix.lower()
    if suffix not in (".csv", ".jsonl"):
        raise InputError("expected a name that ends with .csv, .jsonl, .csv.gz or .jsonl.gz", file=str(path))
    return suffix


def write_workload(path: Path, workload: Workload, *, progress: Callable[[int], None] | None = None) -> None:
    """Write a workload, whole or not at all; the same workload gives the same bytes.

    Parameters
    ----------
    path
        File to write; its name chooses the format and whether it's packed, see :func:`workload_suffix`.
    workload
        What is written; columns that are ``None`` are left out.
    progress
        Called now and then with the number of rows written; ``None`` tells nobody.

    Raises
    ------
    InputError
        When the name ends otherwise, or the file can't be written; nothing is left behind.
    """
    header = json.dumps({"schema_version": SCHEMA_VERSION, "kind": KIND, "name": workload.name}, ensure_ascii=False)
    columns = {name: column for name in COLUMNS if (column := _column(workload, name)) is not None}
    if workload_suffix(path) == ".csv":
        pieces = _csv(header, columns, workload.num_requests, progress)
    else:
        pieces = _jsonl(header, columns, workload.num_requests, progress)
    write_pieces(path, pieces, is_packed=path.suffix.lower() == ".gz")


def _column(workload: Workload, name: str) -> Any:
    """Return a column; priorities that are all 1 say nothing and are left out."""
    column = getattr(workload, name)
    return None if name == "priority" and (column == 1.0).all() else column


def _chunks(columns: dict[str, Any], size: int, progress: Callable[[int], None] | None) -> Iterator[list[Any]]:
    """Yield some rows at a time as plain Python numbers, whose text is exact."""
    for start in range(0, size, _ROWS):
        yield list(zip(*(column[start : start + _ROWS].tolist() for column in columns.values()), strict=True))
        if progress is not None:
            progress(min(size, start + _ROWS))


def _csv(header: str, columns: dict[str, Any], size: int, progress: Callable[[int], None] | None) -> Iterator[str]:
    yield f"# {header}\n{','.join(columns)}\n"
    for rows in _chunks(columns, size, progress):
        yield "".join(f"{','.join(map(repr, row))}\n" for row in rows)


def _jsonl(header: str, columns: dict[str, Any], size: int, progress: Callable[[int], None] | None) -> Iterator[str]:
    yield f"{header}\n"
    for rows in _chunks(columns, size, progress):
        yield "".join(f"{json.dumps(dict(zip(columns, row, strict=True)))}\n" for row in rows)
