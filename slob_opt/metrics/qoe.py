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


def _area(start_s: FloatArray, end_s: float, tokens_per_s: float) -> float:
    """Area up to `end_s` under a curve that grows by a token over ``1 / v`` from each start; tokens times seconds."""
    time = np.maximum(end_s - start_s, 0.0)
    ramp = np.minimum(time, 1 / tokens_per_s)
    return float(0.5 * tokens_per_s * np.dot(ramp, ramp) + np.add.reduce(time) - np.add.reduce(ramp))


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
        Up to when areas are taken; ``None`` is when the last token was delivered.

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
    ideal = _ideal_area(num_tokens, end - ttft_s, tokens_per_s)
    actual = _area(digest_times(token_s, tokens_per_s), end, tokens_per_s)
    if ideal <= 0:
        return 1.0  # all was there before anything was due
    return min(1.0, actual / ideal)
