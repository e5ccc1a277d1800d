"""How requests fared in company, against the same request alone on the best pipeline.

Some requests can't be served quickly even alone, since their prompt is long or the cards are slow. What a schedule is
to be blamed for is the rest.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from slob_opt.errors import InputError
from slob_opt.metrics.request_columns import RequestColumns, Status
from slob_opt.problem.workload import NS_PER_S

FloatArray = NDArray[np.float64]


def relative_satisfaction(columns: RequestColumns, alone: FloatArray) -> dict[str, float]:
    """Return mean, 10th and 1st percentile of S over S alone.

    Parameters
    ----------
    columns
        Figures of N requests.
    alone
        (N,) S of each request alone on the best pipeline, from 0 to 1.

    Returns
    -------
    dict
        ``mean_``, ``p10_`` and ``p1_relative_satisfaction`` over the requests that count and aren't hopeless;
        ``num_hopeless``, requests that have S = 0 even alone. Zeros when none is left.
    """
    _check(columns, alone, "satisfaction")
    is_hopeless = columns.counts & (alone <= 0)
    kept = columns.counts & ~is_hopeless
    ratio = columns.satisfaction[kept] / alone[kept] if kept.any() else np.zeros(1)
    return {
        "mean_relative_satisfaction": float(ratio.mean()),
        "p10_relative_satisfaction": float(np.percentile(ratio, 10)),
        "p1_relative_satisfaction": float(np.percentile(ratio, 1)),
        "num_hopeless": float(np.count_nonzero(is_hopeless)),
    }


def weighted_latency_ratio(columns: RequestColumns, alone_e2e_s: FloatArray, end_ns: int) -> float:
    """Return the sum of priority times latency, over the same sum of latencies alone; 1 is no wait at all.

    Requests that were cut off enter with the time until then, so the ratio is a lower bound for them. Rejected and
    failed ones have no latency and aborted ones ended by themselves: look at their numbers beside this figure.

    Parameters
    ----------
    columns
        Figures of N requests.
    alone_e2e_s
        (N,) seconds from arrival to the last token alone on the best pipeline, above zero.
    end_ns
        End of the observation, nanoseconds.
    """
    _check(columns, alone_e2e_s, "latency")
    is_open = columns.status == Status.UNFINISHED
    kept = is_open | (columns.status == Status.FINISHED)
    if not kept.any():
        return 1.0
    if np.any(alone_e2e_s[kept] <= 0):
        raise InputError("a latency alone isn't above zero")
    until_end_s = np.maximum(end_ns - columns.workload.arrival_ns, 0) / NS_PER_S
    latency_s = np.where(is_open, until_end_s, columns.e2e_s)
    priority = columns.workload.priority
    return float(np.dot(priority[kept], latency_s[kept]) / np.dot(priority[kept], alone_e2e_s[kept]))


def _check(columns: RequestColumns, alone: FloatArray, what: str) -> None:
    """Raise InputError when the column of requests alone doesn't fit."""
    if alone.shape != columns.status.shape:
        raise InputError(f"{what} alone has shape {alone.shape}, expected {columns.status.shape}")
    if not np.all(np.isfinite(alone)):
        raise InputError(f"{what} alone isn't finite everywhere")
