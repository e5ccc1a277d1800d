"""Mooncake's traces: one JSON object a line, with the blocks of the prompt as ids.

References
----------
github.com/kvcache-ai/Mooncake, FAST25-release/traces; Qin et al. 2025, FAST: ``timestamp`` in milliseconds from the
start, lengths in tokens, ``hash_ids`` of blocks of 512 tokens (equal ids, equal beginnings). In the conversation trace
requests arrive in steps of 3 s, so burstiness below about 10 s is no property of its users.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from slob_opt.errors import InputError
from slob_opt.problem.catalogue.lookup import nearest
from slob_opt.problem.files.traces.cells import MAX_NS, whole
from slob_opt.problem.files.traces.faults import Row
from slob_opt.problem.files.traces.lines import at_line, lines_of

KEYS = ("timestamp", "input_length", "output_length", "hash_ids")


def rows(path: Path) -> Iterator[Row]:
    """Yield the rows of a file."""
    for line, text in lines_of(path):
        found = json_object(path, line, text)
        check_keys(path, line, found, KEYS, KEYS)
        yield Row(
            line,
            _ns(path, line, found["timestamp"]),
            whole(path, line, "input_length", found["input_length"]),
            whole(path, line, "output_length", found["output_length"]),
        )


def _ns(path: Path, line: int, milliseconds: object) -> int:
    if isinstance(milliseconds, str):
        raise InputError(
            f"timestamp mixes formats: text {milliseconds!r}, expected milliseconds as a number",
            file=at_line(path, line),
        )
    if isinstance(milliseconds, bool) or not isinstance(milliseconds, int | float) or not _is_time(milliseconds):
        raise InputError(f"timestamp is {milliseconds!r}, expected milliseconds", file=at_line(path, line))
    return milliseconds * 10**6 if isinstance(milliseconds, int) else round(milliseconds * 1e6)


def _is_time(milliseconds: float) -> bool:
    return abs(milliseconds) <= MAX_NS / 1e6  # false for NaN


def json_object(path: Path, line: int | None, text: str) -> dict[str, Any]:
    """Return the JSON object in a line; raises InputError when there is none, or a key stands twice."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        made = dict(pairs)
        if len(made) < len(pairs):
            raise InputError("a key stands twice in one object", file=at_line(path, line))
        return made

    try:
        found = json.loads(text, object_pairs_hook=unique)
    except json.JSONDecodeError as error:
        where = f"column {error.colno}" if line is not None else f"line {error.lineno}, column {error.colno}"
        raise InputError(f"not valid JSON: {error.msg} at {where}", file=at_line(path, line)) from error
    except (RecursionError, ValueError) as error:  # ValueError: a number of thousands of digits
        if isinstance(error, InputError):
            raise
        raise InputError("not valid JSON: nested too deeply or a number too long", file=at_line(path, line)) from error
    if not isinstance(found, dict):
        raise InputError(f"found {text[:40]!r}, expected an object", file=at_line(path, line))
    return found


def check_keys(path: Path, line: int, found: dict[str, Any], needed: tuple[str, ...], known: tuple[str, ...]) -> None:
    """Raise InputError for the first key that is missing or unknown, with the nearest name."""
    for name in needed:
        if name not in found:
            close = nearest(name, [key for key in found if key not in known], 1)
            hint = f"; did you mean {close[0]!r} to be it?" if close else ""
            raise InputError(f"key {name} missing; found: {', '.join(found)}{hint}", file=at_line(path, line))
    for name in found:
        if name not in known:
            close = nearest(name, [key for key in known if key not in found], 1)
            hint = f"did you mean {close[0]!r}?" if close else f"known keys: {', '.join(known)}"
            raise InputError(f"unknown key {name!r}; {hint}", file=at_line(path, line))
