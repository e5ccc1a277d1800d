"""What a workload looks like in numbers: rate, burstiness, lengths."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from slob_opt.errors import InputError
from slob_opt.problem.workload import NS_PER_S, Workload

QUANTILES = (5, 50, 95, 99)


@dataclass(frozen=True, slots=True)
class WorkloadStats:
    """Figures of a workload; ``None`` where there are too few requests to say.

    Attributes
    ----------
    num_requests
        N.
    span_s
        From the first arrival to the last, or the length that was given, seconds.
    rate
        Requests/s over the span.
    gap_cv
        Standard deviation over mean of the gaps; 1 for a Poisson process.
    dispersion_60, dispersion_600
        Variance over mean of the counts in windows of 60 s and 600 s; 1 for a Poisson process, more in bursts.
    peak_rate
        99th percentile of the rate over whole hours, requests/s.
    prompt_mean, output_mean
        Tokens.
    prompt_quantiles, output_quantiles
        5th, 50th, 95th and 99th percentile, tokens.
    prompt_max, output_max
        Tokens.
    num_sessions
        Conversations; ``None`` when nothing is known of them.
    turns_mean, turns_max
        Requests of a conversation; ``None`` likewise.
    """

    num_requests: int
    span_s: float
    rate: float | None
    gap_cv: float | None
    dispersion_60: float | None
    dispersion_600: float | None
    peak_rate: float | None
    prompt_mean: float
    output_mean: float
    prompt_quantiles: tuple[float, ...]
    output_quantiles: tuple[float, ...]
    prompt_max: int
    output_max: int
    num_sessions: int | None
    turns_mean: float | None
    turns_max: int | None


def workload_stats(workload: Workload, *, span_s: float | None = None) -> WorkloadStats:
    """Return the figures of a workload.

    Parameters
    ----------
    workload
        Its requests.
    span_s
        Length of the workload from time 0, seconds, where that is known: a sample of a day is as long as the day,
        whenever its requests come. Rate and windows are then counted over it; ``None`` goes from the first arrival to
        the last.

    Raises
    ------
    InputError
        When a request arrives after the end of the span.

    Examples
    --------
    >>> stats = workload_stats(Workload.of("even", [0.0, 1.0, 2.0], [10, 20, 30], [1, 2, 3]))
    >>> stats.rate, stats.gap_cv, stats.prompt_mean
    (1.0, 0.0, 20.0)
    """
    times = workload.arrival_ns
    gaps = np.diff(times) / NS_PER_S
    if span_s is None:
        first, length = int(times[0]), int(times[-1] - times[0])
        rate = gaps.size / (length / NS_PER_S) if length else None
    else:
        first, length = 0, round(span_s * NS_PER_S)
        if length <= times[-1]:
            raise InputError(f"span_s is {span_s}, and the last request comes at {times[-1] / NS_PER_S} s")
        rate = workload.num_requests / span_s
    mean_gap = float(gaps.mean()) if gaps.size else 0.0
    hours = _counts(times - first, length, 3600)
    turns = None if workload.session is None else np.unique(workload.session, return_counts=True)[1]
    return WorkloadStats(
        num_requests=workload.num_requests,
        span_s=length / NS_PER_S,
        rate=rate,
        gap_cv=float(gaps.std() / mean_gap) if mean_gap > 0 else None,
        dispersion_60=_dispersion(_counts(times - first, length, 60)),
        dispersion_600=_dispersion(_counts(times - first, length, 600)),
        peak_rate=float(np.percentile(hours, 99) / 3600.0) if hours.size else None,
        prompt_mean=float(workload.prompt_tokens.mean()),
        output_mean=float(workload.output_tokens.mean()),
        prompt_quantiles=tuple(float(q) for q in np.percentile(workload.prompt_tokens, QUANTILES)),
        output_quantiles=tuple(float(q) for q in np.percentile(workload.output_tokens, QUANTILES)),
        prompt_max=int(workload.prompt_tokens.max()),
        output_max=int(workload.output_tokens.max()),
        num_sessions=None if turns is None else int(turns.size),
        turns_mean=None if turns is None else float(turns.mean()),
        turns_max=None if turns is None else int(turns.max()),
    )


def _counts(times: NDArray[np.int64], length_ns: int, window_s: int) -> NDArray[np.int64]:
    """Requests in each whole window of ``[0, length_ns)``."""
    width = window_s * NS_PER_S
    whole = length_ns // width
    index = times // width
    return np.bincount(index[index < whole], minlength=whole)


def _dispersion(counts: NDArray[np.int64]) -> float | None:
    if counts.size < 2 or not counts.sum():
        return None
    return float(counts.var() / counts.mean())
