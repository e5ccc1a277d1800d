"""What can be wrong with a row that is well-formed, and what became of all rows."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple


class Row(NamedTuple):
    """One request of a trace.

    Attributes
    ----------
    line
        Line of the file, from 1; ``None`` for rows that are sampled and stand in no file.
    time_ns
        Nanoseconds on the trace's own clock; ``None`` where the format has no times.
    prompt, output
        Tokens.
    session
        Key of the conversation; ``None`` where the format has none.
    max_new_tokens, priority, ttft_s, tpot_s
        As in :class:`~slob_opt.problem.workload.Workload`; ``None`` where the row doesn't say.
    """

    line: int | None
    time_ns: int | None
    prompt: int
    output: int
    session: str | int | None = None
    max_new_tokens: int | None = None
    priority: float | None = None
    ttft_s: float | None = None
    tpot_s: float | None = None


class RowFault(StrEnum):
    """Why a row can't be a request; the values are what users name to skip such rows."""

    FAILED = "failed"
    ZERO_TOKENS = "zero-tokens"
    TOO_LONG = "too-long"
    NEGATIVE_TIME = "negative-time"
    UNSORTED = "unsorted"


@dataclass(frozen=True, slots=True)
class TraceReport:
    """What was read and what became of it.

    Attributes
    ----------
    file
        Path as it was given.
    kind
        Name of the format.
    read, kept, outside
        Rows read, rows that became requests, and rows outside the window of time that was asked for.
    skipped
        (reason, rows) of rows left out, without zeros.
    clipped
        Rows whose prompt was shortened to what the model takes.
    has_prefix_ids
        Whether the format says which prompts share their beginnings. No format's ids are used so far.
    assumed_prefix_hit_rate
        Share of prompt tokens that are taken to be in a cache already: an assumption, and none unless someone says so.
    """

    file: str
    kind: str
    read: int
    kept: int
    outside: int
    skipped: tuple[tuple[RowFault, int], ...]
    clipped: int
    has_prefix_ids: bool
    assumed_prefix_hit_rate: float = 0.0

    @property
    def num_skipped(self) -> int:
        """Rows left out for a fault."""
        return sum(rows for _, rows in self.skipped)


def fault_of(row: Row, before_ns: int | None, max_tokens: int | None, has_failures: bool) -> RowFault | None:
    """Return why a row can't be a request; ``None`` when it can.

    Parameters
    ----------
    row
        The row.
    before_ns
        Time of the row before it that was kept; ``None`` for the first.
    max_tokens
        Most tokens of prompt and output together; ``None`` is no limit.
    has_failures
        Whether an output of 0 tokens marks a request that failed.
    """
    if row.output < 1 and has_failures:
        return RowFault.FAILED
    if row.prompt < 1 or row.output < 1:
        return RowFault.ZERO_TOKENS
    if row.time_ns is not None:
        if row.time_ns < 0:
            return RowFault.NEGATIVE_TIME
        if before_ns is not None and row.time_ns < before_ns:
            return RowFault.UNSORTED
    if max_tokens is not None and row.prompt + row.output > max_tokens:
        return RowFault.TOO_LONG
    return None


def sentence(fault: RowFault, row: Row, before_ns: int | None, max_tokens: int | None) -> str:
    """Return a fault as a sentence for the row that has it, with what to do."""
    seconds = 0.0 if row.time_ns is None else row.time_ns / 1e9
    found = {
        RowFault.FAILED: "the request failed (an answer of 0 tokens)",
        RowFault.ZERO_TOKENS: f"found {row.prompt} prompt and {row.output} output tokens, expected at least 1 each",
        RowFault.TOO_LONG: f"{row.prompt} + {row.output} tokens, the model takes {max_tokens}",
        RowFault.NEGATIVE_TIME: f"time is {seconds:g} s, expected at least 0",
        RowFault.UNSORTED: f"the request comes {((before_ns or 0) - (row.time_ns or 0)) / 1e9:g} s before the one"
        " above it, expected order of arrival",
    }[fault]
    return f"{found}; such rows can be skipped as {fault.value}"
