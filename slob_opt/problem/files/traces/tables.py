"""BurstGPT, and the lengths of Vidur: tables whose columns are named in the first line.

References
----------
github.com/HPMLL/BurstGPT; Wang et al. 2025, KDD: seconds from midnight of the first day (whole in version 1, with
decimals in version 2, which adds the conversation), and an answer of 0 tokens for a request that failed.
github.com/microsoft/vidur, data/processed_traces; Agrawal et al. 2024, MLSys: lengths only, no times.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from slob_opt.errors import InputError
from slob_opt.problem.files.traces.azure import form_of
from slob_opt.problem.files.traces.cells import cells_of, columns_of, ns_of_seconds, tokens
from slob_opt.problem.files.traces.faults import Row
from slob_opt.problem.files.traces.lines import at_line, first_line, lines_of

BURSTGPT = ("Timestamp", "Model", "Request tokens", "Response tokens", "Total tokens", "Log Type")
BURSTGPT_2 = ("Timestamp", "Session ID", "Elapsed time", *BURSTGPT[1:])
VIDUR = ("num_prefill_tokens", "num_decode_tokens", "num_total_tokens", "pd_ratio")


def burstgpt(path: Path) -> Iterator[Row]:
    """Yield rows of BurstGPT, version 1 or 2, failed requests too."""
    lines = lines_of(path)
    first, text = first_line(path, lines)
    header = [name.strip() for name in text.split(",")]
    has_sessions = "Session ID" in header or "Elapsed time" in header
    at = dict(zip(BURSTGPT_2, columns_of(path, first, header, BURSTGPT_2), strict=True)) if has_sessions else None
    if at is None:
        at = dict(zip(BURSTGPT, columns_of(path, first, header, BURSTGPT), strict=True))
    for line, text in lines:
        cells = cells_of(path, line, text, len(header))
        time = cells[at["Timestamp"]]
        if form_of(time).startswith("date"):
            raise InputError(
                f"Timestamp mixes formats: {time!r}, expected seconds as everywhere in BurstGPT",
                file=at_line(path, line),
            )
        yield Row(
            line,
            ns_of_seconds(path, line, "Timestamp", time),
            tokens(path, line, "Request tokens", cells[at["Request tokens"]]),
            tokens(path, line, "Response tokens", cells[at["Response tokens"]]),
            cells[at["Session ID"]] if has_sessions else None,
        )


def vidur(path: Path) -> Iterator[Row]:
    """Yield lengths of Vidur's processed traces, which have no times."""
    lines = lines_of(path)
    first, text = first_line(path, lines)
    header = [name.strip() for name in text.split(",")]
    at_prompt, at_output, *_ = columns_of(path, first, header, VIDUR)
    for line, text in lines:
        cells = cells_of(path, line, text, len(header))
        yield Row(
            line,
            None,
            tokens(path, line, VIDUR[0], cells[at_prompt]),
            tokens(path, line, VIDUR[1], cells[at_output]),
        )
