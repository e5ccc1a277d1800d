"""Lines of a trace file, packed or not, and what becomes of its rows."""

from __future__ import annotations

import gzip
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, TextIO

from slob_opt.errors import InputError
from slob_opt.problem.catalogue.lookup import nearest


class Row(NamedTuple):
    """One request of a trace.

    Attributes
    ----------
    line
        Line of the file, from 1.
    time
        Seconds on the trace's own clock; ``None`` where the format has no times.
    prompt, output
        Tokens.
    """

    line: int
    time: float | None
    prompt: int
    output: int


@dataclass(slots=True)
class TraceReport:
    """What was read and what was left out.

    Attributes
    ----------
    file
        Name of the file.
    kind
        Name of the format.
    read, kept
        Rows.
    skipped
        Rows left out, by reason.
    """

    file: str
    kind: str
    read: int = 0
    kept: int = 0
    skipped: Counter[str] = field(default_factory=Counter)


def lines_of(path: Path) -> Iterator[tuple[int, str]]:
    """Yield numbered lines without their ends; ``.gz`` is unpacked on the way. Blank lines are left out.

    Raises
    ------
    InputError
        When the file can't be read, is damaged, or isn't text.
    """
    try:
        with _opened(path) as stream:
            for number, line in enumerate(stream, start=1):
                text = line.strip()
                if text:
                    yield number, text
    except (OSError, EOFError, zlib.error) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else "damaged or cut short"
        raise InputError(f"can't be read: {reason}", file=str(path)) from error
    except UnicodeDecodeError as error:
        raise InputError("isn't text", file=str(path)) from error


def _opened(path: Path) -> TextIO:
    """Open a file for reading, unpacked; a byte order mark is dropped."""
    if path.suffix == ".gz":
        return gzip.open(path, "rt", encoding="utf-8-sig")
    return path.open(encoding="utf-8-sig")


def at_line(path: Path, line: int) -> str:
    """Return how errors name a line."""
    return f"{path}:{line}"


def columns_of(path: Path, line: int, header: str, wanted: Sequence[str]) -> list[int]:
    """Return the positions of the wanted columns in a comma-separated header; raises InputError when one is missing."""
    found = [name.strip() for name in header.split(",")]
    for name in wanted:
        if name not in found:
            close = nearest(name, found, 1)
            hint = f"; the nearest is {close[0]!r}" if close else ""
            raise InputError(f"column {name!r} is missing{hint}", file=at_line(path, line))
    return [found.index(name) for name in wanted]


def whole(path: Path, line: int, name: str, text: str) -> int:
    """Return a count of tokens; raises InputError when the text is none."""
    try:
        value = float(text)
        if value != int(value) or value < 0:
            raise ValueError
    except (ValueError, OverflowError):
        raise InputError(f"{name} is {text!r}, expected a whole number from 0", file=at_line(path, line)) from None
    return int(value)


def number(path: Path, line: int, name: str, text: str) -> float:
    """Return a time; raises InputError when the text is no finite number."""
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if value - value != 0:
        raise InputError(f"{name} is {text!r}, expected a number", file=at_line(path, line))
    return value
