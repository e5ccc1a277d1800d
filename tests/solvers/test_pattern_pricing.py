"""Prices over all patterns: valid for each of them, and kept limits answer as a fresh look would."""

from __future__ import annotations

import time

import numpy as np
import pytest
from solver_instances import random_instance

from slob_opt.planning.parametric import ParametricPlanner
from slob_opt.planning.pattern_rates import PatternProblem, best_rates, pattern_problem
from slob_opt.planning.priced_lp import all_patterns
from slob_opt.planning.result import SolveLimits
from solvers import pattern_pricing
from solvers.pattern_attempt import PatternAttempt
from solvers.pattern_pricing import RateLimits, price_all


def setting(seed: int, limits: SolveLimits | None = None) -> tuple[PatternProblem, RateLimits]:
    instance = random_instance(seed, 9, 8, objective="throughput", is_uniform=True, is_identical=True)
    problem = pattern_problem(instance)
    attempt = PatternAttempt("test", instance, limits or SolveLimits(), time.perf_counter())
    return problem, RateLimits(problem, all_patterns(problem), attempt)


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("sample", [20_000, 6])
def test_no_pattern_earns_more_than_its_price(seed: int, sample: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pattern_pricing, "SAMPLE", sample)
    problem, limits = setting(seed)
    exact = best_rates(problem, limits.patterns, np.zeros(len(limits.patterns)), exact=True)
    found = price_all(limits)
    if not np.any(exact.rate > 0):
        assert found is None
        return
    assert found is not None
    price = limits.patterns.astype(np.int64) @ problem.groups.usage.T @ found.prices
    assert np.all(exact.rate <= price * (1 + 1e-12))
    assert found.bound == pytest.approx(found.prices @ problem.groups.pool_cards, rel=1e-12)
    optimum = ParametricPlanner().solve(problem.instance).objective
    assert optimum is not None
    assert -optimum <= found.bound * (1 + 1e-12)


@pytest.mark.parametrize("seed", range(6))
def test_kept_limits_answer_like_a_fresh_look(seed: int) -> None:
    problem, limits = setting(seed)
    size = len(limits.patterns)
    exact = best_rates(problem, limits.patterns, np.zeros(size), exact=True).rate
    rng = np.random.default_rng(seed)
    for slack in (0.0, 5.0, 0.0, 1e9, 0.0):
        floor = rng.uniform(0.5, 1.1, size) * np.maximum(exact, 1.0)
        where = np.sort(rng.choice(size, max(1, size // 2), replace=False))
        found = limits.above(where, floor[where], slack)
        assert found is not None
        assert found.tolist() == where[exact[where] > floor[where]].tolist()
        assert np.all(limits.limit >= exact * (1 - 1e-12))
        if found.size:
            assert np.allclose(limits.columns_of(found).rates.rate, exact[found], rtol=1e-12)
            assert np.array_equal(limits.columns_of(found).counts, limits.patterns[found])


def test_no_time_gives_no_prices(monkeypatch: pytest.MonkeyPatch) -> None:
    """One pattern is known, then the clock stops: a program over part of the columns is no bound, so there is none."""
    _, limits = setting(2, SolveLimits(time_s=100.0))
    known = limits.above(np.array([len(limits.patterns) - 1]), np.array([1e-9]))
    assert known is not None
    assert known.size == 1
    monkeypatch.setattr(pattern_pricing, "_seed", lambda limits: known)
    limits.attempt.began -= 1000
    assert price_all(limits) is None
    assert limits.attempt.bound is None


def test_time_that_runs_out_later_gives_scaled_prices(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock stops after the first pass over the box; the bound is then looser, and still one."""
    monkeypatch.setattr(pattern_pricing, "COLUMNS_PER_ROUND", 1)
    monkeypatch.setattr(pattern_pricing, "_seed", _two_columns)
    problem, limits = setting(2)
    whole = price_all(limits)
    assert whole is not None
    assert whole.num_passes > 1
    _, stopped = setting(2)
    calls = iter([False])
    monkeypatch.setattr(PatternAttempt, "is_out_of_time", lambda self: next(calls, True))
    early = price_all(stopped)
    assert early is not None
    exact = best_rates(problem, stopped.patterns, np.zeros(len(stopped.patterns)), exact=True).rate
    price = stopped.patterns.astype(np.int64) @ problem.groups.usage.T @ early.prices
    assert np.all(exact <= price * (1 + 1e-12))
    assert early.bound >= whole.bound * (1 - 1e-9)


def _two_columns(limits: RateLimits) -> np.ndarray:
    """A start of one pattern a pool, so that pricing has something to do."""
    found = limits.above(np.arange(len(limits.patterns)), np.full(len(limits.patterns), 1e-9))
    assert found is not None
    usage = limits.patterns[found].astype(np.int64) @ limits.problem.groups.usage.T
    per_pool = [found[np.flatnonzero(usage[:, k])[-1]] for k in range(usage.shape[1]) if usage[:, k].any()]
    return np.unique(np.array(per_pool, np.int64))
