"""What a delay costs in satisfaction: of a stream that is being read, and of a request that waits for its first token.

With token k due at ``d_k = arrival + ttft + (k - 1) / v``, a request whose next token comes `x` seconds late reads that
many seconds behind. If the engine puts out a token every `tpot` seconds, faster than the reader's ``1 / v``, each later
token is ``1 / v - tpot = g`` less late, so n tokens lose about ``w / g * integral_{x - n g}^x (1 - phi(y)) dy``: a
stream that can still catch up loses more with every second, one that is late beyond that has little left to lose. A
first token that is late costs its own weight besides. Before it is due, nothing is lost.

The abstract of the paper weighs the tokens of a streamed response; the formulas here are ours.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from slob_opt.errors import InputError

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Reading:
    """How clients read, which is how satisfaction is measured.

    Attributes
    ----------
    ttft_s
        Patience for the first token, seconds.
    tpot_s
        Seconds between the tokens of a reader.
    scale_s
        Lateness at which a token is worth half, seconds.
    first_weight, weight_floor, weight_decay
        Weights of tokens: `first_weight` for the first, then ``max(weight_floor, weight_decay ** (k - 1))``.

    Raises
    ------
    InputError
        When a number is out of range.
    """

    ttft_s: float = 1.0
    tpot_s: float = 1 / 5.3
    scale_s: float = 5.0
    first_weight: float = 10.0
    weight_floor: float = 0.5
    weight_decay: float = 0.98

    def __post_init__(self) -> None:
        for name in ("ttft_s", "tpot_s", "scale_s", "first_weight"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value > 0):
                raise InputError(f"{name} is {value}, expected a finite number above zero")
        for name in ("weight_floor", "weight_decay"):
            value = getattr(self, name)
            if not 0 < value <= 1:
                raise InputError(f"{name} is {value}, expected above 0 and at most 1")

    def total_weight(self, tokens: FloatArray) -> FloatArray:
        """Return the sum of weights of answers of a number of tokens, (N,)."""
        if self.weight_decay == 1.0:
            return np.asarray(self.first_weight + np.maximum(tokens - 1.0, 0.0))
        last_decaying = np.log(self.weight_floor) / np.log(self.weight_decay)  # tokens until the floor
        decaying = np.minimum(tokens - 1, last_decaying)
        ramp = self.weight_decay * (1 - self.weight_decay**decaying) / (1 - self.weight_decay)
        return np.asarray(self.first_weight + ramp + self.weight_floor * np.maximum(tokens - 1 - last_decaying, 0.0))


def lost(late_s: FloatArray, scale_s: float) -> FloatArray:
    """Return ``1 - phi``: the share of a token's worth that is gone at some lateness, seconds."""
    late = np.maximum(late_s, 0.0)
    return np.asarray(late / (late + scale_s))


def loss_rate(late_s: FloatArray, scale_s: float) -> FloatArray:
    """Return the derivative of :func:`lost` by lateness, 1/s; zero before a token is due."""
    late = late_s / scale_s
    return np.asarray(np.where(late_s < 0, 0.0, 1 / (scale_s * (1 + np.maximum(late, 0.0)) ** 2)))


def stream_loss(
    late_s: FloatArray, scale_s: float, gain_s: FloatArray | float, tokens: FloatArray | float | None = None
) -> FloatArray:
    """Return the worth of tokens, each of weight 1, lost by a stream that reads `late_s` behind.

    The integral of :func:`lost` over the lateness of its tokens, each `gain_s` less than the one before, over the gain.

    Parameters
    ----------
    tokens
        How many are still to come; ``None`` is as many as it takes to catch up.
    """
    late = np.maximum(late_s, 0.0)
    area = late - scale_s * np.log1p(late / scale_s)
    if tokens is not None:
        last = np.maximum(late_s - tokens * gain_s, 0.0)
        area = area - (last - scale_s * np.log1p(last / scale_s))
    return np.asarray(area / gain_s)


def waiting_loss(
    late_s: FloatArray, reading: Reading, gain_s: FloatArray | float, tokens: FloatArray | float | None = None,
    weight: FloatArray | float = 1.0, first_weight: FloatArray | float | None = None,
) -> FloatArray:  # fmt: skip
    """Return the token weights lost by a request whose next token comes `late_s` after it's due.

    Parameters
    ----------
    tokens, weight
        Tokens that follow, and the weight of each.
    first_weight
        Of the next token; ``None`` is that of a first one.
    """
    first = reading.first_weight if first_weight is None else first_weight
    return np.asarray(
        first * lost(late_s, reading.scale_s) + weight * stream_loss(late_s, reading.scale_s, gain_s, tokens)
    )
