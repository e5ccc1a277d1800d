"""Throughput over patterns: priced linear program, reduced-cost fixing, max-plus packing."""

from __future__ import annotations

import time

import numpy as np

from slob_opt.planning.groups import realise
from slob_opt.planning.outcome import better_plan, outcome
from slob_opt.planning.packing import pack
from slob_opt.planning.pattern_rates import PatternProblem, plan_of
from slob_opt.planning.priced_lp import Columns, PricedLp, all_patterns, columns_above, price_out
from slob_opt.planning.result import OPTIMALITY_TOLERANCE, HistoryPoint, SolveLimits, SolveResult
from slob_opt.planning.witness import EnumerationWitness, PatternWitness
from slob_opt.problem.placement import Placement

SLACKS = (0.002, 0.01, 0.03, 0.1, 1.0)
"""Shares of the bound by which a pattern may fall short of its price and still be packed, tried in turn."""


def seed_columns(problem: PatternProblem, patterns: np.ndarray) -> Columns:
    """Return a few patterns with rates to start pricing from; empty when no pattern has a rate."""
    rng = np.random.default_rng(0)
    size = patterns.shape[0]
    picked = np.sort(rng.choice(size, min(size, 2000), replace=False))
    found = columns_above(problem, patterns[picked], np.full(picked.size, 1e-9))
    if found.size or picked.size == size:
        return found
    return columns_above(problem, patterns, np.full(size, 1e-9))


def plan_from_columns(problem: PatternProblem, columns: Columns, chosen: tuple[int, ...]) -> Placement | None:
    """Return the placement of chosen columns, ``None`` when nothing is chosen."""
    plans = [plan_of(problem, columns.counts[i].astype(np.int64), columns.rates, i) for i in chosen]
    return realise(problem.instance.table, problem.groups, plans) if plans else None


def pack_columns(problem: PatternProblem, columns: Columns) -> tuple[float, Placement | None]:
    """Return the best packing of some columns and its placement."""
    usage = columns.counts.astype(np.int64) @ problem.groups.usage.T
    value, chosen = pack(problem.groups.pool_cards, usage, columns.rates.rate)
    return value, plan_from_columns(problem, columns, chosen)


def solve_throughput(
    name: str, problem: PatternProblem, incumbent: Placement | None, limits: SolveLimits, started: float
) -> SolveResult:
    """Return the best disjoint pipelines and a proof; with relaxed patterns the proof is a bound only."""
    instance = problem.instance
    history: list[HistoryPoint] = []
    best, worth = better_plan(instance, incumbent)

    def elapsed() -> float:
        return time.perf_counter() - started

    def out_of_time() -> bool:
        return limits.time_s is not None and elapsed() > limits.time_s

    patterns = all_patterns(problem)
    columns = seed_columns(problem, patterns)
    details: list[tuple[str, float | int | str | bool]] = [("route", "patterns"), ("patterns", patterns.shape[0])]
    if columns.size == 0:
        return outcome(
            instance, name, None, None, elapsed_s=elapsed(), incumbent=incumbent, limits=limits, details=details,
            is_infeasible=True, witness=EnumerationWitness(patterns.shape[0]),
            message="no set of devices holds the model within the caps",
        )  # fmt: skip
    lp = price_out(
        problem,
        patterns,
        columns,
        is_out_of_time=out_of_time,
        on_bound=lambda bound: history.append(HistoryPoint(elapsed(), worth, -bound)),
    )
    bound, witness = lp.bound, PatternWitness(group_prices(problem, lp))
    details += [("columns", lp.columns.size), ("pricing_rounds", lp.num_rounds), ("lp_bound", lp.bound)]
    _, plan = pack_columns(problem, lp.columns)
    best, worth = better_plan(instance, best, plan)
    history.append(HistoryPoint(elapsed(), worth, -bound))
    price = (patterns.astype(np.int64) @ problem.groups.usage.T) @ lp.prices
    for share in SLACKS:
        rate = -worth if worth is not None else 0.0
        if out_of_time() or bound - rate <= OPTIMALITY_TOLERANCE * rate:
            break
        slack = min(share * lp.bound, (lp.bound - rate) * (1 + 1e-9))
        survivors, listed_value, plan = _pack_survivors(problem, patterns, price, slack)
        details += [("survivors", survivors.size)]
        best, worth = better_plan(instance, best, plan if problem.is_exact else None)
        certain = max(listed_value, lp.bound - slack)
        if certain < bound:
            bound = certain
            witness = _witness(problem, lp, slack, survivors)
        history.append(HistoryPoint(elapsed(), worth, -bound))
        if slack < share * lp.bound:
            break
    return outcome(
        instance, name, best, -bound, elapsed_s=elapsed(), witness=witness, history=history, limits=limits,
        details=details,
        message="" if problem.is_exact else "pattern bound with the smallest hops and layers",
    )  # fmt: skip


def _pack_survivors(
    problem: PatternProblem, patterns: np.ndarray, price: np.ndarray, slack: float
) -> tuple[Columns, float, Placement | None]:
    """Return the patterns within `slack` of their price, their best packing and its placement."""
    survivors = columns_above(problem, patterns, np.maximum(price - slack, 1e-9))
    value, plan = pack_columns(problem, survivors)
    return survivors, value, plan


def group_prices(problem: PatternProblem, lp: PricedLp) -> tuple[float, ...]:
    """Return (G,) tokens/s a device of each group."""
    return tuple(float(p) for p in problem.groups.usage.T @ lp.prices)


def _witness(problem: PatternProblem, lp: PricedLp, slack: float, survivors: Columns) -> PatternWitness:
    """Return the witness of prices, slack and listed patterns."""
    return PatternWitness(
        group_prices(problem, lp),
        float(slack),
        tuple(tuple(int(n) for n in row) for row in survivors.counts),
        tuple(float(r) for r in survivors.rates.rate),
    )
