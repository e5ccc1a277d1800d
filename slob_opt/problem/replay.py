"""Other loads from the same requests: a window of a trace, thinned or stretched. The two differ, so they have names.

*Thinning* keeps each request with the same chance: hours stay where they are, and bursts get weaker, as they do when
fewer clients use a service: counts N become binomial ones of N, so at a share p an index of dispersion D (variance over
mean) becomes ``1 + p (D - 1)``. *Stretching* multiplies every time: all requests stay and bursts stay as strong
relative to the mean, but an hour's pattern takes longer, as it would for a slower service of the same clients.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from slob_opt.errors import InputError
from slob_opt.problem.arrivals import MAX_DURATION_S, Seed
from slob_opt.problem.device import require_positive
from slob_opt.problem.workload import NS_PER_S, Workload


def window(workload: Workload, start_s: float, end_s: float) -> Workload:
    """Return the requests that arrive in ``[start_s, end_s)``, their times counted from `start_s`.

    Raises
    ------
    InputError
        When there are none.
    """
    first, end = np.searchsorted(workload.arrival_ns, [round(start_s * NS_PER_S), round(end_s * NS_PER_S)])
    if first >= end:
        raise InputError(f"workload {workload.name!r} has no request from {start_s} s to {end_s} s")
    part = workload.take(np.arange(first, end))
    return part.shifted(part.arrival_ns - round(start_s * NS_PER_S))


def thinned(workload: Workload, share: float, seed: Seed) -> Workload:
    """Return a random share of the requests, at their own times; `share` above 0 and at most 1.

    For a smaller site with the same day: hours keep their places, bursts get weaker. Conversations lose turns, whose
    tokens stay in the prompts of the later ones.

    Raises
    ------
    InputError
        When the share is out of range, or no request is left.
    """
    if not 0 < share <= 1:
        raise InputError(f"share is {share}, expected above 0 and at most 1")
    kept = np.flatnonzero(np.random.default_rng(seed).random(workload.num_requests) < share)
    if not kept.size:
        raise InputError(f"thinning {workload.num_requests} requests to a share of {share} leaves none")
    return workload.take(kept)


def stretched(workload: Workload, factor: float) -> Workload:
    """Return all requests with their times multiplied; a factor of 2 halves the rate.

    For another load with the same burstiness, or where each request counts (long prompts are few); hours move.
    """
    require_positive(factor, "factor")
    if float(workload.arrival_ns[-1]) * factor > MAX_DURATION_S * NS_PER_S:
        raise InputError(f"stretched by {factor:g}, the workload would last longer than {MAX_DURATION_S:g} s")
    return workload.shifted(np.rint(workload.arrival_ns * factor).astype(np.int64))


def mean_rate(workload: Workload) -> float:
    """Return the mean rate of arrivals, requests/s: gaps over the time between the first and the last request."""
    if workload.span_s <= 0:
        raise InputError(f"workload {workload.name!r} has no time between its requests")
    return (workload.num_requests - 1) / workload.span_s


def with_arrivals(workload: Workload, arrival_ns: NDArray[np.int64]) -> Workload:
    """Return the lengths of a workload in their order, at other times; what is known of conversations is dropped.

    Parameters
    ----------
    workload
        Requests.
    arrival_ns
        (N,) int64, nanoseconds from 0, not falling; see :func:`slob_opt.problem.arrivals.first_arrivals`.
    """
    return replace(workload, arrival_ns=arrival_ns, session=None)


def at_rate(workload: Workload, rate: float, *, seed: Seed | None = None) -> Workload:
    """Return the workload at a mean rate, requests/s: thinned when a seed is given, stretched otherwise.

    Raises
    ------
    InputError
        When thinning would have to add requests.
    """
    require_positive(rate, "rate")
    now = mean_rate(workload)
    if seed is None:
        return stretched(workload, now / rate)
    if rate > now:
        raise InputError(f"thinning can't raise the rate from {now:.6g} to {rate:.6g} requests/s; stretch instead")
    return thinned(workload, rate / now, seed)
