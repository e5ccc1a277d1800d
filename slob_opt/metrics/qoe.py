"""Andes' quality of experience: what a reader has digested over what an ideal delivery would have let them digest.

A reader digests tokens in order, at most v a second, and none before it was delivered: token k is digested at
``r_k = max(t_k, r_{k-1} + 1 / v)``. Ideal is token k at ``tau + (k - 1) / v``. Both are curves of tokens over time, and
QoE is the area under the actual one over the area under the ideal one, both up to the time the last token was
delivered, at most 1.

References
----------
Liu et al. 2024, Andes: defining and enhancing quality-of-experience in LLM-based text streaming services, arXiv
2404.16283, equation 1. Curves are straight between tokens: the k-th token counts from when it is digested over the time
1 / v that reading it takes.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]


def digest_times(token_s: FloatArray, tokens_per_s: float) -> FloatArray:
    """Return (T,) seconds when a reader digests each token: the running maximum of ``t_k - k / v``, plus ``k / v``."""
    steps = np.arange(token_s.size) / tokens_per_s
    return np.asarray(np.maximum.accumulate(token_s - steps) + steps)


def _ideal_area(num_tokens: int, time_s: float, tokens_per_s: float) -> float:
    """Area up to `time_s` after the first is due: a line of slope v to all tokens, then flat; tokens times seconds."""
    if time_s <= 0:
        return 0.0
    until = num_tokens / tokens_per_s
    if time_s <= until:
        return 0.5 * tokens_per_s * time_s**2
    return num_tokens * (time_s - 0.5 * until)


def _area(read: FloatArray, end: float, step: float) -> float:
    """Area up to `end` under a curve that grows by a token over `step` from each time in `read`.

    Those times are at least a step apart, so at most one token is half read at the end.
    """
    whole = int(read.searchsorted(end - step, side="right"))
    area = whole * (end - 0.5 * step) - float(np.add.reduce(read[:whole]))
    if whole < read.size:
        area += 0.5 * max(0.0, end - read.item(whole)) ** 2 / step
    return area


def qoe_of_reading(read: FloatArray, num_tokens: int, first_due: float, step: float, end: float) -> float:
    """Return the QoE of a request, from 0 to 1; all times in one unit, whichever.

    Parameters
    ----------
    read
        (T,) when each token that came is digested, see :func:`digest_times`.
    num_tokens
        True length.
    first_due, step
        When the first token should be there, and 1 / v.
    end
        Up to when areas are taken.
    """
    ideal = _ideal_area(num_tokens, end - first_due, 1 / step)
    return min(1.0, _area(read, end, step) / ideal) if ideal > 0 else 1.0  # all was there before anything was due


def qoe(token_s: FloatArray, num_tokens: int, ttft_s: float, tokens_per_s: float, end_s: float | None = None) -> float:
    """Return the QoE of a request, from 0 to 1.

    Parameters
    ----------
    token_s
        (T,) when tokens were delivered, seconds after arrival, not falling.
    num_tokens
        True length.
    ttft_s, tokens_per_s
        tau and v.
    end_s
        Up to when areas are taken; ``None`` is when the last token was delivered, which is wrong for a request that
        was cut off: tokens that are still due would be forgiven.

    Examples
    --------
    >>> round(qoe(20 + 0.1 * np.arange(100), 100, 1.0, 4.8), 3)
    0.127
    """
    if not token_s.size:
        return 0.0
    end = float(token_s[-1]) if end_s is None else end_s
    if token_s.size == num_tokens and (token_s <= ttft_s + np.arange(num_tokens) / tokens_per_s).all():
        return 1.0
    return qoe_of_reading(digest_times(token_s, tokens_per_s), num_tokens, ttft_s, 1 / tokens_per_s, end)
