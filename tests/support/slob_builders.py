"""Named tiny placement instances, small enough to solve by hand, and random ones for property tests.

Times are rounded to ticks of 2^-30 s, so hand-solved values hold to about one part in 10^5. Links cost nothing unless
the instance says so.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from hypothesis import strategies as st

from slob_opt.cost.direct import DirectClass, direct_table
from slob_opt.cost.table import CostTable
from slob_opt.planning.instance import PlacementInstance
from slob_opt.planning.objectives import IntervalObjective, ThroughputObjective

GB = 10**9
MS = 1e-3
FREE_LINK = 1e18
"""Bytes/s at which every message takes less than half a tick."""


@dataclass(frozen=True, slots=True)
class Solved:
    """An instance with its value by hand.

    Attributes
    ----------
    instance
        The instance.
    objective
        Optimum on the minimised scale, to about 1e-5; ``None`` when no plan exists.
    """

    instance: PlacementInstance
    objective: float | None


def fast_and_slow() -> Solved:
    """32 layers of 0.5 GB fit the fast card: 32 * 0.5 ms = 16 ms; any layer on the slow card adds 3.5 ms."""
    table = direct_table(
        [DirectClass("fast", 1, 24 * GB, 0.5 * MS), DirectClass("slow", 1, 24 * GB, 4 * MS)],
        32,
        layer_bytes=GB // 2,
        bytes_per_s=FREE_LINK,
    )
    return Solved(PlacementInstance(table, IntervalObjective(1), "fast-and-slow"), 16 * MS)


def laptops(count: int = 3) -> Solved:
    """Up to three machines that each hold the whole model (4.94 GB) and need 22, 110 and 30 ms a token alone.

    One layer on the 30 ms machine instead saves nothing (30 / 28 > 22 / 28) and costs two hops of 0.5 ms: 22 ms.
    """
    speeds = [("desk", 8, 22.0), ("old", 8, 110.0), ("far", 12, 30.0)][:count]
    table = direct_table(
        [DirectClass(name, 1, mem * GB, ms * MS / 28) for name, mem, ms in speeds],
        28,
        layer_bytes=4_940_000_000 // 28,
        hop_bytes_per_token=8192,
        latency_s=0.5 * MS,
        bytes_per_s=1.25e8,
    )
    return Solved(PlacementInstance(table, IntervalObjective(1), "laptops"), 22 * MS)


def two_boxes_on_a_cable() -> Solved:
    """The model fits each box: 10 layers of 7 ms and 8 ms an iteration make 78 ms, 12.82 tokens/s a box with b = 1.

    Two replicas: 25.64. One pipeline 5 + 5 has stages of 43 ms: at most 23.26.
    """
    table = direct_table(
        [DirectClass("box", 2, 20 * GB, 7 * MS, fixed_s=8 * MS)],
        10,
        layer_bytes=GB,
        batch_sizes=(1,),
        hop_bytes_per_token=16384,
        latency_s=0.1 * MS,
        bytes_per_s=17.8e9 / 8,
    )
    return Solved(PlacementInstance(table, ThroughputObjective(4), "two-boxes"), -2 / (78 * MS))


def big_last_block() -> Solved:
    """Twenty layers of 1 GB and one of 8 GB on three cards of 10 GB: only 10 + 10 + 1 layers fit.

    Equal cards, 1 ms a layer: 21 ms.
    """
    table = direct_table(
        [DirectClass("card", 3, 10 * GB, 1 * MS)], 21, layer_bytes=[GB] * 20 + [8 * GB], bytes_per_s=FREE_LINK
    )
    return Solved(PlacementInstance(table, IntervalObjective(1), "big-last-block"), 21 * MS)


def heavy_first_layers() -> Solved:
    """Twenty layers of 0.9 GB and sixty of 0.4 GB on two cards of 24 GB; 1 ms a GB.

    42 GB in all. With K = 2 the longer stage counts twice: cut after 27 layers, 18 + 7 * 0.4 = 20.8 GB and
    53 * 0.4 = 21.2 GB, so 2 * 21.2 = 42.4 ms. Cut after 40 layers card 0 would hold 18 + 8 = 26 GB.
    """
    sizes = [900_000_000] * 20 + [400_000_000] * 60
    times = [size / GB * MS for size in sizes]
    table = direct_table([DirectClass("card", 2, 24 * GB, times)], 80, layer_bytes=sizes, bytes_per_s=FREE_LINK)
    return Solved(PlacementInstance(table, IntervalObjective(2), "heavy-first-layers"), 42.4 * MS)


def by_bandwidth() -> Solved:
    """64 layers of 0.36 GB read at 936 GB/s (0.3846 ms) or 616 GB/s (0.5844 ms); cards of 24 and 11 GB.

    39 and 25 layers (9.0 GB) need 15.00 and 14.61 ms: 1 / 15 ms = 66.67 tokens/s with K >= 2. 38 and 26 need 15.19 ms.
    """
    table = direct_table(
        [DirectClass("wide", 1, 24 * GB, 0.36 / 936), DirectClass("narrow", 1, 11 * GB, 0.36 / 616)],
        64,
        layer_bytes=360_000_000,
        batch_sizes=(1,),
        bytes_per_s=FREE_LINK,
    )
    return Solved(PlacementInstance(table, ThroughputObjective(8), "by-bandwidth"), -1 / (39 * 0.36 / 936))


def more_devices_than_layers(num_layers: int = 3, num_devices: int = 5) -> Solved:
    """A card holds one layer, so each layer needs its own: 3 stages of 1 ms, and K = 1 leaves two cards out: 3 ms."""
    table = direct_table(
        [DirectClass("card", num_devices, GB, 1 * MS)], num_layers, layer_bytes=GB, bytes_per_s=FREE_LINK
    )
    return Solved(PlacementInstance(table, IntervalObjective(1), "more-devices-than-layers"), num_layers * MS)


def one_gigabyte_short() -> Solved:
    """48 layers of 1 GB; cards of 24 and 23 GB make 47 GB."""
    table = direct_table(
        [DirectClass("big", 1, 24 * GB, 1 * MS), DirectClass("small", 1, 23 * GB, 1 * MS)], 48, layer_bytes=GB
    )
    return Solved(PlacementInstance(table, IntervalObjective(1), "one-gigabyte-short"), None)


def replicas_and_a_pair() -> Solved:
    """Two fast cards (1 ms a layer) hold all 4 layers, two slow ones (2 ms) hold 2 each; K <= 2, b = 1.

    All cards together do 2 * 1000 + 2 * 500 = 3000 layers/s, 750 tokens/s at most. Two replicas make 250 tokens/s each,
    the slow pair has two stages of 4 ms: 2 / max(8, 2 * 4) ms = 250.
    """
    table = direct_table(
        [DirectClass("fast", 2, 4 * GB, 1 * MS), DirectClass("slow", 2, 2 * GB, 2 * MS)],
        4,
        layer_bytes=GB,
        batch_sizes=(1,),
        bytes_per_s=FREE_LINK,
    )
    return Solved(PlacementInstance(table, ThroughputObjective(2), "replicas-and-a-pair"), -750.0)


def pair_or_group() -> Solved:
    """Two cards of one node, 4 layers: 1 ms a layer alone, 0.6 ms as a tensor-parallel group. The group: 2.4 ms."""
    table = direct_table(
        [DirectClass("alone", 2, 4 * GB, 1 * MS), DirectClass("group", 1, 4 * GB, 0.6 * MS)],
        4,
        layer_bytes=GB,
        bytes_per_s=FREE_LINK,
        nodes=(0, 0, 0),
    )
    links = np.array([[-1, 0, -1], [0, -1, -1], [-1, -1, -1]], np.int64)
    table = replace(table, device_cards=((0,), (1,), (0, 1)), link_class=links)
    return Solved(PlacementInstance(table, IntervalObjective(1), "pair-or-group"), 2.4 * MS)


def capped_interval() -> Solved:
    """4 layers of 10 ms (b = 1) or 13 ms (b = 4), two cards that hold them all; no token may take over 45 ms.

    b = 4 takes 52 ms and is ruled out; b = 1 takes 40 ms alone: two replicas make 2 / 40 ms = 50 tokens/s.
    """
    table = direct_table(
        [DirectClass("card", 2, 4 * GB, 10 * MS, layer_per_sequence_s=1 * MS)],
        4,
        layer_bytes=GB,
        batch_sizes=(1, 4),
        bytes_per_s=FREE_LINK,
    )
    return Solved(PlacementInstance(table, ThroughputObjective(4, 45 * MS, 8), "capped-interval"), -50.0)


SOLVED: tuple[Callable[[], Solved], ...] = (
    fast_and_slow,
    laptops,
    two_boxes_on_a_cable,
    big_last_block,
    heavy_first_layers,
    by_bandwidth,
    more_devices_than_layers,
    one_gigabyte_short,
    replicas_and_a_pair,
    pair_or_group,
    capped_interval,
)
"""All of the above that need no argument."""


def relabelled(instance: PlacementInstance, order: Sequence[int]) -> PlacementInstance:
    """Return the same instance with planning device ``order[i]`` as the new number i; cards keep their numbers."""
    table, index = instance.table, np.array(order)
    changed = replace(
        table,
        device_names=tuple(table.device_names[i] for i in order),
        device_cards=tuple(table.device_cards[i] for i in order),
        device_node=table.device_node[index],
        device_class=table.device_class[index],
        link_class=table.link_class[np.ix_(index, index)],
    )
    return replace(instance, table=changed)


def with_capacity(table: CostTable, capacity_bytes: Sequence[int]) -> CostTable:
    """Return the table with other memory sizes per class."""
    return replace(table, capacity_bytes=np.array(capacity_bytes, np.int64))


@st.composite
def tiny_tables(draw: st.DrawFn, *, max_devices: int = 4, max_layers: int = 6) -> CostTable:
    """Random tables with every ingredient: unequal layers, ends, KV, workspace, general links, fixed times."""
    counts = draw(st.lists(st.integers(1, 2), min_size=1, max_size=3).filter(lambda c: sum(c) <= max_devices))
    num_layers = draw(st.integers(1, max_layers))
    num_devices = sum(counts)

    def per_layer(low: int, high: int, is_equal: bool) -> list[int]:
        if is_equal:
            return [draw(st.integers(low, high))] * num_layers
        return draw(st.lists(st.integers(low, high), min_size=num_layers, max_size=num_layers))

    is_equal = draw(st.booleans())
    layer_bytes, kv_bytes = per_layer(1, 4, is_equal), per_layer(0, 2, is_equal)
    classes = [
        DirectClass(
            f"c{i}",
            count,
            draw(st.integers(2, 8 * num_layers + 8)),
            [x / 1024 for x in per_layer(1, 9, is_equal)],
            layer_per_sequence_s=draw(st.integers(0, 3)) / 1024,
            fixed_s=draw(st.integers(0, 4)) / 1024,
            embed_s=draw(st.integers(0, 2)) / 1024,
            head_s=draw(st.integers(0, 4)) / 1024,
        )
        for i, count in enumerate(counts)
    ]
    speeds = st.sampled_from([(1024.0, 1 / 1024), (4096.0, 0.0), (64.0, 4 / 1024)])
    pairs = [[draw(speeds) for _ in range(num_devices)] for _ in range(num_devices)] if draw(st.booleans()) else None
    return direct_table(
        classes,
        num_layers,
        layer_bytes=layer_bytes,
        kv_bytes=kv_bytes,
        embed_bytes=draw(st.integers(0, 2)),
        head_bytes=draw(st.integers(1, 3)),
        tied_saving_bytes=draw(st.integers(0, 1)),
        workspace_bytes=draw(st.integers(0, 2)),
        batch_sizes=(1, 2),
        tokens_per_sequence=2.0,
        hop_bytes_per_token=draw(st.integers(0, 2)),
        latency_s=1 / 1024,
        bytes_per_s=1024.0,
        pair_links=pairs,
    )


@st.composite
def tiny_instances(draw: st.DrawFn, *, max_devices: int = 4, max_layers: int = 6) -> PlacementInstance:
    """Random instances over :func:`tiny_tables` with either objective."""
    table = draw(tiny_tables(max_devices=max_devices, max_layers=max_layers))
    objective = draw(
        st.one_of(
            st.builds(IntervalObjective, st.sampled_from([1, 2, 4])),
            st.builds(
                ThroughputObjective,
                st.integers(1, 3),
                st.sampled_from([None, 0.02, 0.06]),
                st.sampled_from([None, 3]),
            ),
        )
    )
    return PlacementInstance(table, objective)


def without_last_device(instance: PlacementInstance) -> PlacementInstance:
    """Return the instance without its last planning device; classes stay, other devices keep their numbers."""
    table, keep = instance.table, instance.table.num_devices - 1
    smaller = replace(
        table,
        device_names=table.device_names[:keep],
        device_cards=table.device_cards[:keep],
        device_node=table.device_node[:keep],
        device_class=table.device_class[:keep],
        link_class=table.link_class[:keep, :keep],
    )
    return replace(instance, table=smaller)
