"""Plans of few devices by subsets: the optimum where no link is busy, sound where one is."""

from __future__ import annotations

import numpy as np
import pytest
from kernel_instances import kernel_instance
from two_level import two_level_instance

from experiments.random_instances import Recipe, draw_small
from slob_opt.planning.evaluate import evaluate
from slob_opt.planning.instance import PlacementInstance
from slob_opt.planning.parametric import ParametricPlanner
from slob_opt.planning.pattern_search import PatternSearch
from slob_opt.problem.placement import Placement
from slob_opt.slob.routing import Router
from slob_opt.slob.subset_search import SubsetSearch, most_devices


def best_plan(instance: PlacementInstance) -> tuple[Placement | None, SubsetSearch]:
    router = Router(instance, PatternSearch(instance, 0.0))
    subsets = SubsetSearch(router)
    routes = subsets.best_routes()
    for route in routes:
        # What the search believes of a route is what the cost table says.
        report = evaluate(instance, Placement((router.pipeline(route),))).pipelines[0]
        assert report.rate >= route.rate(router.search) * (1 - 1e-12)
    return (Placement(tuple(router.pipeline(route) for route in routes)) if routes else None), subsets


def gap(instance: PlacementInstance) -> float | None:
    if not instance.shapes():
        return None  # the planner doesn't ask: no number of micro-batches is allowed
    plan, _ = best_plan(instance)
    best = ParametricPlanner().solve(instance)
    if best.objective is None:
        assert plan is None
        return None
    assert plan is not None
    found = evaluate(instance, plan)
    assert found.violations == ()
    assert found.objective is not None
    return (found.objective - best.objective) / abs(best.objective)


@pytest.mark.parametrize("in_flight", [1, 4, None])
@pytest.mark.parametrize("num_devices", [2, 5, 8])
def test_general_links_of_the_study_are_solved(num_devices: int, in_flight: int | None) -> None:
    recipes = [Recipe(num_devices, "general", in_flight, seed % 2 == 0) for seed in range(6)]
    gaps = [gap(draw_small(recipe, seed).instance()) for seed, recipe in enumerate(recipes)]
    known = [g for g in gaps if g is not None]
    assert len(known) >= 3
    assert max(known) <= (1e-5 if in_flight is not None else 0.01)


@pytest.mark.parametrize("is_throughput", [False, True])
def test_ends_and_busy_links_of_odd_instances(is_throughput: bool) -> None:
    # Embedding and head that fit on few devices, links that are busy for longer than a stage, more devices than layers.
    gaps = [gap(kernel_instance(s, is_uniform=False, is_throughput=is_throughput)) for s in range(60)]
    known = np.array([g for g in gaps if g is not None])
    assert known.size >= 20
    assert np.quantile(known, 0.9) <= 1e-5
    assert known.max() <= 0.1


@pytest.mark.parametrize("seed", range(12))
def test_devices_of_a_family_share_no_card(seed: int) -> None:
    instance = two_level_instance(seed, is_throughput=True, max_devices=5, num_layers=4)
    plan, subsets = best_plan(instance)
    if plan is not None:
        cards = [card for pipeline in plan.pipelines for card in pipeline.cards]
        assert len(set(cards)) == len(cards)
    for mask in subsets.masks:
        held = [c for d in range(instance.table.num_devices) if mask >> d & 1 for c in instance.table.device_cards[d]]
        assert len(set(held)) == len(held)


def test_estimates_are_reached() -> None:
    # A subset's estimate is the rate of one real choice of ends, so making it exact never lowers it (no link is busy).
    instance = draw_small(Recipe(7, "general", 1, False), 3).instance()
    search = PatternSearch(instance, 0.0)
    subsets = SubsetSearch(Router(instance, search))
    found = subsets.estimates()
    subsets.best_routes()
    exact = np.flatnonzero(subsets.is_exact & (subsets.rate > 0))
    assert exact.size >= 5
    assert np.all(subsets.rate[exact] >= found.rate[exact] * (1 - 1e-12))


def test_subsets_are_for_few_devices() -> None:
    assert most_devices(kernel_instance(0, is_throughput=True)) < most_devices(kernel_instance(0, is_throughput=False))
