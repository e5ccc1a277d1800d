"""Rates of all patterns, the priced linear program over them, and what follows from both."""

from __future__ import annotations

import numpy as np
import pytest
from kernel_instances import kernel_instance
from pattern_oracle import every_pattern, interval_of_pattern
from scipy.optimize import linprog
from two_level import two_level_instance

from slob_opt.cost.direct import DirectClass, direct_table
from slob_opt.cost.table import TICK_S
from slob_opt.planning.certify import certify
from slob_opt.planning.column_search import dual_prices, neighbours, priced_candidates, starting_patterns, usage_of
from slob_opt.planning.exhaustive import ExhaustivePlanner
from slob_opt.planning.instance import PlacementInstance
from slob_opt.planning.objectives import IntervalObjective, ThroughputObjective
from slob_opt.planning.packing import pack
from slob_opt.planning.pattern_rates import PatternProblem, best_rates, pattern_problem, plan_of
from slob_opt.planning.pattern_search import COARSE_STEP, PatternSearch
from slob_opt.planning.pattern_throughput import pack_columns, seed_columns, solve_throughput
from slob_opt.planning.priced_lp import PRICE_TOLERANCE, all_patterns, columns_above, price_out, solve_master
from slob_opt.planning.relaxed_pricing import interval_grid, relaxed_price_bound, stock_worth
from slob_opt.planning.result import SolveLimits, Status


def problems(count: int, **kwargs: object) -> list[PatternProblem]:
    """Problems in which some pattern has a rate."""
    found = []
    for seed in range(200):
        instance = kernel_instance(seed, is_uniform=True, is_throughput=True, **kwargs)  # type: ignore[arg-type]
        problem = pattern_problem(instance)
        patterns = all_patterns(problem)
        if problem.costs and best_rates(problem, patterns, np.zeros(len(patterns)), exact=True).rate.max() > 0:
            found.append(problem)
        if len(found) == count:
            return found
    raise AssertionError("too few instances with a plan")


