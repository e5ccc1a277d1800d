"""Lines of a trace file, packed or not, one at a time."""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, cast

from slob_opt.errors import InputError

MAX_LINE_BYTES = 2**22
"""Longest line that is read. Chosen: far above a Mooncake row of a million tokens, or a distribution of ServeGen."""

PUBLIC_TRACES = (
    "public traces are at github.com/Azure/AzurePublicDataset, HPMLL/BurstGPT, kvcache-ai/Mooncake and"
    " alibaba/ServeGen; a small one ships with slob as 'example'"
)
"""What to do where a trace is missing; none of the public ones is ours to ship."""


def lines_of(path: Path) -> Iterator[tuple[int, str]]:
    """Yield numbered lines, from 1, without their ends; gzip is unpacked on the way. Blank lines are left out.

    Raises
    ------
    InputError
        When the file can't be read, is cut short, isn't UTF-8 text, or a line is longer than `MAX_LINE_BYTES`.
    """
    number = 0
    try:
        with _opened(path) as stream:
            while line := stream.readline(MAX_LINE_BYTES + 1):
                number += 1
                if len(line) > MAX_LINE_BYTES:
                    raise InputError(f"the line is longer than {MAX_LINE_BYTES} bytes", file=at_line(path, number))
                text = line.decode("utf-8-sig" if number == 1 else "utf-8").strip()
                if text:
                    yield number, text
    except FileNotFoundError as error:
        raise InputError(f"no such file; {PUBLIC_TRACES}", file=str(path)) from error
    except IsADirectoryError as error:
        raise InputError("this is a folder, expected a file", file=str(path)) from error
    except (OSError, EOFError, zlib.error) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else "damaged or cut short"
        after = f" after line {number}" if number else ""
        raise InputError(f"the file can't be read: {reason}{after}", file=str(path)) from error
    except UnicodeDecodeError as error:
        raise InputError("the line is not UTF-8 text", file=at_line(path, number)) from error


def first_line(path: Path, lines: Iterator[tuple[int, str]]) -> tuple[int, str]:
    """Return the first line that isn't blank; raises InputError when there is none."""
    for found in lines:
        return found
    raise InputError("no rows", file=str(path))


def _opened(path: Path) -> BinaryIO:
    """Open a file for reading, unpacked; packed ones are known by their first two bytes, whatever they are called."""
    with path.open("rb") as stream:
        is_packed = stream.read(2) == b"\x1f\x8b"
    if is_packed:
        return cast(BinaryIO, io.BufferedReader(cast(io.RawIOBase, gzip.open(path, "rb"))))
    return path.open("rb")


def at_line(path: Path, line: int | None) -> str:
    """Return how errors name a line; ``None`` names the file alone."""
    return str(path) if line is None else f"{path}:{line}"
