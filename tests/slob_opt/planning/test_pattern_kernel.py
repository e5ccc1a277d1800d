"""Intervals of patterns by three kernels against the split of every order of their devices."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from kernel_instances import kernel_instance
from pattern_oracle import every_pattern, interval_of_pattern

from slob_opt.cost.direct import DirectClass, direct_table
from slob_opt.cost.table import TICK_S
from slob_opt.planning.flat_kernel import FlatBatch, shape_arrays
from slob_opt.planning.groups import group_devices, shape_costs
from slob_opt.planning.instance import PlacementInstance
from slob_opt.planning.interval_program import best_interval, curve, min_plus
from slob_opt.planning.objectives import IntervalObjective, ThroughputObjective
from slob_opt.planning.pattern_kernel import (
    interval_ceiling,
    pattern_split,
    reaches,
    shortest_interval,
    single_interval,
)
from slob_opt.planning.pattern_search import PatternSearch
from slob_opt.planning.split_order import layers_in_order

SEEDS = range(40)


def several(instance: PlacementInstance) -> np.ndarray:
    patterns = every_pattern(group_devices(instance.table), instance.table.num_layers)
    return patterns[patterns.sum(axis=1) > 1]


def ample() -> PlacementInstance:
    """Two kinds of cards, two each, that hold six layers in any way."""
    classes = [DirectClass("a", 2, 900, 1e-3, fixed_s=1e-4, head_s=1e-3), DirectClass("b", 2, 900, 2e-3)]
    return PlacementInstance(direct_table(classes, 6, layer_bytes=100, latency_s=1e-3), IntervalObjective(2))


def usable(is_throughput: bool | None) -> list[int]:
    """Seeds of instances with a pattern of several devices and a shape."""
    found = [(s, kernel_instance(s, is_uniform=True, is_throughput=is_throughput)) for s in range(60)]
    return [s for s, instance in found if several(instance).size and instance.shapes()]


@pytest.mark.parametrize("seed", usable(None))
def test_intervals_of_patterns_match_the_split_of_every_order(seed: int) -> None:
    instance = kernel_instance(seed, is_uniform=True)
    groups = group_devices(instance.table)
    patterns = several(instance)
    for shape in instance.shapes()[:3]:
        costs = shape_costs(instance, groups.classes, shape)
        stacked = shape_arrays(instance, groups, (shape,))
        n = patterns.T.astype(np.float64)
        upper = interval_ceiling(costs, instance.table.num_layers, n)
        relaxed = shortest_interval(n, costs, instance.table.num_layers, upper)
        for first in range(groups.num_groups):
            for last in range(groups.num_groups):
                need = np.zeros(groups.num_groups)
                need[first] += 1
                need[last] += 1
                chosen = np.flatnonzero(np.all(patterns >= need, axis=1))
                if not chosen.size:
                    continue
                found = shortest_interval(n[:, chosen], costs, instance.table.num_layers, upper[chosen], first, last)
                batch = FlatBatch(
                    stacked, patterns[chosen], np.zeros(chosen.size, np.int64), np.full(chosen.size, first),
                    np.full(chosen.size, last), instance.table.num_layers,
                )  # fmt: skip
                flat = batch.shortest(upper[chosen])
                expected = [interval_of_pattern(instance, groups, patterns[i], shape, (first, last)) for i in chosen]
                assert found.tolist() == expected
                assert flat.tolist() == expected
                assert np.all(relaxed[chosen] <= found)
                for x, i in enumerate(chosen):
                    if np.isfinite(found[x]):
                        _check_split(patterns[i], costs, instance.table.num_layers, float(found[x]), first, last)


def _check_split(pattern, costs, num_layers, interval, first, last) -> None:  # type: ignore[no-untyped-def]
    """The stages of a pattern at its interval hold all layers, within caps, and stay within it; in any middle order."""
    order, layers = pattern_split(pattern, costs, num_layers, interval, first, last)
    assert (order[0], order[-1]) == (first, last)
    assert np.bincount(order, minlength=pattern.size).tolist() == pattern.tolist()
    assert list(layers) == layers_in_order(costs, order, num_layers, interval)
    assert sum(layers) == num_layers
    assert min(layers) >= 1
    stages = [costs.fixed[g] + n * costs.layer[g] for g, n in zip(order, layers, strict=True)]
    stages[0] += costs.embed[first]
    stages[-1] += costs.head[last]
    caps = [costs.cap_first[first], *(costs.cap[g] for g in order[1:-1]), costs.cap_last[last]]
    assert all(n <= cap for n, cap in zip(layers, caps, strict=True))
    assert costs.num_micro_batches * max(stages) <= interval
    assert sum(stages) + (len(order) - 1) * costs.hop + costs.ret <= interval


@pytest.mark.parametrize("seed", usable(True))
def test_flat_batches_of_mixed_shapes_match_one_by_one(seed: int) -> None:
    instance = kernel_instance(seed, is_uniform=True, is_throughput=True)
    groups, patterns, shapes = group_devices(instance.table), several(instance), instance.shapes()
    num_layers = instance.table.num_layers
    which, shape = (a.ravel() for a in np.meshgrid(np.arange(len(patterns)), np.arange(len(shapes))))
    stacked = shape_arrays(instance, groups, shapes)
    batch = FlatBatch(stacked, patterns[which], shape, None, None, num_layers)
    flat = batch.shortest(np.full(which.size, 2.0**50))
    coarse = batch.shortest(np.full(which.size, 2.0**50), relative_step=1e-3)
    finite = np.isfinite(flat)
    assert np.array_equal(finite, np.isfinite(coarse))
    assert np.all(coarse[finite] >= flat[finite])
    assert np.all(coarse[finite] <= flat[finite] * (1 + 1e-3) + 1)
    assert np.all(batch.reaches(np.where(finite, flat, 0.0)) == finite)
    assert not np.any(batch.reaches(np.where(finite, flat - 1, 0.0)))
    for s, one in enumerate(shapes):
        costs = shape_costs(instance, groups.classes, one)
        n = patterns.T.astype(np.float64)
        expected = shortest_interval(n, costs, num_layers, interval_ceiling(costs, num_layers, n))
        assert flat[shape == s].tolist() == expected.tolist()


@pytest.mark.parametrize("seed", SEEDS)
def test_single_devices_match_the_split(seed: int) -> None:
    instance = kernel_instance(seed)
    groups = group_devices(instance.table)
    for shape in instance.shapes()[:4]:
        found = single_interval(shape_costs(instance, groups.classes, shape), instance.table.num_layers)
        eye = np.eye(groups.num_groups, dtype=int)
        assert found.tolist() == [interval_of_pattern(instance, groups, row, shape) for row in eye]


@pytest.mark.parametrize("seed", SEEDS)
def test_layer_program_finds_the_best_pattern(seed: int) -> None:
    instance = kernel_instance(seed, is_uniform=True, is_throughput=False)
    groups, shape = group_devices(instance.table), instance.shapes()[0]
    costs = shape_costs(instance, groups.classes, shape)
    patterns = every_pattern(groups, instance.table.num_layers)
    expected = min(interval_of_pattern(instance, groups, row, shape) for row in patterns)
    found, plan = best_interval(costs, groups.available.astype(np.float64), instance.table.num_layers)
    assert found == expected
    assert (plan is None) == (not np.isfinite(expected))
    if plan is not None:
        assert sum(plan.layers) == instance.table.num_layers
        assert np.all(np.bincount(plan.groups, minlength=groups.num_groups) <= groups.available)


def test_reaching_is_monotone_in_the_interval() -> None:
    instance = ample()
    costs = shape_costs(instance, group_devices(instance.table).classes, instance.shapes()[0])
    n = several(instance).T.astype(np.float64)
    steps = [reaches(n, costs, instance.table.num_layers, np.full(n.shape[1], t)) for t in np.geomspace(1e3, 1e9, 40)]
    assert all(np.all(a <= b) for a, b in itertools.pairwise(steps))
    assert steps[-1].any()


def test_known_interval_by_hand() -> None:
    """Five layers on cards of 1 and 2 s a layer, K = 4: 3 + 2 layers take max(7, 4 * 4) = 16 s, and nothing is shorter.

    Four layers on the quick card make 4 * 4 = 16 s as well.
    """
    table = direct_table([DirectClass("a", 1, 50, 1.0), DirectClass("b", 1, 50, 2.0)], 5, layer_bytes=10)
    instance = PlacementInstance(table, IntervalObjective(4))
    groups = group_devices(table)
    costs = shape_costs(instance, groups.classes, (0, 4, 1))
    found = shortest_interval(np.ones((2, 1)), costs, 5, np.full(1, 2.0**50), 0, 1)
    assert found[0] * TICK_S == 16.0
    assert pattern_split(np.array([1, 1]), costs, 5, float(found[0]), 0, 1) == ((0, 1), (4, 1))


def test_mean_links_are_whole_ticks() -> None:
    """Blended hops were once fractions of ticks, for which the search over ranges need not end."""
    pairs = [[(1e9, 1e-5 * (1 + 3 * i + j)) for j in range(3)] for i in range(3)]
    table = direct_table(
        [DirectClass("a", 3, 200, 1e-3)], 5, layer_bytes=100, hop_bytes_per_token=777, pair_links=pairs
    )
    shapes = PatternSearch(PlacementInstance(table, ThroughputObjective(3)), 0.5).shapes
    assert np.array_equal(shapes.hop, np.rint(shapes.hop))
    assert np.array_equal(shapes.ret, np.rint(shapes.ret))


@pytest.mark.parametrize("size", [1, 2, 7, 40])
def test_min_plus_is_the_plain_minimum(size: int) -> None:
    rng = np.random.default_rng(size)
    left, right = rng.integers(0, 50, (3, size)).astype(float), rng.integers(0, 50, (3, size)).astype(float)
    left[rng.random(left.shape) < 0.2] = np.inf
    expected = [
        [min(a[n - k] + b[k] for k in range(n + 1)) for n in range(size)] for a, b in zip(left, right, strict=True)
    ]
    assert min_plus(left, right).tolist() == expected


def test_curve_counts_devices() -> None:
    # Three layers a device, two devices, 10 a device and 1 a layer.
    found = curve(np.array([3.0]), 10.0, 1.0, 2.0, 8)
    assert found.tolist() == [[0, 11, 12, 13, 24, 25, 26, np.inf, np.inf]]
    assert curve(np.array([0.0]), 0.0, 1.0, 2.0, 2).tolist() == [[0, np.inf, np.inf]]