PROBLEMS = problems(12)


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda p: p.instance.name)
def test_best_rates_match_every_order_and_shape(problem: PatternProblem) -> None:
    patterns = all_patterns(problem)
    assert sorted(map(tuple, patterns.tolist())) == sorted(
        map(tuple, every_pattern(problem.groups, problem.max_devices).tolist())
    )
    exact = best_rates(problem, patterns, np.zeros(len(patterns)), exact=True)
    relaxed = best_rates(problem, patterns, np.zeros(len(patterns)), exact=False)
    assert np.all(relaxed.rate >= exact.rate)
    for i, counts in enumerate(patterns):
        values = [
            k * b / (interval_of_pattern(problem.instance, problem.groups, counts, (row, k, b)) * TICK_S)
            for row, k, b in problem.instance.shapes()
        ]
        assert exact.rate[i] == pytest.approx(max(values), rel=1e-12)
        if exact.rate[i] > 0:
            plan = plan_of(problem, counts.astype(np.int64), exact, i)
            assert sum(plan.layers) == problem.num_layers


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda p: p.instance.name)
def test_floors_leave_out_exactly_what_does_not_beat_them(problem: PatternProblem) -> None:
    patterns = all_patterns(problem)
    full = best_rates(problem, patterns, np.zeros(len(patterns)), exact=True).rate
    floor = np.where(np.arange(len(patterns)) % 2, full, full * 0.999)
    columns = columns_above(problem, patterns, np.maximum(floor, 1e-9))
    expected = patterns[(full > floor) & (full > 1e-9)]
    assert columns.counts.tolist() == expected.tolist()
    assert columns.rates.rate == pytest.approx(full[(full > floor) & (full > 1e-9)], rel=1e-12)


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda p: p.instance.name)
def test_searched_rates_match_the_enumerated_ones(problem: PatternProblem) -> None:
    patterns = all_patterns(problem).astype(np.int64)
    full = best_rates(problem, patterns.astype(np.int16), np.zeros(len(patterns)), exact=True).rate
    relaxed = best_rates(problem, patterns.astype(np.int16), np.zeros(len(patterns)), exact=False).rate
    search = PatternSearch(problem.instance)
    found = search.candidates(patterns)
    assert np.all(found.rate <= relaxed * (1 + 1e-12))
    assert np.all(found.rate >= relaxed * (1 - 2 * COARSE_STEP) - 1e-12)
    search.make_exact(found, np.flatnonzero(found.rate > 0))
    assert found.rate == pytest.approx(full, rel=1e-12)


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda p: p.instance.name)
def test_priced_out_bound_is_the_linear_program_over_all_patterns(problem: PatternProblem) -> None:
    patterns = all_patterns(problem)
    rates = best_rates(problem, patterns, np.zeros(len(patterns)), exact=True).rate
    usage = patterns.astype(np.int64) @ problem.groups.usage.T
    cards = problem.groups.pool_cards
    full = -linprog(-rates, A_ub=usage.T, b_ub=cards, method="highs").fun
    start = columns_above(problem, patterns, np.full(len(patterns), 1e-9)).select(np.array([0]))
    lp = price_out(problem, patterns, start)
    assert lp.is_complete
    assert lp.bound == pytest.approx(full, rel=1e-6)
    assert np.all(rates <= (usage @ lp.prices) * (1 + 10 * PRICE_TOLERANCE) + 1e-9)
    assert lp.bound == pytest.approx(float(lp.prices @ cards), rel=1e-9)
    assert lp.bound >= pack(cards, usage, rates)[0] * (1 - 1e-9)
    keys = [row.tobytes() for row in lp.columns.counts]
    assert len(keys) == len(set(keys))


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda p: p.instance.name)
def test_bounds_out_of_time_still_hold(problem: PatternProblem) -> None:
    patterns = all_patterns(problem)
    optimum = ExhaustivePlanner().solve(problem.instance)
    assert optimum.objective is not None
    columns = seed_columns(problem, patterns).select(np.array([0]))
    seen: list[float] = []
    lp = price_out(problem, patterns, columns, is_out_of_time=lambda: True, on_bound=seen.append)
    assert lp.bound >= -optimum.objective * (1 - 1e-9)
    assert min(seen) == lp.bound
    result = solve_throughput("patterns", problem, None, SolveLimits(time_s=0.0), 0.0)
    assert result.bound is not None
    assert result.bound <= optimum.objective * (1 - 1e-9) + 1e-6 * abs(optimum.objective)


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda p: p.instance.name)
def test_packed_columns_and_witness(problem: PatternProblem) -> None:
    result = solve_throughput("patterns", problem, None, SolveLimits(time_s=None), 0.0)
    optimum = ExhaustivePlanner().solve(problem.instance)
    assert result.status is Status.OPTIMAL
    assert result.objective == pytest.approx(optimum.objective, rel=2e-6)
    assert certify(result, problem.instance).bound_status == "verified"
    value, plan = pack_columns(problem, seed_columns(problem, all_patterns(problem)))
    assert plan is not None
    assert value == pytest.approx(-optimum.objective, rel=2e-6)  # type: ignore[operator]


@pytest.mark.parametrize("scale", [1e-7, 1.0, 1e7])
def test_master_does_not_depend_on_the_unit_of_rates(scale: float) -> None:
    usage, rates, cards = np.array([[2, 0], [1, 1], [0, 3]]), np.array([3.0, 2.5, 4.0]), np.array([4, 5])
    share, prices = solve_master(usage, rates, cards)
    scaled_share, scaled_prices = solve_master(usage, rates * scale, cards)
    assert scaled_share == pytest.approx(share)
    assert scaled_prices == pytest.approx(prices * scale)
    assert float(prices @ cards) == pytest.approx(float(share @ rates))
    assert np.all(usage @ prices >= rates - 1e-9)


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda p: p.instance.name)
def test_relaxed_prices_bound_the_optimum(problem: PatternProblem) -> None:
    optimum = ExhaustivePlanner().solve(problem.instance)
    assert optimum.objective is not None
    for prices in (None, dual_prices(problem.instance)):
        seen: list[float] = []
        bound, witness = relaxed_price_bound(problem, prices, time_s=None, on_bound=seen.append)
        assert bound >= -optimum.objective * (1 - 1e-9)
        if np.isfinite(bound):
            assert witness is not None
            assert seen[-1] == bound
            assert stock_worth(problem, np.array(witness.prices)) == pytest.approx(bound, rel=1e-9)


