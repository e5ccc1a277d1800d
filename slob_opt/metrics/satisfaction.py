"""Satisfaction: how much of a streamed answer came when its reader wanted it.

``S = sum_k w_k phi((t_k - d_k) / sigma) / sum_k w_k`` over the tokens of a request, with deadlines
``d_k = arrival + tau + (k - 1) / v``, ``phi(x) = 1`` up to x = 0 and falling after. Tokens that never came count 0.

References
----------
The abstract of Jiang et al. 2024 (SLoB) names a satisfaction that weighs the tokens of a streamed response; its formula
isn't public, so this one is a reconstruction whose parameters are all open.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from slob_opt.errors import InputError
from slob_opt.problem.workload import NS_PER_S

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


class Decay(StrEnum):
    """How a token's worth falls with its lateness x in units of sigma: 1 / (1 + x), exp(-x) or max(0, 1 - x^2)."""

    HYPERBOLIC = "hyperbolic"
    EXPONENTIAL = "exponential"
    QUADRATIC = "quadratic"


@dataclass(frozen=True, slots=True)
class SatisfactionSpec:
    """Parameters of satisfaction, with DESIGN's defaults.

    Attributes
    ----------
    ttft_s
        tau: patience for the first token; 1 s is when users notice a wait (Nielsen 1993; Andes takes it too).
    tokens_per_s
        v: reading speed; 238 words/min (Brysbaert 2019, A review of reading rate) times 1.33 tokens a word.
    scale_s
        sigma; with tau it makes the 6 s of S-LoRA's first-token satisfaction (Sheng et al. 2023, section 6).
    first_weight
        w_1.
    weight_decay, weight_floor
        ``w_k = max(floor, decay ** (k - 1))`` from the second token on.
    decay
        phi.
    """

    ttft_s: float = 1.0
    tokens_per_s: float = 5.3
    scale_s: float = 5.0
    first_weight: float = 10.0
    weight_decay: float = 0.98
    weight_floor: float = 0.5
    decay: Decay = Decay.HYPERBOLIC

    def __post_init__(self) -> None:
        for name in ("ttft_s", "tokens_per_s", "scale_s", "first_weight", "weight_floor"):
            value = getattr(self, name)
            if not (np.isfinite(value) and value > 0):
                raise InputError(f"{name} is {value}, expected a finite number above zero")
        if not 0 < self.weight_decay <= 1:
            raise InputError(f"weight_decay is {self.weight_decay}, expected above 0 and at most 1")

    def weights(self, size: int) -> FloatArray:
        """Return (size,) the weights of the first tokens."""
        weight = np.maximum(self.weight_floor, self.weight_decay ** np.arange(size, dtype=np.float64))
        weight[:1] = self.first_weight
        return np.asarray(weight)

    def phi(self, late: FloatArray) -> FloatArray:
        """Return what is left of a token's worth at a lateness in units of sigma; 1 for what isn't late."""
        x = np.maximum(late, 0.0)
        if self.decay is Decay.HYPERBOLIC:
            return np.asarray(1 / (1 + x))
        if self.decay is Decay.EXPONENTIAL:
            return np.asarray(np.exp(-x))
        return np.asarray(np.maximum(0.0, 1 - x * x))


class SatisfactionMeter:
    """Satisfaction of one request after the other, with the sums of weights at hand.

    Examples
    --------
    >>> meter = SatisfactionMeter(SatisfactionSpec())
    >>> meter.of(0, np.array([500_000_000, 600_000_000]), 2)
    1.0
    >>> round(meter.of(0, np.array([6_000_000_000]), 1), 3)
    0.5
    """

    def __init__(self, spec: SatisfactionSpec) -> None:
        self.spec = spec
        self._grow(1024)

    def _grow(self, size: int) -> None:
        self._weights = self.spec.weights(size)
        self._sums = np.concatenate([[0.0], np.cumsum(self._weights)])
        self._places = np.arange(size, dtype=np.float64)
        self._offsets_ns = self._places * (NS_PER_S / self.spec.tokens_per_s)

    def of(
        self, arrival_ns: int, token_ns: IntArray, num_tokens: int, ttft_s: float | None = None,
        tpot_s: float | None = None,
    ) -> float:  # fmt: skip
        """Return S of a request.

        Parameters
        ----------
        arrival_ns
            Arrival, nanoseconds.
        token_ns
            (T,) int64, when its tokens were delivered, not falling.
        num_tokens
            True length; what is beyond T never came.
        ttft_s, tpot_s
            The request's own targets; ``None`` takes those of the spec.
        """
        if not token_ns.size:
            return 0.0
        patience = self.spec.ttft_s if ttft_s is None else ttft_s
        late_ns = token_ns - self.offsets_ns(token_ns.size, tpot_s) - (arrival_ns + patience * NS_PER_S)
        return self.of_late(late_ns, num_tokens) if late_ns.max() > 0 else self.of_timely(token_ns.size, num_tokens)

    def tables(self, size: int) -> tuple[FloatArray, FloatArray]:
        """Return the weights of at least so many tokens, and the sums of the first 0, 1, ... of them."""
        self._reach(size)
        return self._weights, self._sums

    def offsets_ns(self, size: int, tpot_s: float | None = None) -> FloatArray:
        """Return (size,) nanoseconds from when the first token is due until each is."""
        self._reach(size)
        return self._offsets_ns[:size] if tpot_s is None else self._places[:size] * (tpot_s * NS_PER_S)

    def of_timely(self, num_delivered: int, num_tokens: int) -> float:
        """Return S of a request of which all that came was in time: one look at the sums of weights."""
        self._reach(num_tokens)
        return float(self._sums.item(num_delivered) / self._sums.item(num_tokens))

    def of_late(self, late_ns: FloatArray, num_tokens: int) -> float:
        """Return S of a request of which each token came so late, (T,) nanoseconds, early ones below zero."""
        self._reach(num_tokens)
        worth = self.spec.phi(late_ns * (1 / (self.spec.scale_s * NS_PER_S)))
        return float(np.dot(self._weights[: late_ns.size], worth) / self._sums.item(num_tokens))

    def _reach(self, size: int) -> None:
        """Make tables at least that long."""
        while self._weights.size < size:
            self._grow(2 * self._weights.size)


def satisfaction_summary(values: FloatArray, priority: FloatArray | None = None) -> dict[str, float]:
    """Return mean, 10th and 1st percentile of S, and the mean weighted by priority when one is given.

    Raises
    ------
    InputError
        When there is no value.
    """
    if not values.size:
        raise InputError("no request to take the satisfaction of")
    found = {
        "mean_satisfaction": float(values.mean()),
        "p10_satisfaction": float(np.percentile(values, 10)),
        "p1_satisfaction": float(np.percentile(values, 1)),
    }
    if priority is not None:
        found["weighted_mean_satisfaction"] = float(np.average(values, weights=priority))
    return found
