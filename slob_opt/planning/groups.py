"""Devices by kind: groups of exchangeable devices, pools of cards, and the counts (patterns) a pipeline may use.

A *group* holds planning devices of one cost class whose cards lie in one pool; a *pool* holds cards that are part
of the same classes of planning devices. A card's devices (alone, in a pair, in a quad ...) are nested, so any
counts with ``sum(size * count) <= cards`` in each pool can be packed, largest groups first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from slob_opt.cost.table import TICK_S, CostTable, FloatArray, IntArray
from slob_opt.planning.instance import PlacementInstance
from slob_opt.problem.placement import Pipeline, Placement, Stage

UNLIMITED_LAYERS = 1 << 20


@dataclass(frozen=True, slots=True)
class Groups:
    """Groups and pools of a cost table.

    Attributes
    ----------
    devices
        (G,) planning devices of each group, ascending.
    classes
        (G,) int, cost class of each group.
    pools
        (G,) int, pool of each group.
    sizes
        (G,) int, units of the pool that one device takes; a unit is the largest number of cards that divides all sizes.
    pool_cards
        (number of pools,) int, units of cards.
    has_uniform_links
        Whether one link class joins all devices, so that counts alone fix the hops.
    """

    devices: tuple[tuple[int, ...], ...]
    classes: IntArray
    pools: IntArray
    sizes: IntArray
    pool_cards: IntArray
    has_uniform_links: bool

    @property
    def num_groups(self) -> int:
        """G."""
        return len(self.devices)

    @property
    def available(self) -> IntArray:
        """(G,) int, devices in each group."""
        return np.array([len(d) for d in self.devices], np.int64)

    @property
    def usage(self) -> IntArray:
        """(number of pools, G) int, units that one device of a group takes from a pool."""
        matrix = np.zeros((self.pool_cards.size, self.num_groups), np.int64)
        matrix[self.pools, np.arange(self.num_groups)] = self.sizes
        return matrix

    def box_size(self) -> int:
        """Return the number of count vectors between zero and what is available."""
        return int(np.prod([float(a + 1) for a in self.available]))


def has_pools(table: CostTable) -> bool:
    """Return whether the cards of each planning device are part of the same classes of devices, so that counts pack.

    Groups of 1, 2, 4, 8 equal cards of a node do; a group of three beside a pair of two of its cards does not.
    """
    classes_of_card: dict[int, list[int]] = {}
    for device, cards in enumerate(table.device_cards):
        for card in cards:
            classes_of_card.setdefault(card, []).append(int(table.device_class[device]))
    signature = {card: tuple(sorted(classes)) for card, classes in classes_of_card.items()}
    return all(len({signature[card] for card in cards}) == 1 for cards in table.device_cards)


def group_devices(table: CostTable) -> Groups:
    """Return the groups and pools of a table, in order of their first device."""
    memberships: dict[int, list[int]] = {}
    for device, cards in enumerate(table.device_cards):
        for card in cards:
            memberships.setdefault(card, []).append(int(table.device_class[device]))
    signature = {card: tuple(sorted(classes)) for card, classes in memberships.items()}
    pool_index: dict[tuple[int, ...], int] = {}
    for card in sorted(signature):
        pool_index.setdefault(signature[card], len(pool_index))
    members: dict[tuple[int, int, int], list[int]] = {}
    for device, cards in enumerate(table.device_cards):
        key = (int(table.device_class[device]), pool_index[signature[cards[0]]], len(cards))
        members.setdefault(key, []).append(device)
    cards_in_pool = np.zeros(len(pool_index), np.int64)
    for card_signature in signature.values():
        cards_in_pool[pool_index[card_signature]] += 1
    pools = np.array([p for _, p, _ in members], np.int64)
    sizes = np.array([len(table.device_cards[v[0]]) for v in members.values()], np.int64)
    for pool in range(cards_in_pool.size):
        unit = int(np.gcd.reduce(sizes[pools == pool]))
        sizes[pools == pool] //= unit
        cards_in_pool[pool] //= unit
    return Groups(
        devices=tuple(tuple(v) for v in members.values()),
        classes=np.array([c for c, _, _ in members], np.int64),
        pools=pools,
        sizes=sizes,
        pool_cards=cards_in_pool,
        has_uniform_links=table.has_uniform_links,
    )


@dataclass(frozen=True, slots=True)
class ShapeCosts:
    """Times in ticks and layer caps of every group for one pipeline shape (row, K, b).

    Attributes
    ----------
    row, num_micro_batches, batch_size
        The shape.
    fixed, layer, embed, head
        (G,) float64, whole ticks.
    cap, cap_first, cap_last, cap_both
        (G,) float64, most layers that memory allows on a middle, first, last, only stage; negative when not even
        none fit.
    hop, ret, occupancy
        Whole ticks; with different links the smallest of each, which makes values bounds.
    max_interval
        Whole ticks, rounded down; infinite without a cap.
    """

    row: int
    num_micro_batches: int
    batch_size: int
    fixed: FloatArray
    layer: FloatArray
    embed: FloatArray
    head: FloatArray
    cap: FloatArray
    cap_first: FloatArray
    cap_last: FloatArray
    cap_both: FloatArray
    hop: float
    ret: float
    occupancy: float
    max_interval: float

    @property
    def num_in_flight(self) -> int:
        """K * b, the sequences whose KV each stage holds."""
        return self.num_micro_batches * self.batch_size


def used_links(table: CostTable) -> IntArray:
    """Return the classes of links that join two planning devices; a table may know more classes than it uses."""
    return np.asarray(np.unique(table.link_class[table.link_class >= 0]), dtype=np.int64)


def shape_costs(instance: PlacementInstance, classes: IntArray, shape: tuple[int, int, int]) -> ShapeCosts:
    """Return costs of classes `classes` (one entry a group or device) in ticks for one shape.

    With unequal layers the smallest layer time and bytes are taken, which makes values bounds.
    """
    table = instance.table
    row, k, b = shape
    q = k * b
    layer_bytes = (table.weight_bytes + q * table.kv_bytes).min(axis=1)[classes]
    free = (table.capacity_bytes - table.workspace_bytes[row])[classes]
    embed_bytes, head_bytes = table.embed_bytes[classes], table.head_bytes[row][classes]
    saving = table.tied_saving_bytes[classes]

    def cap(extra: IntArray | int) -> FloatArray:
        room = free - extra
        with np.errstate(divide="ignore"):
            layers = np.where(layer_bytes > 0, room // np.maximum(layer_bytes, 1), UNLIMITED_LAYERS)
        return np.asarray(np.where(room < 0, -1, np.minimum(layers, UNLIMITED_LAYERS)), dtype=np.float64)

    def ticks(values: FloatArray) -> FloatArray:
        return np.asarray(values / TICK_S)

    def least(values: FloatArray) -> float:
        return float(values[row][links].min() / TICK_S) if links.size else 0.0

    limit = instance.max_interval_s
    links = used_links(table)
    return ShapeCosts(
        row=row,
        num_micro_batches=k,
        batch_size=b,
        fixed=ticks(table.fixed_s[row][classes]),
        layer=ticks(table.layer_s[row].min(axis=1)[classes]),
        embed=ticks(table.embed_s[row][classes]),
        head=ticks(table.head_s[row][classes]),
        cap=cap(0),
        cap_first=cap(embed_bytes),
        cap_last=cap(head_bytes),
        cap_both=cap(embed_bytes + head_bytes - saving),
        hop=least(table.hop_s),
        ret=least(table.return_s),
        occupancy=max(least(table.occupancy_s), least(table.return_occupancy_s)),
        max_interval=float(np.floor(limit / TICK_S)) if limit is not None else float("inf"),
    )


def iter_patterns(
    groups: Groups, max_devices: int, chunk: int = 1 << 16, keep: NDArray[np.bool_] | None = None
) -> Iterator[NDArray[np.int16]]:
    """Yield (chunk, G) int16 count vectors: not empty, at most `max_devices` devices, no pool overdrawn.

    `keep` (G,) switches groups off.
    """
    available = groups.available if keep is None else np.where(keep, groups.available, 0)
    radix = available + 1
    total = int(np.prod(radix))
    usage = groups.usage
    for start in range(1, total, chunk):
        code = np.arange(start, min(start + chunk, total), dtype=np.int64)
        counts = np.empty((code.size, groups.num_groups), np.int16)
        for g in range(groups.num_groups):
            counts[:, g] = code % radix[g]
            code //= radix[g]
        fits = counts.sum(axis=1) <= max_devices
        for p in range(groups.pool_cards.size):
            if np.count_nonzero(usage[p]) > 1:
                fits &= counts @ usage[p] <= groups.pool_cards[p]
        if np.any(fits):
            yield counts[fits]


@dataclass(frozen=True, slots=True)
class PatternPlan:
    """One pipeline by groups: what a pattern's value was computed for.

    Attributes
    ----------
    groups
        Group of each stage, in order.
    layers
        Layers of each stage.
    num_micro_batches, batch_size
        K and b.
    """

    groups: tuple[int, ...]
    layers: tuple[int, ...]
    num_micro_batches: int
    batch_size: int


def realise(table: CostTable, groups: Groups, plans: Sequence[PatternPlan]) -> Placement:
    """Return a placement of the planned pipelines on actual devices, largest groups of cards first."""
    wanted = sorted(
        ((int(groups.sizes[g]), g, p, s) for p, plan in enumerate(plans) for s, g in enumerate(plan.groups)),
        key=lambda item: (-item[0], item[2], item[3]),
    )
    free_from: dict[int, int] = {}
    used_cards: set[int] = set()
    chosen: dict[tuple[int, int], int] = {}
    for _, g, p, s in wanted:
        position = free_from.get(g, 0)
        while any(card in used_cards for card in table.device_cards[groups.devices[g][position]]):
            position += 1
        device = groups.devices[g][position]
        free_from[g] = position + 1
        used_cards.update(table.device_cards[device])
        chosen[p, s] = device
    pipelines = []
    for p, plan in enumerate(plans):
        stages, first = [], 0
        for s, layers in enumerate(plan.layers):
            stages.append(Stage(table.device_cards[chosen[p, s]], first, first + layers))
            first += layers
        pipelines.append(Pipeline(tuple(stages), plan.num_micro_batches, plan.batch_size))
    return Placement(tuple(pipelines))
