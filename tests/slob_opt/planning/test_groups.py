"""Groups, pools, shape costs and the way from counts to devices."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from kernel_instances import kernel_instance
from pattern_oracle import every_pattern
from two_level import two_level_instance

from slob_opt.cost.direct import DirectClass, direct_table
from slob_opt.cost.table import TICK_S, CostTable
from slob_opt.planning.groups import (
    PatternPlan,
    group_devices,
    has_pools,
    iter_patterns,
    realise,
    shape_costs,
    used_links,
)
from slob_opt.planning.instance import PlacementInstance
from slob_opt.planning.objectives import IntervalObjective, ThroughputObjective


def nested_node(num_cards: int = 8) -> CostTable:
    """One node of eight cards in groups of 1, 2 and 4."""
    cards = [*((c,) for c in range(num_cards))]
    cards += [(c, c + 1) for c in range(0, num_cards, 2)]
    cards += [(c, c + 1, c + 2, c + 3) for c in range(0, num_cards, 4)]
    counts = [num_cards, num_cards // 2, num_cards // 4]
    table = direct_table(
        [DirectClass(f"x{2**i}", n, 1000, 4e-3 / 2**i) for i, n in enumerate(counts)], 12, layer_bytes=100,
        nodes=[0] * sum(counts),
    )  # fmt: skip
    links = np.array(table.link_class)
    for a, own in enumerate(cards):
        for b, other in enumerate(cards):
            if set(own) & set(other):
                links[a, b] = -1
    return replace(table, device_cards=tuple(cards), link_class=links)


def test_groups_of_nested_cards_share_one_pool() -> None:
    table = nested_node()
    groups = group_devices(table)
    assert has_pools(table)
    assert groups.sizes.tolist() == [1, 2, 4]
    assert groups.pool_cards.tolist() == [8]
    assert groups.available.tolist() == [8, 4, 2]
    assert groups.usage.tolist() == [[1, 2, 4]]
    assert groups.box_size() == 9 * 5 * 3


def test_every_count_that_pools_allow_is_realised_on_disjoint_cards() -> None:
    table = nested_node()
    groups = group_devices(table)
    for counts in every_pattern(groups, 12):
        chain = tuple(g for g, n in enumerate(counts) for _ in range(n))
        layers = (12 - len(chain) + 1, *(1 for _ in chain[1:]))
        placement = realise(table, groups, [PatternPlan(chain, layers, 2, 1)])
        assert placement.has_disjoint_pipelines
        sizes = [len(s.cards) for s in placement.pipelines[0].stages]
        assert sizes == [int(groups.sizes[g]) for g in chain]
        assert [s.num_layers for s in placement.pipelines[0].stages] == list(layers)


def test_pipelines_share_the_largest_groups_first() -> None:
    table = nested_node()
    groups = group_devices(table)
    plans = [PatternPlan((0, 0), (6, 6), 1, 1), PatternPlan((2,), (12,), 3, 2), PatternPlan((1,), (12,), 1, 1)]
    placement = realise(table, groups, plans)
    assert placement.has_disjoint_pipelines
    assert len(placement.used_cards) == 8
    assert [(p.num_micro_batches, p.batch_size) for p in placement.pipelines] == [(1, 1), (3, 2), (1, 1)]


@pytest.mark.parametrize("seed", range(12))
def test_patterns_are_enumerated_once_in_any_chunk(seed: int) -> None:
    table = two_level_instance(seed, is_throughput=False).table
    groups = group_devices(table)
    expected = sorted(map(tuple, every_pattern(groups, 3).tolist()))
    for chunk in (1, 7, 1 << 16):
        found = [tuple(row) for part in iter_patterns(groups, 3, chunk) for row in part.tolist()]
        assert sorted(found) == expected
    keep = np.arange(groups.num_groups) == 0
    only = [row for part in iter_patterns(groups, 3, keep=keep) for row in part.tolist()]
    assert all(sum(row) == row[0] for row in only)


@pytest.mark.parametrize("seed", range(20))
def test_costs_are_the_table_in_ticks_with_exact_caps(seed: int) -> None:
    instance = kernel_instance(seed)
    table, groups = instance.table, group_devices(instance.table)
    for row, k, b in instance.shapes()[:4]:
        costs = shape_costs(instance, groups.classes, (row, k, b))
        assert costs.num_in_flight == k * b
        for g, devices in enumerate(groups.devices):
            capacity = int(table.capacity_bytes[groups.classes[g]])
            assert costs.layer[g] * TICK_S == table.layer_s[row, groups.classes[g], 0]
            fits = [
                n for n in range(1, table.num_layers + 1)
                if sum(table.stage_memory(row, devices[0], 0, n, k * b).values()) <= capacity
            ]  # fmt: skip
            most = max((n for n in fits if n < table.num_layers), default=0)
            assert min(max(int(costs.cap_first[g]), 0), table.num_layers - 1) == most
            assert (costs.cap_both[g] >= table.num_layers) == (table.num_layers in fits)


def test_only_links_that_join_devices_count() -> None:
    quick, slow = (1e9, 0.0), (1e9, 10e-3)
    pairs = [[slow, slow, quick], [slow, slow, quick], [quick, quick, quick]]
    table = direct_table([DirectClass("a", 3, 100, 1e-3)], 2, layer_bytes=100, pair_links=pairs)
    left = replace(
        table, device_names=table.device_names[:2], device_cards=table.device_cards[:2],
        device_node=table.device_node[:2], device_class=table.device_class[:2], link_class=table.link_class[:2, :2],
    )  # fmt: skip
    assert used_links(table).size == 2
    assert used_links(left).size == 1
    costs = shape_costs(PlacementInstance(left, IntervalObjective(1)), group_devices(left).classes, (0, 1, 1))
    assert costs.hop * TICK_S == pytest.approx(10e-3, rel=1e-6)


def test_caps_are_rounded_down_to_ticks() -> None:
    table = direct_table([DirectClass("a", 1, 500, 1e-3)], 2, layer_bytes=100)
    instance = PlacementInstance(table, ThroughputObjective(1, 2.5 * TICK_S))
    assert shape_costs(instance, np.array([0]), (1, 1, 1)).max_interval == 2.0
