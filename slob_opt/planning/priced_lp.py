"""Linear program over all patterns with every column priced: the bound behind pattern methods.

Maximise the sum of rates of patterns subject to the cards of each pool. Only few patterns are ever columns; a round
looks for patterns that earn more than their price over the whole box. When none is left, ``prices @ cards`` bounds
every set of disjoint pipelines (weak duality), whatever columns were used.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linprog

from slob_opt.cost.table import FloatArray, IntArray
from slob_opt.planning.groups import iter_patterns
from slob_opt.planning.pattern_rates import PatternProblem, RateTable, best_rates

MAX_BOX = 3_000_000
"""Largest box of patterns that is enumerated (about 14 bytes a pattern)."""

PRICE_TOLERANCE = 1e-9
"""Relative amount by which a pattern may beat its price; the bound is raised by it."""

COLUMNS_PER_ROUND = 3000


@dataclass(slots=True)
class Columns:
    """Patterns with exact best rates.

    Attributes
    ----------
    counts
        (P, G) int16.
    rates
        Rates and how they are reached.
    """

    counts: NDArray[np.int16]
    rates: RateTable

    @property
    def size(self) -> int:
        """Number of patterns."""
        return int(self.counts.shape[0])

    def select(self, index: NDArray[np.int64]) -> Columns:
        """Return some of the columns."""
        r = self.rates
        return Columns(
            self.counts[index],
            RateTable(r.rate[index], r.shape[index], r.first[index], r.last[index], r.interval[index]),
        )

    def join(self, other: Columns) -> Columns:
        """Return both sets of columns."""
        a, b = self.rates, other.rates
        return Columns(
            np.concatenate([self.counts, other.counts]),
            RateTable(
                np.concatenate([a.rate, b.rate]),
                np.concatenate([a.shape, b.shape]),
                np.concatenate([a.first, b.first]),
                np.concatenate([a.last, b.last]),
                np.concatenate([a.interval, b.interval]),
            ),
        )


@dataclass(frozen=True, slots=True)
class PricedLp:
    """Solved master.

    Attributes
    ----------
    prices
        (pools,) tokens/s a card, nobody in the box earns more than these (up to the tolerance).
    bound
        Tokens/s that no set of disjoint pipelines exceeds.
    columns
        Patterns generated, with exact rates.
    num_rounds
        Pricing rounds over the whole box.
    is_complete
        Whether the last round found nothing; otherwise `bound` comes from scaled prices.
    """

    prices: FloatArray
    bound: float
    columns: Columns
    num_rounds: int
    is_complete: bool


def columns_above(problem: PatternProblem, counts: NDArray[np.int16], floor: FloatArray) -> Columns:
    """Return the patterns whose exact rate is above their floor; a relaxation sorts out most of them first."""
    relaxed = best_rates(problem, counts, floor, exact=False)
    passed = np.flatnonzero(relaxed.shape >= 0)
    exact = best_rates(problem, counts[passed], floor[passed], exact=True)
    return Columns(counts[passed], exact).select(np.flatnonzero(exact.shape >= 0))


def all_patterns(problem: PatternProblem) -> NDArray[np.int16]:
    """Return (P, G) every pattern of the box."""
    found = list(iter_patterns(problem.groups, problem.max_devices))
    return np.concatenate(found) if found else np.zeros((0, problem.groups.num_groups), np.int16)


def solve_master(usage: IntArray, rates: FloatArray, cards: IntArray) -> tuple[FloatArray, FloatArray]:
    """Return how often each pattern is used (P,) by the linear program over some patterns, and the prices (pools,).

    Parameters
    ----------
    usage
        (P, pools) units of cards.
    rates
        (P,) tokens/s.
    cards
        (pools,) units there are.
    """
    # The solver's tolerances are absolute: the largest rate is made one.
    scale = float(rates.max())
    solved = linprog(-rates / scale, A_ub=usage.T.astype(np.float64), b_ub=cards.astype(np.float64), method="highs")
    prices = np.maximum(0.0, -np.asarray(solved.ineqlin.marginals, dtype=np.float64)) * scale
    return np.asarray(solved.x, dtype=np.float64), prices


def price_out(
    problem: PatternProblem,
    patterns: NDArray[np.int16],
    columns: Columns,
    *,
    is_out_of_time: Callable[[], bool] = lambda: False,
    on_bound: Callable[[float], None] = lambda _: None,
) -> PricedLp:
    """Return the linear program over all `patterns`, starting from some columns with at least one positive rate.

    A pattern that is a column already and still beats its price does so within the solver's tolerance only; it isn't
    added again but raises the bound. So every round adds a column or is the last.
    """
    usage_of = problem.groups.usage.T
    cards = problem.groups.pool_cards
    card_usage = patterns.astype(np.int64) @ usage_of
    rng = np.random.default_rng(0)
    sample = np.sort(rng.choice(patterns.shape[0], min(patterns.shape[0], 20_000), replace=False))
    best_bound, best_prices = np.inf, np.zeros(cards.size)
    known = {row.tobytes() for row in columns.counts}
    rounds, subset_done = 0, sample.size == patterns.shape[0]
    while True:
        _, prices = solve_master(columns.counts.astype(np.int64) @ usage_of, columns.rates.rate, cards)
        where = sample if not subset_done else np.arange(patterns.shape[0])
        floor = np.maximum(card_usage[where] @ prices * (1 + PRICE_TOLERANCE), 1e-9)
        found = columns_above(problem, patterns[where], floor)
        earned = found.rates.rate
        price = np.maximum(found.counts.astype(np.int64) @ usage_of @ prices, 1e-9)
        if subset_done:
            rounds += 1
            factor = float(np.max(earned / price)) if found.size else 1.0 + PRICE_TOLERANCE
            if float(prices @ cards) * factor < best_bound:
                best_bound, best_prices = float(prices @ cards) * factor, prices * factor
                on_bound(best_bound)
        is_new = np.array([row.tobytes() not in known for row in found.counts], dtype=bool)
        if not is_new.any():
            if subset_done:
                return PricedLp(best_prices, best_bound, columns, rounds, True)
            subset_done = True
            continue
        if is_out_of_time() and np.isfinite(best_bound):
            return PricedLp(best_prices, best_bound, columns.join(found.select(np.flatnonzero(is_new))), rounds, False)
        best = np.argsort(-np.where(is_new, earned - price, -np.inf), kind="stable")[:COLUMNS_PER_ROUND]
        fresh = found.select(best[is_new[best]])
        known.update(row.tobytes() for row in fresh.counts)
        columns = columns.join(fresh)
