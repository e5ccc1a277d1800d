"""Draws against the moments of their formulas, and clipping."""

from __future__ import annotations

import math

import numpy as np
import pytest

from slob_opt.errors import InputError
from slob_opt.problem.distributions import LogNormal, LogNormalMixture, Weibull, draw_tokens


@pytest.mark.parametrize(
    ("distribution", "mean"),
    [
        (LogNormal(3.0, 0.5, 0, 1e9), math.exp(3.0 + 0.125)),
        (Weibull(2.0, 100.0, 0, 1e9), 100 * math.gamma(1.5)),
        (LogNormalMixture(((0.25, 2.0, 0.1), (0.75, 4.0, 0.2)), 0, 1e9),
         0.25 * math.exp(2.005) + 0.75 * math.exp(4.02)),
    ],
)  # fmt: skip
def test_means(distribution, mean):
    assert distribution.draw(np.random.default_rng(0), 100_000).mean() == pytest.approx(mean, rel=0.01)


@pytest.mark.parametrize(
    "distribution",
    [
        LogNormal(3.0, 2.0, 10, 30),
        Weibull(0.7, 20.0, 10, 30),
        LogNormalMixture(((0.5, 2.0, 1.0), (0.5, 4.0, 1.0)), 10, 30),
    ],
)
def test_what_lies_outside_is_taken_as_the_limit(distribution):
    draws = draw_tokens(distribution, np.random.default_rng(1), 5_000)
    assert (draws.dtype, draws.min(), draws.max()) == (np.int64, 10, 30)
    assert min(np.count_nonzero(draws == 10), np.count_nonzero(draws == 30)) > 100


def test_tokens_start_at_one():
    assert draw_tokens(LogNormal(-3.0, 0.1, 0, 5), np.random.default_rng(2), 3).tolist() == [1, 1, 1]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: LogNormal(1.0, 0.0, 1, 2), "sigma"),
        (lambda: LogNormal(math.nan, 1.0, 1, 2), "mu is nan"),
        (lambda: LogNormal(1.0, 1.0, 3, 2), "clip is 3 to 2"),
        (lambda: Weibull(0.0, 1.0, 1, 2), "shape"),
        (lambda: Weibull(1.0, 1.0, 1, math.inf), "clip is 1 to inf"),
        (lambda: LogNormalMixture(((0.5, 1.0, 1.0),), 1, 2), "add up to 1"),
    ],
)
def test_wrong_parameters_are_told(make, message):
    with pytest.raises(InputError, match=message):
        make()
