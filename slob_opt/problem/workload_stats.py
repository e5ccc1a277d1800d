"""What a workload looks like in numbers: rate, burstiness, lengths."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

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
        From the first arrival to the last, seconds.
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


def workload_stats(workload: Workload) -> WorkloadStats:
    """Return the figures of a workload.

    Examples
    --------
    >>> stats = workload_stats(Workload.of("even", [0.0, 1.0, 2.0], [10, 20, 30], [1, 2, 3]))
    >>> stats.rate, stats.gap_cv, stats.prompt_mean
    (1.0, 0.0, 20.0)
    """
    times = workload.arrival_ns
    gaps = np.diff(times) / NS_PER_S
    span = workload.span_s
    mean_gap = float(gaps.mean()) if gaps.size else 0.0
    hours = _counts(times, 3600.0)
    return WorkloadStats(
        num_requests=workload.num_requests,
        span_s=span,
        rate=gaps.size / span if span > 0 else None,
        gap_cv=float(gaps.std() / mean_gap) if mean_gap > 0 else None,
        dispersion_60=_dispersion(times, 60.0),
        dispersion_600=_dispersion(times, 600.0),
        peak_rate=float(np.percentile(hours, 99) / 3600.0) if hours.size else None,
        prompt_mean=float(workload.prompt_tokens.mean()),
        output_mean=float(workload.output_tokens.mean()),
        prompt_quantiles=tuple(float(q) for q in np.percentile(workload.prompt_tokens, QUANTILES)),
        output_quantiles=tuple(float(q) for q in np.percentile(workload.output_tokens, QUANTILES)),
    )


def _counts(times: NDArray[np.int64], window_s: float) -> NDArray[np.int64]:
    """Requests in each whole window from the first arrival on."""
    width = round(window_s * NS_PER_S)
    whole = int((times[-1] - times[0]) // width)
    index = (times - times[0]) // width
    return np.bincount(index[index < whole], minlength=whole)


def _dispersion(times: NDArray[np.int64], window_s: float) -> float | None:
    counts = _counts(times, window_s)
    if counts.size < 2 or not counts.sum():
        return None
    return float(counts.var() / counts.mean())
