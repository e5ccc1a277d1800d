"""Rows of the published formats, one function a format, each streaming.

References
----------
Azure LLM inference traces 2023/2024 (Patel et al. 2024, Splitwise, ISCA); BurstGPT v1 and v2 (Wang et al. 2025, KDD);
Mooncake traces (Qin et al. 2025, FAST); request lengths of Vidur (Agrawal et al. 2024, MLSys).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

from slob_opt.errors import InputError
from slob_opt.problem.files.traces.lines import Row, at_line, columns_of, lines_of, number, whole

AZURE = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
BURSTGPT = ("Timestamp", "Request tokens", "Response tokens")
VIDUR = ("num_prefill_tokens", "num_decode_tokens")

_AZURE_TIME = re.compile(r"(\d{4}-\d\d-\d\d) (\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?([+-]\d\d:\d\d)?")


def azure(path: Path) -> Iterator[Row]:
    """Yield rows of an Azure trace: times of up to nine fractional digits, all with a zone or all without."""
    lines = lines_of(path)
    first, header = next(lines)
    at = columns_of(path, first, header, AZURE)
    zoned: bool | None = None
    for line, text in lines:
        cells = _cells(path, line, text, header)
        match = _AZURE_TIME.fullmatch(cells[at[0]].strip())
        if match is None:
            raise InputError(
                f"TIMESTAMP is {cells[at[0]]!r}, expected YYYY-MM-DD HH:MM:SS.fffffff", file=at_line(path, line)
            )
        day, time, fraction, zone = match.groups()
        if zoned is not None and zoned != (zone is not None):
            raise InputError("TIMESTAMP mixes times with and without a zone", file=at_line(path, line))
        zoned = zone is not None
        try:
            moment = datetime.fromisoformat(f"{day}T{time}{zone or '+00:00'}").astimezone(UTC)
        except ValueError:
            raise InputError(f"TIMESTAMP is {cells[at[0]]!r}, which is no time", file=at_line(path, line)) from None
        seconds = moment.timestamp() + (int(fraction.ljust(9, "0")) / 1e9 if fraction else 0.0)
        yield Row(line, seconds, whole(path, line, AZURE[1], cells[at[1]]), whole(path, line, AZURE[2], cells[at[2]]))


def burstgpt(path: Path) -> Iterator[Row]:
    """Yield rows of BurstGPT, version 1 or 2; an answer of 0 tokens is a failure, which callers count."""
    return _table(path, BURSTGPT)


def vidur(path: Path) -> Iterator[Row]:
    """Yield lengths of Vidur's processed traces, which have no times."""
    return _table(path, (None, *VIDUR))


def mooncake(path: Path) -> Iterator[Row]:
    """Yield rows of a Mooncake trace: milliseconds and lengths, one JSON object a line."""
    for line, text in lines_of(path):
        try:
            found = json.loads(text)
        except json.JSONDecodeError as error:
            raise InputError(f"isn't JSON: {error.msg}", file=at_line(path, line)) from None
        if not isinstance(found, dict):
            raise InputError(f"holds {type(found).__name__}, expected an object", file=at_line(path, line))
        for name in ("timestamp", "input_length", "output_length"):
            if name not in found:
                raise InputError(f"key {name!r} is missing", file=at_line(path, line))
        yield Row(
            line, number(path, line, "timestamp", str(found["timestamp"])) / 1e3,
            whole(path, line, "input_length", str(found["input_length"])),
            whole(path, line, "output_length", str(found["output_length"])),
        )  # fmt: skip


def _table(path: Path, names: tuple[str | None, str, str]) -> Iterator[Row]:
    """Rows of a comma-separated table with a column of seconds (or none) and two of tokens."""
    lines = lines_of(path)
    first, header = next(lines)
    at = columns_of(path, first, header, [name for name in names if name is not None])
    for line, text in lines:
        cells = _cells(path, line, text, header)
        time = None if names[0] is None else number(path, line, names[0], cells[at[0]])
        prompt, output = (
            whole(path, line, name, cells[index]) for name, index in zip(names[1:], at[-2:], strict=True) if name
        )
        yield Row(line, time, prompt, output)


def _cells(path: Path, line: int, text: str, header: str) -> list[str]:
    cells = text.split(",")
    expected = header.count(",") + 1
    if len(cells) != expected:
        raise InputError(f"has {len(cells)} cells, the header {expected}", file=at_line(path, line))
    return cells


FORMATS: dict[str, Callable[[Path], Iterator[Row]]] = {
    "azure": azure,
    "burstgpt": burstgpt,
    "mooncake": mooncake,
    "vidur": vidur,
}


def detect(path: Path) -> str:
    """Return the name of the format that the first line of a file is in; raises InputError when it's none or empty."""
    for line, text in lines_of(path):
        if text.startswith("{"):
            return "mooncake"
        found = {cell.strip() for cell in text.split(",")}
        for kind, names in (("azure", AZURE), ("burstgpt", BURSTGPT), ("vidur", VIDUR)):
            if len(found & set(names)) >= min(2, len(names)):
                return kind
        raise InputError(
            f"starts with {text[:60]!r}, which is no trace in a known format ({', '.join(FORMATS)})",
            file=at_line(path, line),
        )
    raise InputError("is empty", file=str(path))
