"""Distributions that lengths and think times are drawn from: lognormal, Weibull, and mixtures, each clipped."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from slob_opt.errors import InputError
from slob_opt.problem.device import require_positive

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]


class Distribution(Protocol):
    """What positive numbers are drawn from."""

    @property
    def most(self) -> float:
        """Largest value that is drawn; what lies above is taken as this one, and what lies below the least likewise."""

    def draw(self, rng: np.random.Generator, size: int) -> FloatArray:
        """Return (size,) float64 draws, clipped."""


def _check_clip(least: float, most: float) -> None:
    if not (math.isfinite(most) and 0 <= least <= most):
        raise InputError(f"clip is {least} to {most}, expected finite limits from 0 in rising order")


@dataclass(frozen=True, slots=True)
class LogNormal:
    """exp of a normal variable.

    Attributes
    ----------
    mu, sigma
        Mean and standard deviation of the logarithm.
    least, most
        Values are clipped to this range, both ends within.
    """

    mu: float
    sigma: float
    least: float
    most: float

    def __post_init__(self) -> None:
        require_positive(self.sigma, "sigma")
        if not math.isfinite(self.mu):
            raise InputError(f"mu is {self.mu}, expected a finite number")
        _check_clip(self.least, self.most)

    def draw(self, rng: np.random.Generator, size: int) -> FloatArray:
        """Return (size,) float64 draws, clipped."""
        return np.clip(rng.lognormal(self.mu, self.sigma, size), self.least, self.most)


@dataclass(frozen=True, slots=True)
class Weibull:
    """Scale times a Weibull variable.

    Attributes
    ----------
    shape, scale
        Below a shape of 1 the tail is heavier than an exponential one's; the scale has the unit of the draws.
    least, most
        Values are clipped to this range, both ends within.
    """

    shape: float
    scale: float
    least: float
    most: float

    def __post_init__(self) -> None:
        require_positive(self.shape, "shape")
        require_positive(self.scale, "scale")
        _check_clip(self.least, self.most)

    def draw(self, rng: np.random.Generator, size: int) -> FloatArray:
        """Return (size,) float64 draws, clipped."""
        return np.clip(self.scale * rng.weibull(self.shape, size), self.least, self.most)


@dataclass(frozen=True, slots=True)
class LogNormalMixture:
    """One of several lognormal variables, chosen by weight.

    Attributes
    ----------
    components
        (weight, mu, sigma) each; the weights add up to 1.
    least, most
        Values are clipped to this range, both ends within.
    """

    components: tuple[tuple[float, float, float], ...]
    least: float
    most: float

    def __post_init__(self) -> None:
        if not math.isclose(math.fsum(weight for weight, _, _ in self.components), 1.0, abs_tol=1e-9):
            raise InputError("the weights of a mixture must add up to 1")
        for weight, _, sigma in self.components:
            require_positive(weight, "weight")
            require_positive(sigma, "sigma")
        _check_clip(self.least, self.most)

    def draw(self, rng: np.random.Generator, size: int) -> FloatArray:
        """Return (size,) float64 draws, clipped."""
        weights, mu, sigma = np.array(self.components, np.float64).T
        chosen = rng.choice(weights.size, size, p=weights)
        return np.asarray(np.clip(rng.lognormal(mu[chosen], sigma[chosen]), self.least, self.most))


def draw_tokens(distribution: Distribution, rng: np.random.Generator, size: int) -> IntArray:
    """Return (size,) int64 counts of tokens: draws to the nearest whole number, from 1.

    Examples
    --------
    >>> draw_tokens(LogNormal(3.0, 0.01, 1, 100), np.random.default_rng(0), 2).tolist()
    [20, 20]
    """
    return np.maximum(1, np.rint(distribution.draw(rng, size))).astype(np.int64)
