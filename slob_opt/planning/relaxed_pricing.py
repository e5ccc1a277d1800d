"""A priced bound on throughput for clusters too large to enumerate patterns.

For prices mu on devices, no set of disjoint pipelines is worth more than ``mu @ devices`` if every pipeline earns
at most its price. For one shape (K, b) and interval I a pipeline that reaches I earns K * b / I; its price is at
least ``max over lambda >= 0 of D(lambda) - lambda * I``, where ``D(lambda)`` is the least ``price + lambda * time``
over ways to give the L layers to devices whose caps hold at I. D separates over groups and is a min-plus
convolution of one curve a group.

Intervals are covered by a geometric grid: for I in (I_j, I_(j+1)] the earning is below K * b / I_j while caps and
time are taken at I_(j+1), so the grid step is the loss. If rho is the largest ratio of earning to price, ``rho * mu
@ devices`` is a bound.

References
----------
Gilmore, Gomory 1961, A linear programming approach to the cutting-stock problem; Lasdon 1970, Optimization theory for
large systems, ch. 8 (Lagrangian bounds in column generation).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from slob_opt.cost.table import TICK_S, FloatArray
from slob_opt.planning.groups import ShapeCosts
from slob_opt.planning.interval_program import curve, min_plus
from slob_opt.planning.pattern_kernel import single_interval
from slob_opt.planning.pattern_rates import PatternProblem
from slob_opt.planning.witness import RelaxedPriceWitness

MULTIPLIER_STEP = 0.05
"""Grid of prices of pipeline time, in units of (earning / interval)."""

SEARCH_STEPS = (0, 8, 16, 8, 4, 2, 1)
"""Moves on that grid around the best multiplier of a cell so far, largest first; zero is the start at 0.75."""

NUM_STEPS = 240
"""Points of the interval grid between the shortest and the longest interval of interest."""

FLOOR_SHARES = (0.01, 0.015, 0.005, 0.03)
"""Shares of the highest price that the lowest are lifted to, tried in turn."""

MAX_TRIALS = 12
"""Sets of prices that are tried. Chosen: later ones gain less than 0.1 %, see the scale study."""


@dataclass(frozen=True, slots=True)
class ShapeGrid:
    """Interval cells of one shape.

    Attributes
    ----------
    costs
        The shape.
    low, high
        (X,) ticks, ends of the cells.
    """

    costs: ShapeCosts
    low: FloatArray
    high: FloatArray


def interval_grid(costs: ShapeCosts, num_layers: int, num_steps: int) -> ShapeGrid:
    """Return geometric cells from the least conceivable sum of stage times up to the cap."""
    least = float((costs.fixed + num_layers * costs.layer).min())
    slowest = float((costs.fixed + num_layers * costs.layer + costs.embed + costs.head).max())
    longest = costs.num_micro_batches * max(slowest, costs.occupancy) + num_layers * (slowest + costs.hop) + costs.ret
    longest = min(longest, costs.max_interval)
    if longest < least:
        return ShapeGrid(costs, np.zeros(0), np.zeros(0))
    edges = np.geomspace(max(least, 1.0), longest, num_steps + 1)
    edges[0], edges[-1] = max(least, 1.0), longest
    return ShapeGrid(costs, edges[:-1], edges[1:])


def least_price(
    grid: ShapeGrid, prices: FloatArray, available: FloatArray, num_layers: int, multiplier: FloatArray
) -> FloatArray:
    """Return (X,) lower limits on the price of any pipeline of several devices that reaches ``grid.high``.

    Parameters
    ----------
    prices
        (G,) tokens/s a device.
    available
        (G,) devices.
    multiplier
        (X,) tokens/s a tick, the price of pipeline time.
    """
    costs = grid.costs
    per_stage = np.floor(grid.high / costs.num_micro_batches)
    total = np.full((grid.high.size, num_layers + 1), np.inf)
    total[:, 0] = 0.0
    for g in range(prices.size):
        budget = per_stage - costs.fixed[g]
        if costs.layer[g] > 0:
            cap = np.minimum(np.floor(budget / costs.layer[g]), costs.cap[g])
        else:
            cap = np.where(budget >= 0, costs.cap[g], -1.0)
        per_device = prices[g] + multiplier * (costs.fixed[g] + costs.hop)
        total = min_plus(total, curve(cap, per_device, multiplier * costs.layer[g], available[g], num_layers))
    fixed_time = costs.ret - costs.hop + float(costs.embed.min() + costs.head.min())
    return np.asarray(total[:, num_layers] + multiplier * (fixed_time - grid.high))


def price_ratio(
    problem: PatternProblem, prices: FloatArray, *, num_steps: int = NUM_STEPS, stop_at: float = 0.0
) -> tuple[float, frozenset[int]]:
    """Return rho and the multipliers used: no pipeline earns more than rho times its price (infinite when one is free).

    Parameters
    ----------
    prices
        (G,) tokens/s a device.
    stop_at
        Ratios up to this one are not looked for; the result is at least this.
    """
    available = problem.groups.available.astype(np.float64)
    worst = stop_at
    used: set[int] = set()
    for costs in problem.costs:
        alone = costs.num_in_flight / (single_interval(costs, problem.num_layers) * TICK_S)
        with np.errstate(divide="ignore", invalid="ignore"):
            worst = max(worst, float(np.where(alone > 0, alone / prices, 0.0).max()))
        grid = interval_grid(costs, problem.num_layers, num_steps)
        if grid.low.size == 0:
            continue
        earning = costs.num_in_flight / (grid.low * TICK_S)
        lower = cheapest_layers(grid, prices, problem.num_layers)
        best = np.full(grid.low.size, round(0.75 / MULTIPLIER_STEP))
        for move in SEARCH_STEPS:
            for sign in (1, -1) if move else (1,):
                cells = np.flatnonzero(
                    np.isfinite(lower) & (earning > worst * np.where(np.isfinite(lower), lower, 0.0))
                )
                if cells.size == 0:
                    break
                trial = np.maximum(best[cells] + sign * move, 0)
                used.update(int(m) for m in trial)
                part = ShapeGrid(costs, grid.low[cells], grid.high[cells])
                scale = trial * MULTIPLIER_STEP * earning[cells] / part.high
                found = least_price(part, prices, available, problem.num_layers, scale)
                better = found > lower[cells]
                lower[cells] = np.maximum(found, lower[cells])
                best[cells] = np.where(better, trial, best[cells])
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = np.where(lower > 0, earning / lower, np.inf)
        worst = max(worst, float(ratio.max()))
        if not np.isfinite(worst):
            break
    return worst, frozenset(used)


def cheapest_layers(grid: ShapeGrid, prices: FloatArray, num_layers: int) -> FloatArray:
    """Return (X,) a quick lower limit on a pipeline's price: all layers where a layer costs least."""
    costs = grid.costs
    per_stage = np.floor(grid.high / costs.num_micro_batches)[:, None]
    with np.errstate(divide="ignore", invalid="ignore"):
        cap = np.where(costs.layer > 0, np.floor((per_stage - costs.fixed) / costs.layer), costs.cap)
        cap = np.minimum(cap, costs.cap)
        per_layer = np.where(cap >= 1, prices / np.maximum(cap, 1.0), np.inf)
    least = per_layer.min(axis=1)
    return np.asarray(np.where(np.isfinite(least), num_layers * least, np.inf))


