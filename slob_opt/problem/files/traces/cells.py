"""Single values of a trace: counts of tokens, times, columns of a header. Strict, and exact to the nanosecond."""

from __future__ import annotations

import csv
import re
from collections.abc import Sequence
from decimal import Decimal, InvalidOperation
from pathlib import Path

from slob_opt.errors import InputError
from slob_opt.problem.catalogue.lookup import nearest
from slob_opt.problem.files.traces.lines import at_line

MAX_TOKENS = 1_000_000_000
"""Most tokens of a prompt or an answer. Chosen: a thousand times the longest contexts of today."""

MAX_NS = 2**62
"""Latest time, nanoseconds: 146 years. Chosen: differences of two still fit 64 bits."""

_SECONDS = re.compile(r"(-?)(\d{1,10})(?:\.(\d{0,9}))?", re.ASCII)
_NUMBER = re.compile(r"[+-]?(?:\d{1,40}\.?\d{0,40}|\.\d{1,40})(?:[eE][+-]?\d{1,3})?", re.ASCII)


def cells_of(path: Path, line: int, text: str, width: int) -> list[str]:
    """Return the cells of a comma-separated line; raises InputError unless there are `width` of them."""
    cells = text.split(",") if '"' not in text else next(csv.reader([text]))
    if len(cells) != width:
        raise InputError(f"found {len(cells)} cells, expected {width}", file=at_line(path, line))
    return cells


def columns_of(path: Path, line: int, header: Sequence[str], wanted: Sequence[str]) -> list[int]:
    """Return the positions of the wanted columns in a header.

    Raises
    ------
    InputError
        When one is missing (names what was found, and the nearest), or a name stands twice.
    """
    for name in wanted:
        if name not in header:
            close = nearest(name, [found for found in header if found not in wanted], 1)
            hint = f"; did you mean {close[0]!r} to be it?" if close else ""
            raise InputError(f"column {name} missing; found: {', '.join(header)}{hint}", file=at_line(path, line))
        if header.count(name) > 1:
            raise InputError(f"column {name} stands twice", file=at_line(path, line))
    return [header.index(name) for name in wanted]


def tokens(path: Path, line: int, name: str, text: str) -> int:
    """Return a count of tokens from text; raises InputError when it is no whole number from 0."""
    if text.isascii() and text.isdigit() and len(text) <= 10:
        value = int(text)
        if value <= MAX_TOKENS:
            return value
    raise InputError(f"{name} is {text!r}, expected a whole number from 0 to {MAX_TOKENS:,}", file=at_line(path, line))


def whole(path: Path, line: int, name: str, value: object, *, least: int = 0, most: int = MAX_TOKENS) -> int:
    """Return a whole number out of JSON; raises InputError when it is none, or out of range."""
    if type(value) is int and least <= value <= most:
        return value
    raise InputError(f"{name} is {value!r}, expected a whole number from {least} to {most:,}", file=at_line(path, line))


def ns_of_seconds(path: Path, line: int, name: str, text: str) -> int:
    """Return a time in nanoseconds from seconds in decimal digits; what lies beyond nine decimals is cut off.

    Raises
    ------
    InputError
        When the text is no finite number, or out of range.
    """
    match = _SECONDS.fullmatch(text)
    if match is not None:
        sign, seconds, fraction = match.groups()
        value = int(seconds) * 10**9 + (int(fraction.ljust(9, "0")) if fraction else 0)
        value = -value if sign else value
    else:
        value = _rare_ns(path, line, name, text)
    if abs(value) > MAX_NS:
        raise InputError(f"{name} is {text}, expected at most {MAX_NS // 10**9:,} s", file=at_line(path, line))
    return value


def _rare_ns(path: Path, line: int, name: str, text: str) -> int:
    """Spellings that are legal and seldom: exponents, many decimals."""
    try:
        if _NUMBER.fullmatch(text) is not None:
            seconds = Decimal(text)
            return int(seconds.scaleb(9)) if abs(seconds) < 10**12 else MAX_NS + 1
    except InvalidOperation:
        pass
    raise InputError(f"{name} is {text!r}, expected a number of seconds", file=at_line(path, line))
