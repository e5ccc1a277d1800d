"""The heuristic: how near it comes, what it never does, and the extremes it has to survive."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_instances import kernel_instance
from slob_builders import relabelled, tiny_instances
from two_level import two_level_instance

from slob_opt.cost.direct import DirectClass, direct_table
from slob_opt.planning.evaluate import evaluate
from slob_opt.planning.exhaustive import ExhaustivePlanner
from slob_opt.planning.instance import PlacementInstance
from slob_opt.planning.objectives import IntervalObjective, ThroughputObjective
from slob_opt.planning.parametric import ParametricPlanner
from slob_opt.planning.result import SolveResult, Status
from slob_opt.problem.placement import Placement
from slob_opt.slob.placement import SlobPlanner


def gap(instance: PlacementInstance) -> float | None:
    """Relative distance to the enumerated optimum; ``None`` when no plan exists. Checks what must always hold."""
    oracle, result = ExhaustivePlanner().solve(instance), SlobPlanner().solve(instance)
    assert result.status in (Status.FEASIBLE, Status.UNKNOWN)
    assert result.bound is None
    if result.placement is not None:
        found = evaluate(instance, result.placement)
        assert found.violations == ()
        assert result.objective == found.objective
    if oracle.objective is None:
        assert result.placement is None
        assert result.message
        return None
    assert result.objective is not None, "a plan exists and none was found"
    if oracle.status is Status.OPTIMAL:
        assert result.objective >= oracle.objective - 1e-9 * abs(oracle.objective)
    return (result.objective - oracle.objective) / abs(oracle.objective)


@pytest.mark.parametrize("objective", ["interval", "throughput"])
def test_one_link_and_equal_layers_are_solved(objective: str) -> None:
    gaps = [gap(kernel_instance(s, is_uniform=True, is_throughput=objective == "throughput")) for s in range(60)]
    known = [g for g in gaps if g is not None]
    assert len(known) >= 20
    assert max(known) <= 1e-5


def test_intervals_on_general_links_are_solved() -> None:
    gaps = [gap(kernel_instance(s, is_uniform=False, is_throughput=False)) for s in range(60)]
    known = [g for g in gaps if g is not None]
    assert len(known) >= 20
    assert max(known) <= 1e-5


def test_throughput_on_general_links_is_near() -> None:
    gaps = [gap(kernel_instance(s, is_uniform=False, is_throughput=True)) for s in range(60)]
    known = np.array([g for g in gaps if g is not None])
    assert known.size >= 20
    assert np.quantile(known, 0.9) <= 0.01
    assert known.max() <= 0.3


def test_unequal_layers_on_one_link_are_near() -> None:
    gaps = [gap(kernel_instance(s, is_uniform=True, is_identical=False)) for s in range(80)]
    known = np.array([g for g in gaps if g is not None])
    assert known.size >= 25
    assert np.quantile(known, 0.9) <= 1e-5
    assert known.max() <= 0.05


@pytest.mark.parametrize("seed", [5361, 5514, 5004, 5652])
def test_busy_links_keep_no_subset_from_a_smaller_batch(seed: int) -> None:
    """Found by review: shapes that were best without busy links failed with them, and no others were looked at."""
    draw = random.Random(seed)
    instance = two_level_instance(
        seed, is_throughput=draw.random() < 0.5, max_devices=draw.choice([5, 8, 11]),
        num_layers=draw.choice([1, 3, 5, 8]),
    )  # fmt: skip
    best, found = ParametricPlanner().solve(instance), SlobPlanner().solve(instance)
    assert best.status is Status.OPTIMAL
    assert best.objective is not None
    assert found.objective is not None
    assert found.objective <= best.objective + 0.01 * abs(best.objective)


@pytest.mark.parametrize("is_throughput", [False, True])
def test_groups_that_share_cards(is_throughput: bool) -> None:
    gaps = [gap(two_level_instance(s, is_throughput=is_throughput, max_devices=5, num_layers=4)) for s in range(40)]
    known = np.array([g for g in gaps if g is not None])
    assert known.size >= 25
    assert np.quantile(known, 0.9) <= 1e-5


@pytest.mark.parametrize("seed", range(40))
def test_network_cards_and_unequal_layers_leave_plans_allowed(seed: int) -> None:
    instance = kernel_instance(seed, has_network_cards=True, is_identical=seed % 2 == 0)
    result = SlobPlanner().solve(instance)
    if result.placement is not None:
        assert evaluate(instance, result.placement).violations == ()


@settings(max_examples=40, deadline=None)
@given(tiny_instances(max_devices=4, max_layers=5), st.randoms(use_true_random=False))
def test_numbering_devices_differently_changes_no_value(instance: PlacementInstance, rng: object) -> None:
    order = list(range(instance.table.num_devices))
    rng.shuffle(order)  # type: ignore[attr-defined]  # random.Random
    one, other = SlobPlanner().solve(instance), SlobPlanner().solve(relabelled(instance, order))
    assert other.objective == (None if one.objective is None else pytest.approx(one.objective, rel=1e-9))


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("is_throughput", [False, True])
def test_numbering_larger_clusters_differently_changes_no_value(seed: int, is_throughput: bool) -> None:
    instance = two_level_instance(seed, is_throughput=is_throughput, max_devices=10, num_layers=8)
    order = np.random.default_rng(seed).permutation(instance.table.num_devices).tolist()
    one, other = SlobPlanner().solve(instance), SlobPlanner().solve(relabelled(instance, order))
    assert other.objective == (None if one.objective is None else pytest.approx(one.objective, rel=1e-9))


def without_time(result: SolveResult) -> SolveResult:
    return replace(result, elapsed_s=0.0, history=())


@pytest.mark.parametrize("seed", range(12))
def test_repeats_itself_and_never_loses_the_incumbent(seed: int) -> None:
    instance = kernel_instance(seed, num_devices=4, is_uniform=seed % 2 == 0)
    best = ExhaustivePlanner().solve(instance)
    first = SlobPlanner().solve(instance, incumbent=best.placement)
    assert without_time(first) == without_time(SlobPlanner().solve(instance, incumbent=best.placement))
    if best.objective is not None:
        assert first.objective is not None
        assert first.objective <= best.objective


def test_a_plan_for_fewer_devices_as_incumbent_is_kept_or_beaten() -> None:
    for seed in range(10):
        larger = kernel_instance(seed, num_devices=5, is_uniform=True)
        table = larger.table
        keep = [d for d in range(5) if d != 2]
        smaller = replace(
            table, device_names=tuple(table.device_names[d] for d in keep),
            device_cards=tuple(table.device_cards[d] for d in keep), device_node=table.device_node[keep],
            device_class=table.device_class[keep], link_class=table.link_class[np.ix_(keep, keep)],
        )  # fmt: skip
        old = SlobPlanner().solve(replace(larger, table=smaller))
        new = SlobPlanner().solve(larger, incumbent=old.placement)
        if old.objective is not None:
            assert new.objective is not None
            assert new.objective <= old.objective


@pytest.mark.parametrize("num_devices", range(1, 14))
@pytest.mark.parametrize("in_flight", [1, 4, None])
def test_sizes_from_one_to_thirteen_match_the_exact_planner(num_devices: int, in_flight: int | None) -> None:
    counts = [num_devices - num_devices // 2, num_devices // 2]
    classes = [
        DirectClass(f"c{i}", n, 900 // max(2, num_devices - 1) + 250 * i, (3 - i) * 1e-3, fixed_s=1e-4, head_s=1e-3)
        for i, n in enumerate(counts) if n
    ]  # fmt: skip
    table = direct_table(classes, 9, layer_bytes=100, kv_bytes=2, head_bytes=30, latency_s=1e-3, batch_sizes=(1, 4))
    objective = ThroughputObjective(6, 0.2, 32) if in_flight is None else IntervalObjective(in_flight)
    instance = PlacementInstance(table, objective)
    exact, found = ParametricPlanner().solve(instance), SlobPlanner().solve(instance)
    assert exact.status in (Status.OPTIMAL, Status.INFEASIBLE)
    assert (found.objective is None) == (exact.objective is None)
    if exact.objective is not None:
        assert found.objective == pytest.approx(exact.objective, rel=2e-5)


def equal_cards(count: int, capacity: int, *, num_layers: int = 8, latency_s: float = 0.0, bytes_per_s: float = 1e9,
                token_bytes: int = 0) -> PlacementInstance:  # fmt: skip
    table = direct_table(
        [DirectClass("card", count, capacity, 1e-3)], num_layers, layer_bytes=100, latency_s=latency_s,
        bytes_per_s=bytes_per_s, hop_bytes_per_token=token_bytes,
    )  # fmt: skip
    return PlacementInstance(table, IntervalObjective(1))


def test_just_fits_and_just_does_not() -> None:
    # Eight layers of 100 bytes on four cards: 200 bytes each, and one byte less holds one layer a card.
    assert SlobPlanner().solve(equal_cards(4, 200)).objective == pytest.approx(8e-3, rel=1e-5)
    assert SlobPlanner().solve(equal_cards(4, 199)).placement is None


def test_three_kinds_that_only_fit_together_are_found_in_a_large_box() -> None:
    """Starting patterns of one or two kinds hold nothing here, and all devices are more than the layers."""
    classes = [DirectClass(f"c{i}", 4, 100 if i else 200, (1 + i) * 1e-3) for i in range(6)]
    table = direct_table(classes, 18, layer_bytes=100, batch_sizes=(1,))
    for objective in (IntervalObjective(1), ThroughputObjective(2)):
        result = SlobPlanner().solve(PlacementInstance(table, objective))
        exact = ParametricPlanner().solve(PlacementInstance(table, objective))
        assert result.objective == pytest.approx(exact.objective, rel=1e-5)


def test_a_huge_hop_makes_one_device_best() -> None:
    result = SlobPlanner().solve(equal_cards(4, 900, latency_s=100.0))
    assert result.placement is not None
    assert [len(p.stages) for p in result.placement.pipelines] == [1]


def test_a_slow_link_binds_with_many_micro_batches() -> None:
    """Four stages of 2 ms; a hop of 5,000 bytes at 1 MB/s keeps its link busy for 5 ms, so K = 4 takes 20 ms."""
    instance = replace(equal_cards(4, 200, bytes_per_s=1e6, token_bytes=5000), objective=IntervalObjective(4))
    result = SlobPlanner().solve(instance)
    # 8 ms of stages + 3 hops of 5 ms + a return of 4 bytes: 23.004 ms is longer than 4 * 5 ms.
    assert result.objective == pytest.approx(23.004e-3, rel=1e-4)
    busy = replace(instance, objective=IntervalObjective(8))
    assert SlobPlanner().solve(busy).objective == pytest.approx(40e-3, rel=1e-4)


def test_long_hops_are_worth_more_micro_batches_than_stages() -> None:
    """Two stages of 1 ms and two hops of 20 ms: K micro-batches make K / max(42 ms, K * 1 ms), so K = 16 it is."""
    table = direct_table([DirectClass("card", 2, 100, 1e-3)], 2, layer_bytes=100, latency_s=20e-3, batch_sizes=(1,))
    result = SlobPlanner().solve(PlacementInstance(table, ThroughputObjective(16)))
    assert result.objective == pytest.approx(-16 / 42e-3, rel=1e-5)


def test_a_cap_that_one_shape_alone_meets() -> None:
    # Alone a card takes 8 ms; only K = 1, b = 1 on a single card stays within 8.5 ms. Hops of 1 ms rule out pairs.
    table = direct_table(
        [DirectClass("card", 2, 900, 1e-3, layer_per_sequence_s=1e-3)], 8, layer_bytes=100, latency_s=1e-3
    )
    instance = PlacementInstance(table, ThroughputObjective(4, 8.5e-3))
    assert SlobPlanner().solve(instance).objective == pytest.approx(-2 / 8e-3, rel=1e-5)
    assert SlobPlanner().solve(replace(instance, objective=ThroughputObjective(4, 7.5e-3))).placement is None


def test_no_shape_at_all_gives_no_plan() -> None:
    table = direct_table([DirectClass("card", 2, 900, 1e-3)], 8, layer_bytes=100, batch_sizes=(4,))
    result = SlobPlanner().solve(PlacementInstance(table, ThroughputObjective(4, None, 1)))
    assert result.status is Status.UNKNOWN
    assert result.message


def test_one_sequence_in_flight() -> None:
    table = direct_table([DirectClass("card", 3, 900, 1e-3)], 8, layer_bytes=100, latency_s=1e-4)
    result = SlobPlanner().solve(PlacementInstance(table, ThroughputObjective(8, None, 1)))
    assert result.objective == pytest.approx(-3 / 8e-3, rel=1e-5)


@pytest.mark.parametrize("num_devices", [1, 6])
def test_a_model_of_one_layer(num_devices: int) -> None:
    table = direct_table([DirectClass("card", num_devices, 100, 2e-3)], 1, layer_bytes=100, batch_sizes=(1,))
    assert SlobPlanner().solve(PlacementInstance(table, IntervalObjective(1))).objective == pytest.approx(
        2e-3, rel=1e-5
    )
    rates = SlobPlanner().solve(PlacementInstance(table, ThroughputObjective(4)))
    assert rates.objective == pytest.approx(-num_devices / 2e-3, rel=1e-5)


def test_unequal_layers_on_a_single_card() -> None:
    """The table of a single card knows no link at all."""
    table = direct_table(
        [DirectClass("card", 1, 900, [1e-3, 2e-3])], 2, layer_bytes=[100, 200], pair_links=[[(1e9, 0.0)]]
    )
    assert table.hop_s.shape[1] == 0
    for objective, worth in ((IntervalObjective(1), 3e-3), (ThroughputObjective(1, None, 1), -1 / 3e-3)):
        assert SlobPlanner().solve(PlacementInstance(table, objective)).objective == pytest.approx(worth, rel=1e-5)


def test_a_group_that_holds_nothing_is_left_out() -> None:
    table = direct_table(
        [DirectClass("none", 2, 1, 1e-3), DirectClass("card", 2, 500, 2e-3)], 8, layer_bytes=100, latency_s=1e-3
    )
    result = SlobPlanner().solve(PlacementInstance(table, IntervalObjective(1)))
    assert result.placement is not None
    assert result.placement.used_cards == {2, 3}


def test_groups_and_cards_in_a_large_box_do_not_overdraw_a_pool() -> None:
    """Neighbours of a single pipeline's pattern once took a card and its group together and crashed the planner."""
    nodes, rows = 8, []
    for node in range(nodes):
        rows += [(0, (2 * node,)), (0, (2 * node + 1,)), (1, (2 * node, 2 * node + 1))]
    rows.sort(key=lambda r: r[0])
    table = direct_table(
        [DirectClass("one", 16, 100, 2e-3), DirectClass("pair", 8, 150, 1.2e-3), *(
            DirectClass(f"other{i}", 3, 120, (3 + i) * 1e-3) for i in range(2))],
        20, layer_bytes=50, latency_s=1e-4,
    )  # fmt: skip
    cards = [*(c for _, c in rows), *((16 + i,) for i in range(6))]
    links = np.array(table.link_class)
    for a, own in enumerate(cards):
        for b, other in enumerate(cards):
            if set(own) & set(other):
                links[a, b] = -1
    table = replace(table, device_cards=tuple(cards), link_class=links)
    for objective in (IntervalObjective(1), IntervalObjective(4), ThroughputObjective(4, None, 8)):
        instance = PlacementInstance(table, objective)
        result = SlobPlanner().solve(instance)
        assert isinstance(result.placement, Placement)
        assert evaluate(instance, result.placement).violations == ()


@pytest.mark.parametrize("is_identical", [True, False])
def test_groups_that_overlap_in_part(is_identical: bool) -> None:
    """Four cards in pairs and a group of three that shares a card with each pair: counts don't say what fits."""
    cards = ((0,), (1,), (2,), (3,), (0, 1), (2, 3), (0, 1, 2))
    layer_s = [1e-3] * 6 if is_identical else [1e-3, 2e-3, 1e-3, 1e-3, 3e-3, 1e-3]
    classes = [
        DirectClass(name, count, 700, [t / size for t in layer_s])
        for name, count, size in (("card", 4, 1), ("pair", 2, 2), ("three", 1, 3))
    ]
    table = direct_table(classes, 6, layer_bytes=100, latency_s=1e-4, nodes=[0] * 7, batch_sizes=(1,))
    links = np.array(table.link_class)
    for a, own in enumerate(cards):
        for b, other in enumerate(cards):
            if set(own) & set(other):
                links[a, b] = -1
    table = replace(table, device_cards=cards, link_class=links)
    for objective in (IntervalObjective(1), IntervalObjective(4), ThroughputObjective(2)):
        found = gap(PlacementInstance(table, objective))
        assert found is not None
        assert found <= 0.01