def test_relaxed_prices_see_that_nothing_fits() -> None:
    table = direct_table([DirectClass("a", 3, 50, 1e-3), DirectClass("b", 3, 90, 1e-3)], 4, layer_bytes=100)
    bound, _ = relaxed_price_bound(pattern_problem(PlacementInstance(table, ThroughputObjective(2))))
    assert bound == 0.0


def test_grid_keeps_a_cap_that_equals_the_shortest_interval() -> None:
    """Two cards without fixed times or hops reach exactly the cap of four layers of 1/1024 s; it once left no cell."""
    table = direct_table([DirectClass("a", 2, 200, 1 / 1024)], 4, layer_bytes=100, batch_sizes=(1,), bytes_per_s=1e18)
    instance = PlacementInstance(table, ThroughputObjective(1, 4 / 1024))
    optimum = ExhaustivePlanner().solve(instance)
    assert optimum.objective == -256.0
    problem = pattern_problem(instance)
    assert interval_grid(problem.costs[0], 4, 10).low.size > 0
    bound, _ = relaxed_price_bound(problem)
    assert bound >= 256.0


@pytest.mark.parametrize("seed", range(6))
def test_searched_columns_come_near_the_full_program(seed: int) -> None:
    rng = np.random.default_rng(seed)
    classes = [
        DirectClass(f"c{i}", 4, int(rng.integers(200, 900)), float(rng.uniform(1, 6)) * 1e-3, fixed_s=1e-4)
        for i in range(4)
    ]
    table = direct_table(classes, 12, layer_bytes=100, kv_bytes=3, head_bytes=20, latency_s=1e-3)
    instance = PlacementInstance(table, ThroughputObjective(6, 0.4, 32))
    problem, search = pattern_problem(instance), PatternSearch(instance)
    patterns = all_patterns(problem)
    full = price_out(problem, patterns, seed_columns(problem, patterns)).bound
    found = priced_candidates(search)
    share, prices = solve_master(usage_of(search, found.counts), found.rate, search.groups.pool_cards)
    assert float(share @ found.rate) >= 0.98 * full
    assert np.all(prices >= 0)


def test_start_and_neighbours_stay_within_cards() -> None:
    for seed in range(10):
        instance = two_level_instance(seed, is_throughput=False, max_devices=8)
        search = PatternSearch(instance)
        start = starting_patterns(search)
        assert np.all(usage_of(search, start) <= search.groups.pool_cards)
        assert np.all(start.sum(axis=1) > 0)
        found = priced_candidates(search)
        assert np.all(usage_of(search, found.counts) <= search.groups.pool_cards)
    around = neighbours(np.array([[1, 0]]), np.array([1, 2]))
    assert around.tolist() == [[0, 1], [1, 1]]


def test_single_pipelines_descend_to_the_best_pattern() -> None:
    classes = [DirectClass(f"c{i}", 5, 260 + 40 * i, (2.5 + i) * 1e-3, fixed_s=1e-4) for i in range(5)]
    table = direct_table(classes, 16, layer_bytes=100, latency_s=1e-3)
    for k in (1, 4):
        instance = PlacementInstance(table, IntervalObjective(k))
        problem = pattern_problem(instance)
        patterns = all_patterns(problem)
        best = best_rates(problem, patterns, np.zeros(len(patterns)), exact=False).rate.max()
        assert priced_candidates(PatternSearch(instance)).rate.max() == pytest.approx(best, rel=1e-4)
