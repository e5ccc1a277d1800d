"""Prices under which no pattern of the box earns more than it costs, with every rate looked for at most a few times.

The same linear program as in :mod:`slob_opt.planning.priced_lp`, arranged for one more question at the end (which
patterns come close to their price?): a test that a pattern's rate is not above some floor is kept as an upper limit,
and patterns whose limit already answers a later question are not looked at again. The first pass over the box asks with
some slack, so that later passes, whose prices differ little, have nearly nothing to do. FORMULATION.md, section 4.2.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from slob_opt.cost.table import FloatArray, IntArray
from slob_opt.planning.pattern_rates import PatternProblem, best_rates
from slob_opt.planning.pattern_throughput import seed_columns
from slob_opt.planning.priced_lp import COLUMNS_PER_ROUND, PRICE_TOLERANCE, Columns, solve_master
from solvers.pattern_attempt import PatternAttempt

PART = 1 << 15
"""Patterns looked at between two looks at the clock."""

SAMPLE = 20_000
"""Patterns that prices are first settled on, before the whole box is looked at. Chosen, as in `priced_lp`."""

FIRST_SLACK = 0.02
"""Share of the linear program's value by which the first pass asks below the price. Chosen: about the gap to the best
packing of large clusters; more costs exact rates, less costs another pass."""

LEAST_RATE = 1e-9
"""Tokens/s below which a pattern counts as having no rate."""


class RateLimits:
    """Exact rates and upper limits on rates of all patterns, filled as questions are asked.

    Parameters
    ----------
    problem, patterns
        The instance by groups, and (P, G) all its patterns.
    attempt
        Its clock.
    """

    def __init__(self, problem: PatternProblem, patterns: NDArray[np.int16], attempt: PatternAttempt) -> None:
        self.problem = problem
        self.patterns = patterns
        self.attempt = attempt
        self.limit = np.full(patterns.shape[0], np.inf)
        self.column = np.full(patterns.shape[0], -1, np.int64)
        self.columns: Columns | None = None

    def above(self, where: IntArray, floor: FloatArray, slack: float = 0.0) -> IntArray | None:
        """Return which of the patterns `where` have a rate above their `floor`; ``None`` when time runs out.

        Parameters
        ----------
        slack
            Tokens/s by which patterns that are looked at are asked for below their floor, for later questions.
        """
        asked = np.flatnonzero((self.column[where] < 0) & (self.limit[where] > floor))
        for start in range(0, asked.size, PART):
            if self.attempt.is_out_of_time():
                return None
            part = asked[start : start + PART]
            self._look_at(where[part], np.maximum(floor[part] - slack, LEAST_RATE))
        known = self.column[where] >= 0
        if self.columns is None or not np.any(known):
            return np.zeros(0, np.int64)
        rate = np.full(where.size, -np.inf)
        rate[known] = self.columns.rates.rate[self.column[where[known]]]
        return where[np.flatnonzero(rate > floor)]

    def _look_at(self, index: IntArray, floor: FloatArray) -> None:
        """Find exact rates of the patterns that beat their floor, and limits for the others."""
        counts = self.patterns[index]
        relaxed = best_rates(self.problem, counts, floor, exact=False)
        passed = np.flatnonzero(relaxed.shape >= 0)
        exact = best_rates(self.problem, counts[passed], floor[passed], exact=True)
        self.limit[index] = floor
        self.keep(index[passed], Columns(counts[passed], exact))

    def keep(self, index: IntArray, found: Columns) -> None:
        """Keep those of some columns that have an exact rate (the others hold their floor)."""
        good = np.flatnonzero(found.rates.shape >= 0)
        if good.size == 0:
            return
        start = 0 if self.columns is None else self.columns.size
        self.column[index[good]] = np.arange(start, start + good.size)
        self.limit[index[good]] = found.rates.rate[good]
        self.columns = found.select(good) if self.columns is None else self.columns.join(found.select(good))

    def columns_of(self, index: IntArray) -> Columns:
        """Return patterns with known exact rates as columns."""
        assert self.columns is not None
        return self.columns.select(self.column[index])


@dataclass(frozen=True, slots=True)
class Prices:
    """What pricing found.

    Attributes
    ----------
    prices
        (pools,) tokens/s a unit of cards; no pattern earns more.
    bound
        Tokens/s that no set of disjoint pipelines exceeds.
    columns
        Indices of the patterns of the last linear program.
    num_passes
        Passes over the whole box.
    """

    prices: FloatArray
    bound: float
    columns: IntArray
    num_passes: int


def price_all(limits: RateLimits) -> Prices | None:
    """Return prices that hold for every pattern; ``None`` when no pattern has a rate or time ran out before any did.

    When time runs out later, prices are scaled so that they hold, and the bound is that much larger.
    """
    problem, patterns, attempt = limits.problem, limits.patterns, limits.attempt
    units = problem.groups.usage.T
    cards = problem.groups.pool_cards
    usage = patterns.astype(np.int64) @ units
    everything = np.arange(patterns.shape[0])
    rng = np.random.default_rng(0)
    sample = np.sort(rng.choice(everything, min(everything.size, SAMPLE), replace=False))
    columns = _seed(limits)
    if columns.size == 0:
        return None
    best_bound, best_prices, passes = np.inf, np.zeros(cards.size), 0
    is_whole = sample.size == everything.size
    while True:
        rates = limits.columns_of(columns).rates.rate
        _, prices = solve_master(usage[columns], rates, cards)
        where = everything if is_whole else sample
        floor = np.maximum(usage[where] @ prices * (1 + PRICE_TOLERANCE), LEAST_RATE)
        found = limits.above(where, floor, FIRST_SLACK * float(prices @ cards) if is_whole else 0.0)
        if found is None:
            return None if np.isinf(best_bound) else Prices(best_prices, best_bound, columns, passes)
        if is_whole:
            passes += 1
            factor = 1.0 + PRICE_TOLERANCE
            if found.size:
                earned = limits.columns_of(found).rates.rate
                factor = float(np.max(earned / np.maximum(usage[found] @ prices, LEAST_RATE)))
            if float(prices @ cards) * factor < best_bound:
                best_bound, best_prices = float(prices @ cards) * factor, prices * factor
                attempt.add_bound(-best_bound)
            if found.size == 0:
                return Prices(best_prices, best_bound, columns, passes)
        elif found.size == 0:
            is_whole = True
            continue
        surplus = limits.columns_of(found).rates.rate - usage[found] @ prices
        columns = np.union1d(columns, found[np.argsort(-surplus, kind="stable")[:COLUMNS_PER_ROUND]])


def _seed(limits: RateLimits) -> IntArray:
    """Return some patterns with a rate, found and kept; empty when no pattern has one."""
    found = seed_columns(limits.problem, limits.patterns)
    if found.size == 0:
        return np.zeros(0, np.int64)
    radix = limits.problem.groups.available + 1
    weights = np.concatenate([[1], np.cumprod(radix)[:-1]])
    code = limits.patterns.astype(np.int64) @ weights
    order = np.argsort(code, kind="stable")
    at = order[np.searchsorted(code[order], found.counts.astype(np.int64) @ weights)]
    limits.keep(at, found)
    return np.sort(at)
