"""Canonical order: the same instance whatever the numbering."""

from __future__ import annotations

import numpy as np
import pytest
from slob_builders import relabelled
from two_level import two_level_instance

from slob_opt.cost.direct import DirectClass, direct_table
from slob_opt.planning.instance import PlacementInstance
from slob_opt.planning.objectives import IntervalObjective
from slob_opt.slob.canonical import MAX_DEVICES, canonical, canonical_order


def linked(instance: PlacementInstance) -> tuple[list[int], list[list[int]]]:
    return instance.table.device_class.tolist(), instance.table.link_class.tolist()


@pytest.mark.parametrize("seed", range(25))
def test_renumbered_clusters_become_the_same(seed: int) -> None:
    instance = two_level_instance(seed, is_throughput=False, max_devices=12)
    expected = linked(canonical(instance))
    for trial in range(3):
        order = np.random.default_rng([seed, trial]).permutation(instance.table.num_devices).tolist()
        assert linked(canonical(relabelled(instance, order))) == expected


def test_renumbered_random_links_become_the_same() -> None:
    rng = np.random.default_rng(1)
    pairs = [[(float(rng.choice([1e8, 1e9])), 1e-3) for _ in range(7)] for _ in range(7)]
    table = direct_table([DirectClass("a", 7, 100, 1e-3)], 3, layer_bytes=100, pair_links=pairs)
    instance = PlacementInstance(table, IntervalObjective(1))
    for trial in range(5):
        order = np.random.default_rng(trial).permutation(7).tolist()
        assert linked(canonical(relabelled(instance, order))) == linked(canonical(instance))


def test_large_clusters_keep_every_device_once() -> None:
    count = MAX_DEVICES + 6
    pairs = [[(1e9 if i // 7 == j // 7 else 1e8, 1e-3) for j in range(count)] for i in range(count)]
    table = direct_table([DirectClass("a", count, 100, 1e-3)], 3, layer_bytes=100, pair_links=pairs)
    assert sorted(canonical_order(table).tolist()) == list(range(count))


def test_an_ordered_instance_is_returned_as_it_is() -> None:
    table = direct_table([DirectClass("a", 3, 100, 1e-3)], 3, layer_bytes=100)
    instance = PlacementInstance(table, IntervalObjective(1))
    assert canonical(instance) is instance
