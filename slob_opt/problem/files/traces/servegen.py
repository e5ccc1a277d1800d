"""ServeGen: clients described by rate, burstiness and lengths in windows of time, from which requests are sampled.

``chunk-N-trace.csv`` has a line per window of 600 s: start (s), rate (requests/s), coefficient of variation of the
gaps, ``Gamma`` or ``Weibull``, shape, scale. ``chunk-N-dataset.json`` has windows of six hours with the distributions
of prompt and output tokens, each a string that holds a Python dict ``{tokens: probability}``.

A window's arrivals come from its own law of gaps, scaled so that their mean is one over the window's rate (shape and
scale alone don't give the rate, and the published sampler scales them too). Input and output lengths are drawn
independently, as published. Windows of fewer than ten requests were published as empty ones.

References
----------
Xiang et al. 2025, ServeGen, arXiv 2505.09999; github.com/alibaba/ServeGen.
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slob_opt.errors import InputError
from slob_opt.problem.arrivals import gamma, poisson, weibull
from slob_opt.problem.files.traces.cells import cells_of, ns_of_seconds
from slob_opt.problem.files.traces.faults import Row
from slob_opt.problem.files.traces.lines import at_line, lines_of
from slob_opt.problem.files.traces.mooncake import json_object

IntArray = NDArray[np.int64]

TRACE_NAME = re.compile(r"chunk-(\d+)-trace\.csv(\.gz)?")
WINDOW_S = 600.0
"""Length of the last window, which no next one ends; that of all published files."""


@dataclass(frozen=True, slots=True)
class Window:
    """What a client does in one window.

    Attributes
    ----------
    line
        Line of the file.
    start_s
        Seconds from the start.
    rate
        Requests/s.
    cv
        Coefficient of variation of the gaps; ``None`` when the client rests.
    law
        ``"Gamma"``, ``"Weibull"``, or ``""`` when none was fitted.
    """

    line: int
    start_s: float
    rate: float
    cv: float | None
    law: str


def chunks_of(path: Path) -> list[Path]:
    """Return the trace files of a folder, by their numbers, or the file itself; InputError when there are none."""
    if not path.is_dir():
        return [path]
    found = {p: match for p in path.iterdir() if (match := TRACE_NAME.fullmatch(p.name))}
    if not found:
        raise InputError("no chunk-N-trace.csv in this folder, expected ServeGen's files of one model", file=str(path))
    return sorted(found, key=lambda p: (int(found[p].group(1)), p.name))


def rows(path: Path, seed: int, span_ns: tuple[int, int] | None) -> Iterator[Row]:
    """Yield sampled requests of all clients of a folder, or of one trace file, in order of arrival.

    Parameters
    ----------
    path
        Folder with ``chunk-N-trace.csv`` and ``chunk-N-dataset.json``, or one such trace.
    seed
        Each client draws from its own stream, by its number, so that more clients don't change the others.
    span_ns
        Only requests in ``[first, end)``, nanoseconds; ``None`` samples everything. Windows outside aren't sampled.
    """
    parts = [_client(chunk, seed, span_ns) for chunk in chunks_of(path)]
    times, prompts, outputs = (np.concatenate(column) for column in zip(*parts, strict=True))
    for index in np.argsort(times, kind="stable").tolist():
        yield Row(None, int(times[index]), int(prompts[index]), int(outputs[index]))


def _client(path: Path, seed: int, span_ns: tuple[int, int] | None) -> tuple[IntArray, IntArray, IntArray]:
    match = TRACE_NAME.fullmatch(path.name)
    if match is None:
        raise InputError("expected a name as chunk-7-trace.csv, with chunk-7-dataset.json beside it", file=str(path))
    windows = list(windows_of(path))
    ends = [after.start_s for after in windows[1:]] + [windows[-1].start_s + WINDOW_S] if windows else []
    lengths = _Lengths(_dataset_beside(path, match.group(1)))
    empty = np.zeros(0, np.int64)
    times, prompts, outputs = [empty], [empty], [empty]
    for window, end_s in zip(windows, ends, strict=True):
        start_ns, end_ns = round(window.start_s * 1e9), round(end_s * 1e9)
        if window.rate == 0 or (span_ns is not None and (end_ns <= span_ns[0] or start_ns >= span_ns[1])):
            continue
        # A stream per client and window: what is sampled doesn't depend on the part that is asked for.
        rng = np.random.default_rng([seed, int(match.group(1)), window.line])
        found = _arrivals(window, end_s - window.start_s, rng) + start_ns
        prompt, output = lengths.draw(window.start_s, found.size, rng)
        inside = slice(None)
        if span_ns is not None:
            inside = slice(*np.searchsorted(found, span_ns))
        times.append(found[inside])
        prompts.append(prompt[inside])
        outputs.append(output[inside])
    return np.concatenate(times), np.concatenate(prompts), np.concatenate(outputs)


def _arrivals(window: Window, length_s: float, rng: np.random.Generator) -> IntArray:
    if window.law == "Gamma" and window.cv:
        return gamma(window.rate, window.cv, length_s, rng, is_stationary=True)
    if window.law == "Weibull" and window.cv:
        return weibull(window.rate, min(max(window.cv, 0.1), 20.0), length_s, rng, is_stationary=True)
    return poisson(window.rate, length_s, rng)


def windows_of(path: Path) -> Iterator[Window]:
    """Yield the windows of a trace file; raises InputError with the line."""
    before = -1.0
    for line, text in lines_of(path):
        start, rate, cv, law, shape, scale = cells_of(path, line, text, 6)
        if law not in ("", "Gamma", "Weibull"):
            raise InputError(f"found the law {law!r}, expected Gamma, Weibull or nothing", file=at_line(path, line))
        named = (("start", start), ("rate", rate), ("variation", cv), ("shape", shape), ("scale", scale))
        start_s, rate_per_s, variation, _, _ = (
            ns_of_seconds(path, line, name, cell or "0") / 1e9 for name, cell in named
        )
        if min(start_s, rate_per_s, variation) < 0:
            raise InputError("found a negative number, expected at least 0", file=at_line(path, line))
        if start_s <= before:
            raise InputError("the window starts before the one above it has", file=at_line(path, line))
        before = start_s
        yield Window(line, start_s, rate_per_s, variation or None, law)


def _dataset_beside(path: Path, number: str) -> Path:
    for suffix in (".json", ".json.gz"):
        beside = path.with_name(f"chunk-{number}-dataset{suffix}")
        if beside.is_file():
            return beside
    raise InputError(f"chunk-{number}-dataset.json with the lengths is not beside it", file=str(path))


class _Lengths:
    """The distributions of lengths of a client, by the start of their window; parsed when they are used."""

    def __init__(self, path: Path) -> None:
        self._path = path
        text = "\n".join(part for _, part in lines_of(path))
        self._windows: dict[float, Mapping[str, Any]] = {}
        for key, value in json_object(path, None, text).items():
            if not re.fullmatch(r"\d{1,12}", key) or not isinstance(value, dict):
                raise InputError("expected a window's start in seconds, and its distributions", file=str(path), key=key)
            self._windows[float(key)] = value
        self._starts = np.array(sorted(self._windows))
        self._parsed: dict[float, tuple[IntArray, NDArray[np.float64], IntArray, NDArray[np.float64]]] = {}

    def draw(self, time_s: float, size: int, rng: np.random.Generator) -> tuple[IntArray, IntArray]:
        """Return (size,) prompt and output tokens, int64, of the window that holds a time."""
        at = int(np.searchsorted(self._starts, time_s, side="right")) - 1
        if at < 0:
            raise InputError(f"no distribution of lengths for {time_s:g} s", file=str(self._path))
        start = float(self._starts[at])
        if start not in self._parsed:
            self._parsed[start] = (*self._parse(start, "input_tokens"), *self._parse(start, "output_tokens"))
        inputs, input_shares, outputs, output_shares = self._parsed[start]
        return rng.choice(inputs, size, p=input_shares), rng.choice(outputs, size, p=output_shares)

    def _parse(self, start: float, name: str) -> tuple[IntArray, NDArray[np.float64]]:
        key = f"{start:.0f}.{name}"
        text = self._windows[start].get(name)
        try:
            found = ast.literal_eval(text) if isinstance(text, str) else None  # never eval: the file isn't ours
        except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
            found = None
        if not isinstance(found, dict) or not found:
            raise InputError(
                f"found {str(text)[:40]!r}, expected a text that holds {{tokens: probability, ...}}, since the trace"
                " has requests in this window",
                file=str(self._path),
                key=key,
            )
        for count, share in found.items():
            is_count = type(count) is int and 0 <= count <= 10**9
            if not is_count or not isinstance(share, int | float) or not 0 <= share <= 1 + 1e-9:
                raise InputError(
                    f"found {count!r}: {share!r}, expected tokens: probability", file=str(self._path), key=key
                )
        total = math.fsum(found.values())
        if not math.isclose(total, 1.0, rel_tol=1e-3):
            raise InputError(f"the probabilities add up to {total:g}, expected 1", file=str(self._path), key=key)
        return np.array(list(found), np.int64), np.array(list(found.values()), np.float64) / total
