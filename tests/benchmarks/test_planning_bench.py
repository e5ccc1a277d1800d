"""Speed of planning: `slob` on a dozen devices, the proof of 24 cards, and the rates of many patterns.

Ratios (``slob`` against ``parametric`` and the start of it all, the table) stand in ``extra_info`` of each benchmark.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import pytest

from experiments.instances import scale_problem, single24
from experiments.random_instances import Recipe, draw_small
from slob_opt.planning.parametric import ParametricPlanner
from slob_opt.planning.pattern_rates import best_rates, pattern_problem
from slob_opt.planning.priced_lp import all_patterns
from slob_opt.planning.result import Planner, Status
from slob_opt.slob.placement import SlobPlanner

pytestmark = pytest.mark.benchmark

RECIPES = [
    Recipe(12, links, in_flight)  # type: ignore[arg-type]  # links are of the two kinds
    for links in ("uniform", "general")
    for in_flight in (1, 4, None)
]


def best_of(call: Callable[[], object], count: int = 3) -> float:
    """Shortest of a few calls, seconds."""
    walls = []
    for _ in range(count):
        began = time.perf_counter()
        call()
        walls.append(time.perf_counter() - began)
    return min(walls)


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda r: r.name)
def test_slob_on_12_devices(benchmark, recipe: Recipe) -> None:
    instance = draw_small(recipe, 12).instance()
    planner: Planner = SlobPlanner()
    result = benchmark(planner.solve, instance)
    exact = ParametricPlanner().solve(instance)
    benchmark.extra_info["gap_to_optimum"] = 0.0
    if exact.objective is not None and result.objective is not None:
        benchmark.extra_info["gap_to_optimum"] = (result.objective - exact.objective) / abs(result.objective)
    benchmark.extra_info["parametric_over_slob"] = exact.elapsed_s / max(result.elapsed_s, 1e-9)
    assert (result.objective is None) <= (exact.objective is None)


def test_parametric_proves_single24(benchmark) -> None:
    instance = single24().instance()
    slob_s = best_of(lambda: SlobPlanner().solve(instance))
    result = benchmark.pedantic(ParametricPlanner().solve, (instance,), rounds=3, warmup_rounds=1)
    benchmark.extra_info["parametric_over_slob"] = result.elapsed_s / slob_s
    assert result.status is Status.OPTIMAL


def test_exact_rates_of_all_patterns_of_single24(benchmark) -> None:
    problem = pattern_problem(single24().instance())
    patterns = all_patterns(problem)
    floor = np.zeros(patterns.shape[0])
    found = benchmark.pedantic(best_rates, (problem, patterns, floor), {"exact": True}, rounds=3)
    relaxed_s = best_of(lambda: best_rates(problem, patterns, floor, exact=False))
    benchmark.extra_info["patterns"] = int(patterns.shape[0])
    benchmark.extra_info["relaxed_s"] = relaxed_s
    assert patterns.shape[0] == 5 * 9 * 13 - 1
    assert np.any(found.rate > 0)


@pytest.mark.parametrize("num_devices", [256, 1024])
def test_slob_alone(benchmark, num_devices: int) -> None:
    instance = scale_problem(num_devices).instance()
    result = benchmark.pedantic(SlobPlanner().solve, (instance,), rounds=3, warmup_rounds=1)
    assert result.placement is not None
