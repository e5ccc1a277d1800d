"""The exact planner against the enumeration of every plan, on all its routes, and what it must not claim."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_instances import kernel_instance
from slob_builders import relabelled, tiny_instances, without_last_device
from two_level import two_level_instance

from slob_opt.cost.direct import DirectClass, direct_table
from slob_opt.planning.certify import certify
from slob_opt.planning.evaluate import evaluate
from slob_opt.planning.exhaustive import ExhaustivePlanner
from slob_opt.planning.instance import PlacementInstance
from slob_opt.planning.objectives import IntervalObjective, ThroughputObjective
from slob_opt.planning.parametric import ParametricPlanner
from slob_opt.planning.result import OPTIMALITY_TOLERANCE, SolveResult, Status
from slob_opt.planning.split import pipeline_of
from slob_opt.problem.placement import Placement

TOLERANCE = 2e-6
"""Twice what OPTIMAL allows."""


def check(instance: PlacementInstance, *, is_exact: bool = True) -> SolveResult:
    """Solve and compare with the enumeration; returns the result."""
    oracle, result = ExhaustivePlanner().solve(instance), ParametricPlanner().solve(instance)
    if oracle.objective is None:
        assert oracle.status is Status.INFEASIBLE
        assert result.placement is None
        assert result.status is Status.INFEASIBLE if is_exact else result.status is not Status.OPTIMAL
        return result
    assert result.status is not Status.INFEASIBLE
    allowed = TOLERANCE * abs(oracle.objective)
    if result.bound is not None and oracle.status is Status.OPTIMAL:
        assert result.bound <= oracle.objective + allowed
    if result.objective is not None:
        found = evaluate(instance, result.placement)  # type: ignore[arg-type]  # a plan comes with an objective
        assert found.violations == ()
        assert result.objective == pytest.approx(found.objective, rel=1e-12)
        assert oracle.bound is None or result.objective >= oracle.bound - allowed
    if is_exact:
        assert result.status is Status.OPTIMAL
        assert result.objective == pytest.approx(oracle.objective, rel=TOLERANCE)
    elif result.status is Status.OPTIMAL and oracle.status is Status.OPTIMAL:
        assert result.objective == pytest.approx(oracle.objective, rel=TOLERANCE)
    return result


@pytest.mark.parametrize("seed", range(60))
def test_one_link_and_equal_layers_match_the_enumeration(seed: int) -> None:
    check(kernel_instance(seed, is_uniform=True))


@pytest.mark.parametrize("seed", range(60, 110))
def test_general_links_match_the_enumeration(seed: int) -> None:
    check(kernel_instance(seed, is_uniform=False))


@pytest.mark.parametrize("seed", range(110, 150))
def test_unequal_layers_on_one_link_match_the_enumeration(seed: int) -> None:
    check(kernel_instance(seed, is_uniform=True, is_identical=False))


@pytest.mark.parametrize("seed", range(150, 175))
def test_unequal_layers_on_general_links_are_bounded(seed: int) -> None:
    instance = kernel_instance(seed, is_uniform=False, is_identical=False)
    check(instance, is_exact=instance.table.has_uniform_links)


@pytest.mark.parametrize("seed", range(175, 205))
@pytest.mark.parametrize("is_identical", [True, False])
def test_network_cards_never_lead_to_a_false_optimum(seed: int, is_identical: bool) -> None:
    check(kernel_instance(seed, has_network_cards=True, is_identical=is_identical), is_exact=False)


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("is_throughput", [False, True])
def test_groups_that_share_cards_match_the_enumeration(seed: int, is_throughput: bool) -> None:
    check(two_level_instance(seed, is_throughput=is_throughput, max_devices=5, num_layers=4))


@settings(max_examples=40, deadline=None)
@given(tiny_instances(max_devices=4, max_layers=5))
def test_any_tiny_instance(instance: PlacementInstance) -> None:
    is_exact = instance.table.has_identical_layers or instance.table.has_uniform_links
    check(instance, is_exact=is_exact)


@settings(max_examples=25, deadline=None)
@given(tiny_instances(max_devices=4, max_layers=5), st.randoms(use_true_random=False))
def test_numbering_devices_differently_changes_no_proven_value(instance: PlacementInstance, rng: object) -> None:
    order = list(range(instance.table.num_devices))
    rng.shuffle(order)  # type: ignore[attr-defined]  # random.Random
    one, other = ParametricPlanner().solve(instance), ParametricPlanner().solve(relabelled(instance, order))
    if instance.table.has_identical_layers or instance.table.has_uniform_links:
        assert one.status is other.status
        assert other.objective == (None if one.objective is None else pytest.approx(one.objective, rel=TOLERANCE))
    assert other.bound == (None if one.bound is None else pytest.approx(one.bound, rel=TOLERANCE))
    assert (one.status is Status.INFEASIBLE) == (other.status is Status.INFEASIBLE)


@pytest.mark.parametrize("seed", range(15))
def test_a_device_less_is_never_better(seed: int) -> None:
    instance = kernel_instance(seed, num_devices=4)
    more, less = ParametricPlanner().solve(instance), ParametricPlanner().solve(without_last_device(instance))
    if less.objective is not None:
        assert more.objective is not None
        assert more.objective <= less.objective + TOLERANCE * abs(less.objective)


def test_routes_are_all_taken() -> None:
    """The instances above exercise each way to solve; if a route is renamed or lost, this says so."""
    routes: Counter[str] = Counter()
    for seed in range(12):
        for links in (True, False):
            for layers in (True, False):
                details = dict(
                    ParametricPlanner().solve(kernel_instance(seed, is_uniform=links, is_identical=layers)).details
                )
                routes[str(details.get("route"))] += 1
    assert {"layer program", "patterns", "subsets", "layered"} <= set(routes)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize(("is_uniform", "is_identical"), [(True, True), (False, True), (True, False)])
def test_proofs_survive_the_certificate(seed: int, is_uniform: bool, is_identical: bool) -> None:
    instance = kernel_instance(seed, num_devices=4, max_layers=5, is_uniform=is_uniform, is_identical=is_identical)
    result = ParametricPlanner().solve(instance)
    certificate = certify(result, instance)
    assert certificate.violations == ()
    assert certificate.bound_status in ("verified", "none")
    assert certificate.status is result.status


def slow_link(latency_s: float, bytes_per_s: float = 1e9) -> PlacementInstance:
    """Two cards that hold half of a model of two layers each, one far from the other; pair links force subsets."""
    pairs = [[(bytes_per_s, latency_s), (bytes_per_s, latency_s)], [(bytes_per_s, latency_s * 2)] * 2]
    table = direct_table(
        [DirectClass("a", 2, 100, 1e-3)], 2, layer_bytes=100, hop_bytes_per_token=10_000, pair_links=pairs
    )
    return PlacementInstance(table, ThroughputObjective(8))


@pytest.mark.parametrize("latency_s", [20.0, 200.0, 4000.0])
def test_hops_of_minutes_do_not_make_a_model_infeasible(latency_s: float) -> None:
    """The search once stopped at hops of 16 s and called what needs longer ones infeasible."""
    result = check(slow_link(latency_s))
    assert result.status is Status.OPTIMAL


def test_a_link_that_is_busy_for_a_minute_binds() -> None:
    result = check(slow_link(0.0, bytes_per_s=100.0))
    assert result.placement is not None
    # 10,000 bytes a sequence at 100 bytes/s: 100 s busy for each, so no K and no b makes more than 1 / 100 tokens/s.
    assert result.objective == pytest.approx(-0.01, rel=1e-3)


def test_link_classes_that_no_pair_uses_do_not_count() -> None:
    """Two cards left of a table with a quicker link elsewhere: the quick link is in the table but joins nobody."""
    quick, slow = (1e9, 0.0), (1e9, 10e-3)
    pairs = [[slow, slow, quick], [slow, slow, quick], [quick, quick, quick]]
    table = direct_table([DirectClass("a", 3, 100, 1e-3)], 2, layer_bytes=100, pair_links=pairs)
    instance = without_last_device(PlacementInstance(table, IntervalObjective(1)))
    assert instance.table.has_uniform_links
    assert instance.table.hop_s.shape[1] == 2
    result = check(instance)
    assert result.objective == pytest.approx(22e-3, rel=1e-5)  # 2 layers of 1 ms, a hop and a return of 10 ms


def test_no_shape_at_all_is_infeasible() -> None:
    table = direct_table([DirectClass("a", 2, 500, 1e-3)], 4, layer_bytes=100, batch_sizes=(4,))
    instance = PlacementInstance(table, ThroughputObjective(4, None, 1))
    assert instance.shapes() == ()
    assert ParametricPlanner().solve(instance).status is Status.INFEASIBLE


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e5])
def test_pricing_ends_whatever_the_size_of_rates(scale: float) -> None:
    """Rates of 1e-5 tokens/s once met the linear program's absolute tolerance, and columns were found for ever."""
    classes = [
        DirectClass(f"c{i}", 4, 350 + 60 * i, (2.0 + 1.3 * i) * 1e-3 / scale, fixed_s=1e-4 / scale) for i in range(3)
    ]
    table = direct_table(classes, 10, layer_bytes=100, kv_bytes=3, latency_s=1e-3 / scale)
    result = ParametricPlanner().solve(PlacementInstance(table, ThroughputObjective(6)))
    assert result.status is Status.OPTIMAL
    assert result.gap is not None
    assert result.gap <= OPTIMALITY_TOLERANCE


