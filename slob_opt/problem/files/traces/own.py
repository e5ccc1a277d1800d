"""Our own format, written by :func:`slob_opt.problem.files.workload_file.write_workload`: CSV or JSON lines.

The first line holds ``schema_version``, kind and name as one JSON object (after ``#`` in a CSV). Times are whole
nanoseconds from the start of the workload, so nothing is lost on the way.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from slob_opt.errors import InputError
from slob_opt.problem.catalogue.lookup import nearest
from slob_opt.problem.files.checking import VersionedSchema, check
from slob_opt.problem.files.traces.cells import MAX_NS, MAX_TOKENS, cells_of, columns_of
from slob_opt.problem.files.traces.faults import Row
from slob_opt.problem.files.traces.lines import at_line, first_line, lines_of
from slob_opt.problem.files.traces.mooncake import check_keys, json_object

NEEDED = ("arrival_ns", "prompt_tokens", "output_tokens")
OPTIONAL = ("max_new_tokens", "priority", "ttft_s", "tpot_s", "session")
COLUMNS = (*NEEDED, *OPTIONAL)
KIND = "slob-workload"

_COUNT = f"a whole number from 0 to {MAX_TOKENS:,}"
_POSITIVE = frozenset({"priority", "ttft_s", "tpot_s"})


class HeaderSchema(VersionedSchema):
    """First line of a workload file."""

    kind: Literal["slob-workload"]
    name: str


def header_of(path: Path, line: int, text: str) -> HeaderSchema:
    """Return what the first line says; raises InputError when it's none of ours, or of another version."""
    return check(HeaderSchema, json_object(path, line, text.removeprefix("#")), file=at_line(path, line))


def name_of(path: Path) -> str:
    """Return the name of the workload in a file."""
    return header_of(path, *first_line(path, lines_of(path))).name


def jsonl(path: Path) -> Iterator[Row]:
    """Yield the rows of JSON lines; every row has the keys of the first."""
    lines = lines_of(path)
    header_of(path, *first_line(path, lines))
    keys: tuple[str, ...] = ()
    for line, text in lines:
        found = json_object(path, line, text)
        check_keys(path, line, found, keys or NEEDED, keys or COLUMNS)
        keys = keys or tuple(found)
        yield _row(path, line, found)


def table(path: Path) -> Iterator[Row]:
    """Yield the rows of a CSV."""
    lines = lines_of(path)
    first, text = first_line(path, lines)
    header_of(path, first, text)
    second, text = first_line(path, lines)
    header = [name.strip() for name in text.split(",")]
    columns_of(path, second, header, NEEDED)
    for name in header:
        if name not in COLUMNS or header.count(name) > 1:
            close = nearest(name, [known for known in COLUMNS if known not in header], 1)
            hint = f"; did you mean {close[0]!r}?" if close else ""
            raise InputError(f"unknown column {name!r}{hint}", file=at_line(path, second))
    for line, text in lines:
        cells = cells_of(path, line, text, len(header))
        found = {name: _plain(cell) for name, cell in zip(header, cells, strict=True)}
        yield _row(path, line, found)


def _plain(cell: str) -> object:
    """A cell as JSON would have it; what is no number stays text, for the message."""
    if cell.isdigit() and cell.isascii() and len(cell) < 20:
        return int(cell)
    for kind in (int, float):
        try:
            return kind(cell) if "_" not in cell else cell
        except ValueError:
            continue
    return cell


def _row(path: Path, line: int, found: Mapping[str, Any]) -> Row:
    for name, value in found.items():
        if name == "arrival_ns":
            is_fit, expected = type(value) is int and abs(value) <= MAX_NS, "whole nanoseconds"
        elif name in _POSITIVE:
            is_fit, expected = type(value) in (int, float) and 0 < value < math.inf, "a number above zero"
        else:
            is_fit = type(value) is int and 0 <= value <= MAX_TOKENS
            expected = _COUNT
        if not is_fit:
            raise InputError(f"{name} is {value!r}, expected {expected}", file=at_line(path, line))
    limit, output = found.get("max_new_tokens"), found["output_tokens"]
    if limit is not None and limit < output:
        raise InputError(f"max_new_tokens is {limit}, less than output_tokens of {output}", file=at_line(path, line))
    return Row(
        line,
        found["arrival_ns"],
        found["prompt_tokens"],
        output,
        found.get("session"),
        limit,
        found.get("priority"),
        found.get("ttft_s"),
        found.get("tpot_s"),
    )
