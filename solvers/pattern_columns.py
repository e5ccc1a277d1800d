"""Throughput over type counts: all patterns priced, reduced-cost fixing, integer master over the rest.

A second way to the optimum of :mod:`slob_opt.planning.pattern_throughput`: prices and columns are shared, the packing
is an integer program instead of a dynamic program. FORMULATION.md, section 4.
"""

from __future__ import annotations

import numpy as np

from slob_opt.planning.pattern_rates import PatternProblem
from slob_opt.planning.pattern_throughput import plan_from_columns
from slob_opt.planning.priced_lp import Columns, all_patterns
from slob_opt.planning.witness import PatternWitness, ThresholdWitness
from slob_opt.problem.placement import Placement
from solvers.pattern_attempt import PatternAttempt
from solvers.pattern_master import PackingAnswer, PackingProgram, column_copies, solve_packing, undominated
from solvers.pattern_pricing import LEAST_RATE, Prices, RateLimits, price_all

SLACKS = (0.02, 0.1, 1.0)
"""Shares of the bound by which a pattern may fall short of its price and still be a column of the master, in turn."""

MAX_LISTED = 60_000
"""Most patterns in a master and its witness. Chosen; the 42-node cluster of 7 types needs about a thousand."""

FIRST_SHARE = 0.3
"""Share of the time left that the master over priced columns may take; it only makes the incumbent."""


def pattern_program(problem: PatternProblem, columns: Columns) -> tuple[PackingProgram, np.ndarray]:
    """Return the master over the undominated of some columns, and their indices."""
    usage = columns.counts.astype(np.int64) @ problem.groups.usage.T
    kept = undominated(usage, columns.rates.rate)
    cards = problem.groups.pool_cards
    program = PackingProgram(
        rows=usage[kept].T,
        limits=cards,
        worth=columns.rates.rate[kept],
        most=column_copies(usage[kept], cards),
        row_names=tuple(f"pool[{k}]" for k in range(cards.size)),
        column_names=tuple(f"x[{p}]" for p in kept.tolist()),
    )
    return program, kept


def solve_columns(problem: PatternProblem, attempt: PatternAttempt) -> None:
    """Add plan, bound and witness of the pattern route to an attempt; a bound only when patterns are relaxed.

    Raises
    ------
    SolverUnavailable
        When PuLP or HiGHS isn't installed.
    """
    patterns = all_patterns(problem)
    attempt.note("route", "patterns").note("patterns", patterns.shape[0])
    limits = RateLimits(problem, patterns, attempt)
    lp = price_all(limits)
    if lp is None:
        if attempt.is_out_of_time():
            attempt.message = "the time limit passed before all patterns had a price"
        else:
            attempt.exclude(ThresholdWitness("pattern"))
        return
    attempt.add_bound(-lp.bound, _witness(problem, lp))
    attempt.note("columns", lp.columns.size).note("pricing_passes", lp.num_passes).note("lp_bound", lp.bound)
    if problem.is_exact:
        columns = limits.columns_of(lp.columns)
        program, kept = pattern_program(problem, columns)
        answer = _solve(attempt, program, FIRST_SHARE)
        if answer is not None:
            attempt.add_plan(_plan(problem, columns, kept, answer))
    _fix_and_solve(limits, lp)


def _fix_and_solve(limits: RateLimits, lp: Prices) -> None:
    """Solve masters over all patterns that fall short of their price by at most a slack, which grows in turn."""
    problem, attempt = limits.problem, limits.attempt
    price = (limits.patterns.astype(np.int64) @ problem.groups.usage.T) @ lp.prices
    for share in SLACKS:
        rate = 0.0 if attempt.worth is None else -attempt.worth
        if attempt.is_out_of_time() or attempt.is_closed():
            return
        gap = (lp.bound - rate) * (1 + 1e-9)
        slack = min(share * lp.bound, gap)
        found = limits.above(np.arange(price.size), np.maximum(price - slack, LEAST_RATE))
        if found is None:
            return
        listed = limits.columns_of(found)
        attempt.note("listed", listed.size)
        if listed.size > MAX_LISTED:
            attempt.message = f"{listed.size} patterns within {slack:.4g} tokens/s of their price are too many"
            return
        certain = lp.bound - slack
        if listed.size:
            program, kept = pattern_program(problem, listed)
            attempt.note("master_columns", kept.size)
            answer = _solve(attempt, program, 1.0)
            if answer is None:
                return
            attempt.add_plan(_plan(problem, listed, kept, answer) if problem.is_exact else None)
            certain = max(certain, np.inf if answer.bound is None else answer.bound)
        if np.isfinite(certain):
            attempt.add_bound(-float(certain), _witness(problem, lp, slack, listed))
        if slack == gap:
            return


def _solve(attempt: PatternAttempt, program: PackingProgram, share: float) -> PackingAnswer | None:
    """Solve a master within a share of the time left; ``None`` when there is none."""
    limits = attempt.backend_limits(share)
    if limits is None:
        return None
    answer = solve_packing(program, limits, attempt.limits.memory_bytes)
    attempt.note_report(answer.report)
    return answer


def _plan(problem: PatternProblem, columns: Columns, kept: np.ndarray, answer: PackingAnswer) -> Placement | None:
    if answer.chosen is None:
        return None
    chosen = tuple(int(p) for p, n in zip(kept, answer.chosen, strict=True) for _ in range(int(n)))
    return plan_from_columns(problem, columns, chosen)


def _witness(problem: PatternProblem, lp: Prices, slack: float = 0.0, listed: Columns | None = None) -> PatternWitness:
    """Return the witness of prices (one a group, of one device), slack and listed patterns."""
    prices = tuple(float(p) for p in problem.groups.usage.T @ lp.prices)
    if listed is None:
        return PatternWitness(prices, slack)
    return PatternWitness(
        prices,
        float(slack),
        tuple(tuple(int(n) for n in row) for row in listed.counts),
        tuple(float(r) for r in listed.rates.rate),
    )
