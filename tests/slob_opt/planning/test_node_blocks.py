"""Two-level links: kinds of nodes, blocks, cuts, rates and plans against subsets with shortest routes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from solver_instances import FAST, SLOW
from solver_instances import random_instance as other_instance
from two_level import two_level_instance

from slob_opt.cost.direct import DirectClass, direct_table
from slob_opt.cost.table import CostTable
from slob_opt.planning.block_plan import choice_of, realise_blocks, width_of
from slob_opt.planning.block_rates import SPLIT, BlockKernel
from slob_opt.planning.evaluate import evaluate
from slob_opt.planning.instance import PlacementInstance
from slob_opt.planning.node_blocks import (
    BlockStructure,
    block_patterns,
    block_structure,
    block_types,
    node_cuts,
    num_patterns,
)
from slob_opt.planning.objectives import IntervalObjective, ThroughputObjective
from slob_opt.planning.parametric import ParametricPlanner
from slob_opt.planning.subset_rates import SubsetKernel

MS = 1e-3
FREE = (1e18, 0.0)


def two_nodes(cards: int, *, inside: tuple[float, float], between: tuple[float, float], **table: object) -> CostTable:
    """Return two nodes of equal cards; the model has 4 layers of 1 ms and 100 bytes, a card holds two."""
    count = 2 * cards
    pairs = [[inside if a // cards == b // cards else between for b in range(count)] for a in range(count)]
    settings: dict[str, object] = {"layer_bytes": 100, "batch_sizes": (1,), **table}
    return direct_table(
        [DirectClass("card", count, 200, 1 * MS)], 4, pair_links=pairs, nodes=[i // cards for i in range(count)],
        **settings,  # type: ignore[arg-type]
    )  # fmt: skip


def structure_of(instance: PlacementInstance) -> BlockStructure:
    found = block_structure(instance)
    assert found is not None
    return found


def kernel_of(instance: PlacementInstance) -> BlockKernel:
    structure = structure_of(instance)
    most = min(instance.table.num_layers, instance.table.num_devices)
    return BlockKernel(instance, structure, block_patterns(structure, most))


def test_equal_nodes_are_one_kind_and_blocks_are_counts() -> None:
    instance = PlacementInstance(two_nodes(3, inside=FREE, between=SLOW), IntervalObjective(1))
    structure = structure_of(instance)
    assert [kind.nodes for kind in structure.kinds] == [(0, 1)]
    assert structure.devices == (((0, 1, 2), (3, 4, 5)),)
    assert block_types(structure, 4) == ((0, (1,)), (0, (2,)), (0, (3,)))
    # at most two blocks, four devices: {1} {2} {3} {1,1} {1,2} {1,3} {2,2}
    assert block_patterns(structure, 4).used.shape[0] == 7
    assert num_patterns(structure, 4) == 9  # with {2,3} and {3,3}, which have too many devices


def test_cuts_of_a_node_are_its_partitions() -> None:
    instance = PlacementInstance(two_nodes(3, inside=FREE, between=SLOW), IntervalObjective(1))
    kind = structure_of(instance).kinds[0]
    cuts = node_cuts(kind, np.array([[1], [2], [3]]))
    assert cuts is not None
    assert {tuple(c) for c in cuts.tolist()} == {(3, 0, 0), (1, 1, 0), (0, 0, 1)}
    assert width_of(kind, (2,)) == (2,)


def test_groups_of_cards_share_the_widths_of_single_cards() -> None:
    instance = two_level_instance(0, is_throughput=True, max_devices=7)
    structure = structure_of(instance)
    paired = next(k for k in structure.kinds if len(k.groups) == 2)
    blocks = {tuple(b) for b in paired.blocks(9).tolist()}
    assert (0, 1) in blocks
    assert width_of(paired, (0, 1)) == width_of(paired, (2, 0)) == (2,)


@pytest.mark.parametrize(
    ("inside", "between", "is_seen"), [(FAST, SLOW, True), (SLOW, FAST, False), (FAST, FAST, True)]
)
def test_links_inside_must_not_be_slower(
    inside: tuple[float, float], between: tuple[float, float], is_seen: bool
) -> None:
    table = two_nodes(2, inside=inside, between=between, hop_bytes_per_token=1000)
    assert (block_structure(PlacementInstance(table, IntervalObjective(1))) is not None) == is_seen


def test_other_instances_have_no_blocks() -> None:
    table = two_nodes(2, inside=FAST, between=SLOW)
    limited = replace(table, nic_bytes_per_s=np.array([1e9, 1e9]))
    assert block_structure(PlacementInstance(limited, IntervalObjective(1))) is None
    unequal = other_instance(1, 5, 6, objective="interval", is_uniform=False, is_identical=False)
    assert block_structure(unequal) is None


def test_two_nodes_of_three_cards_hold_two_pairs_not_three() -> None:
    """A pair inside a node: two stages of 2 ms, K = 2: 2 / 4 ms = 500 tokens/s. Across nodes each hop takes 8 ms:

    2 / (4 + 8 + 8) ms = 100. So three pairs are worth 1100, not 1500, and only blocks see the difference.
    """
    table = two_nodes(3, inside=FREE, between=(1e18, 8 * MS))
    kernel = kernel_of(PlacementInstance(table, ThroughputObjective(2)))
    rates = kernel.rates(np.zeros(kernel.counts.shape[0]))
    by_blocks = {tuple(u): r for u, r in zip(kernel.patterns.used.tolist(), rates.rate.tolist(), strict=True)}
    assert by_blocks[0, 1, 0] == pytest.approx(500, rel=1e-5)
    assert by_blocks[2, 0, 0] == pytest.approx(100, rel=1e-5)


def test_a_node_that_holds_both_ends_is_left_and_come_back_to() -> None:
    """Embedding and head (100 bytes) fit only the big cards of node 0, which hold one layer beside them.

    4 layers: 1 + 2 + 1, the middle stage on node 1. Hops 3 ms there, 3 ms back, the hop back to the first stage inside
    (free): 4 + 6 = 10 ms.
    """
    classes = [DirectClass("big", 2, 200, 1 * MS), DirectClass("small", 1, 200, 1 * MS, embed_s=1.0, head_s=1.0)]
    between = (1e18, 3 * MS)
    pairs = [[FREE if a < 2 and b < 2 else between for b in range(3)] for a in range(3)]
    table = direct_table(
        classes, 4, layer_bytes=100, embed_bytes=100, head_bytes=100, pair_links=pairs, nodes=[0, 0, 1]
    )
    instance = PlacementInstance(table, IntervalObjective(1))
    kernel = kernel_of(instance)
    rates = kernel.rates(np.zeros(kernel.counts.shape[0]))
    best = int(rates.rate.argmax())
    assert rates.home[best] != SPLIT
    plan = realise_blocks(kernel, [choice_of(rates, best, best)])
    assert evaluate(instance, plan).objective == pytest.approx(10 * MS, rel=1e-5)
    assert [len(s.cards) and s.cards[0] for s in plan.pipelines[0].stages] == [0, 2, 1]


@pytest.mark.parametrize("seed", range(24))
@pytest.mark.parametrize("is_throughput", [False, True])
def test_best_pipeline_equals_that_of_all_subsets(seed: int, is_throughput: bool) -> None:
    instance = two_level_instance(seed, is_throughput=is_throughput)
    kernel = kernel_of(instance)
    rates = kernel.rates(np.zeros(kernel.counts.shape[0]))
    reference = SubsetKernel(instance).rates().rate
    assert rates.rate.max() == pytest.approx(reference.max(), rel=1e-9)
    if reference.max() == 0:
        return
    best = int(rates.rate.argmax())
    plan = realise_blocks(kernel, [choice_of(rates, best, best)])
    found = evaluate(instance, plan)
    assert found.violations == ()
    natural = -rates.rate[best] if is_throughput else rates.interval[best] * 2.0**-30
    assert found.objective == pytest.approx(natural, rel=1e-9)


@pytest.mark.parametrize("seed", range(6))
def test_every_pattern_equals_the_best_of_its_subsets(seed: int) -> None:
    """Not only the best: each set of blocks against the subsets that look like it, and its plan against its rate."""
    instance = two_level_instance(seed, is_throughput=True, max_devices=6)
    kernel, subsets = kernel_of(instance), SubsetKernel(instance)
    reference = subsets.rates().rate
    structure = kernel.structure
    group_of = {d: g for g, nodes in enumerate(structure.devices) for node in nodes for d in node}
    best: dict[tuple[tuple[int, tuple[int, ...]], ...], float] = {}
    for mask in np.flatnonzero(subsets.allowed):
        members = [d for d in range(instance.table.num_devices) if mask >> d & 1]
        blocks = []
        for node in sorted({int(instance.table.device_node[d]) for d in members}):
            own = [group_of[d] for d in members if instance.table.device_node[d] == node]
            kind = int(structure.kind_of_group[own[0]])
            blocks.append((kind, tuple(own.count(g) for g in structure.kinds[kind].groups)))
        key = tuple(sorted(blocks))
        best[key] = max(best.get(key, 0.0), float(reference[mask]))
    rates = kernel.rates(np.zeros(kernel.counts.shape[0]))
    for p, used in enumerate(kernel.patterns.used):
        key = tuple(sorted(kernel.patterns.blocks[b] for b in np.flatnonzero(used) for _ in range(used[b])))
        assert rates.rate[p] == pytest.approx(best[key], rel=1e-9), key
        if rates.shape[p] >= 0:
            plan = realise_blocks(kernel, [choice_of(rates, p, p)])
            worth = evaluate(instance, plan).objective
            assert worth is not None
            assert -worth >= rates.rate[p] * (1 - 1e-9)


def test_a_floor_leaves_out_what_does_not_beat_it() -> None:
    instance = two_level_instance(3, is_throughput=True)
    kernel = kernel_of(instance)
    free = kernel.rates(np.zeros(kernel.counts.shape[0]))
    floor = np.full(free.rate.size, float(np.median(free.rate)))
    found = kernel.rates(floor)
    assert np.array_equal(found.shape >= 0, free.rate > floor)
    above = found.shape >= 0
    assert np.allclose(found.rate[above], free.rate[above], rtol=1e-12)
    some = np.flatnonzero(above)[:3]
    assert np.allclose(kernel.rates(floor[some], some).rate, found.rate[some], rtol=1e-12)
    joined = found.select(some).join(found.select(some))
    assert np.array_equal(joined.rate, np.tile(found.rate[some], 2))


def test_parametric_finds_one_pipeline_among_many_nodes() -> None:
    """Fourteen cards are too many for subsets; seven nodes are few sets of blocks.

    4 layers of 1 ms, two a card: with free hops inside a node and K = 1, one node does it in 4 ms.
    """
    inside, between = FREE, (1e18, 3 * MS)
    pairs = [[inside if a // 2 == b // 2 else between for b in range(14)] for a in range(14)]
    table = direct_table(
        [DirectClass("card", 14, 200, 1 * MS)], 4, layer_bytes=100, pair_links=pairs,
        nodes=[i // 2 for i in range(14)],
    )  # fmt: skip
    instance = PlacementInstance(table, IntervalObjective(1))
    result = ParametricPlanner().solve(instance)
    assert str(result.status) == "OPTIMAL"
    assert dict(result.details)["route"] == "blocks"
    assert result.objective == pytest.approx(4 * MS, rel=1e-5)