def test_a_box_too_large_keeps_the_incumbent_and_a_bound() -> None:
    classes = [DirectClass(f"c{i}", 9, 300 + 10 * i, (1 + 0.2 * i) * 1e-3) for i in range(7)]
    table = direct_table(classes, 20, layer_bytes=100, batch_sizes=(1,), latency_s=1e-4)
    instance = PlacementInstance(table, ThroughputObjective(2))
    devices = tuple(range(7))
    plan = Placement((pipeline_of(table, devices, (3, 3, 3, 3, 3, 3, 2), 2, 1),))
    worth = evaluate(instance, plan).objective
    assert worth is not None
    result = ParametricPlanner().solve(instance, incumbent=plan)
    assert result.status is Status.FEASIBLE
    assert result.objective == worth
    assert result.bound is not None
    assert result.bound <= worth
    assert np.isfinite(result.bound)


def test_nothing_fits_in_a_large_box() -> None:
    classes = [DirectClass(f"c{i}", 9, 50, 1e-3) for i in range(7)]
    table = direct_table(classes, 20, layer_bytes=100, batch_sizes=(1,))
    result = ParametricPlanner().solve(PlacementInstance(table, ThroughputObjective(2)))
    assert result.placement is None
    assert result.status is Status.INFEASIBLE
    assert result.bound is None


def test_incumbents_are_never_made_worse_and_repeats_are_equal() -> None:
    for seed in range(10):
        instance = kernel_instance(seed, has_network_cards=seed % 2 == 0, is_identical=seed % 3 > 0)
        best = ExhaustivePlanner().solve(instance)
        first = ParametricPlanner().solve(instance, incumbent=best.placement)
        again = ParametricPlanner().solve(instance, incumbent=best.placement)
        blank = {"elapsed_s": 0.0, "history": ()}
        assert replace(first, **blank) == replace(again, **blank)
        if best.objective is not None:
            assert first.objective is not None
            assert first.objective <= best.objective