def relaxed_price_bound(
    problem: PatternProblem,
    prices: FloatArray | None = None,
    time_s: float | None = 60.0,
    on_bound: Callable[[float], None] = lambda _: None,
) -> tuple[float, RelaxedPriceWitness | None]:
    """Return tokens/s that no set of disjoint pipelines exceeds, with its witness.

    Parameters
    ----------
    prices
        (G,) starting prices a device, best the duals of a linear program over good patterns; ``None`` starts from each
        group's share of the layers it can work on a second.
    time_s
        Stop improving prices after so many seconds.
    on_bound
        Called with each better bound.
    """
    started = time.perf_counter()
    start = starting_prices(problem) if prices is None else prices
    # Duals of groups that good patterns leave over are zero, and then a relaxed pipeline of them is free: lift them.
    lifted = [np.maximum(start, share * float(np.max(start))) for share in FLOOR_SHARES]
    trial = lifted[0]
    best, best_prices = np.inf, trial
    multipliers: tuple[float, ...] = ()
    step, rng = 0.02, np.random.default_rng(0)
    for attempt in range(MAX_TRIALS):
        stock = stock_worth(problem, trial)
        target = best / stock if np.isfinite(best) else 1.0 if prices is not None else 0.0
        ratio, used = price_ratio(problem, trial, stop_at=min(target, 1.0) if prices is not None else 0.0)
        if ratio * stock < best:
            best, best_prices = ratio * stock, trial * ratio
            multipliers = tuple(m * MULTIPLIER_STEP * ratio for m in sorted(used | {0}))
            on_bound(best)
        elif attempt >= len(lifted):
            step *= 0.7
        if (time_s is not None and time.perf_counter() - started > time_s) or ratio <= 1.0:
            break
        noise = np.exp(step * rng.standard_normal(trial.size))
        trial = lifted[attempt + 1] if attempt + 1 < len(lifted) else best_prices * noise
    if not np.isfinite(best):
        return best, None
    return best, RelaxedPriceWitness(tuple(float(p) for p in best_prices), NUM_STEPS, multipliers)


def stock_worth(problem: PatternProblem, prices: FloatArray) -> float:
    """Return tokens/s that all devices cost at some prices (G,); in a pool the dearest use of a unit counts."""
    groups = problem.groups
    unit = prices / groups.sizes
    return float(sum(c * unit[groups.pools == p].max() for p, c in enumerate(groups.pool_cards)))


def starting_prices(problem: PatternProblem) -> FloatArray:
    """Return (G,) prices in proportion to layers a second within memory, the best over shapes."""
    speed = np.zeros(problem.groups.num_groups)
    for costs in problem.costs:
        cap = np.minimum(np.maximum(costs.cap, 0.0), problem.num_layers)
        with np.errstate(divide="ignore", invalid="ignore"):
            stage = costs.fixed + cap * costs.layer
            rate = np.where(cap > 0, costs.batch_size * cap / np.maximum(stage, 1.0), 0.0)
        speed = np.maximum(speed, rate)
    return np.asarray(np.maximum(speed / (problem.num_layers * TICK_S), 1e-9))
