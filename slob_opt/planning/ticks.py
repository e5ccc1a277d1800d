"""The certifier's own integer view of a cost table: ticks, bytes, groups, and the layers that fit in them.

Nothing here calls the planners' code. One tick is 2^-30 s and every time of a table is a whole number of ticks, so all
comparisons are exact in int64. Where links or layers differ the smallest is taken, which can only favour the plans that
a bound has to exclude: a bound that passes holds for the real instance as well.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from slob_opt.cost.table import CostTable, FloatArray, IntArray
from slob_opt.errors import InputError
from slob_opt.planning.instance import PlacementInstance
from slob_opt.planning.objectives import IntervalObjective

TICKS_PER_S = 1 << 30
UNREACHABLE = 1 << 52
"""More ticks than any plan takes (2^22 s); still exact in float64 and safe to add in int64."""


def whole_ticks(seconds: FloatArray) -> IntArray:
    """Return times as int64 ticks; raises InputError when one isn't a whole number of them."""
    scaled = np.asarray(seconds, dtype=np.float64) * TICKS_PER_S
    ticks = np.rint(scaled)
    if np.any(ticks != scaled) or np.any(np.abs(ticks) >= UNREACHABLE):
        raise InputError("the cost table has a time that is no whole number of ticks of 2^-30 s, or above 2^22 s")
    return np.asarray(ticks.astype(np.int64))


def ticks_below(seconds: float) -> int:
    """Return the largest whole number of ticks strictly below a time in seconds."""
    return min(math.ceil(Fraction(seconds) * TICKS_PER_S) - 1, UNREACHABLE)


def ticks_within(seconds: float | None) -> int:
    """Return the largest whole number of ticks that does not exceed a cap in seconds; `UNREACHABLE` without a cap."""
    return UNREACHABLE if seconds is None else min(math.floor(Fraction(seconds) * TICKS_PER_S), UNREACHABLE)


@dataclass(frozen=True, slots=True)
class GroupIndex:
    """Exchangeable devices: equal class, cards from one pool.

    Attributes
    ----------
    classes
        (G,) int64, cost class of each group; groups stand in the order of their first device.
    available
        (G,) int64, devices of each group.
    usage
        (number of pools, G) int64, units of a pool that one device of a group takes. A pool holds the cards that belong
        to the same classes of planning devices; its unit is the largest number of cards that divides every size.
    pool_units
        (number of pools,) int64, units of each pool; pools stand in the order of their first card.
    cards_per_device
        (G,) int64.
    group_of_device
        (D,) int64.
    has_exclusive_devices
        Whether no two planning devices share a card.
    """

    classes: IntArray
    available: IntArray
    usage: IntArray
    pool_units: IntArray
    cards_per_device: IntArray
    group_of_device: IntArray
    has_exclusive_devices: bool

    @property
    def num_groups(self) -> int:
        """G."""
        return int(self.classes.size)


def group_index(table: CostTable) -> GroupIndex:
    """Return groups and pools of a table; raises InputError when a device's cards lie in several pools."""
    classes_of_card: dict[int, list[int]] = {}
    for device, cards in enumerate(table.device_cards):
        for card in cards:
            classes_of_card.setdefault(card, []).append(int(table.device_class[device]))
    signatures = {card: tuple(sorted(classes)) for card, classes in classes_of_card.items()}
    pools: dict[tuple[int, ...], int] = {}
    for card in sorted(signatures):
        pools.setdefault(signatures[card], len(pools))
    keys: dict[tuple[int, int, int], int] = {}
    group_of_device = np.empty(table.num_devices, np.int64)
    for device, cards in enumerate(table.device_cards):
        touched = {pools[signatures[card]] for card in cards}
        if len(touched) > 1:
            raise InputError(f"cards of device {table.device_names[device]} belong to different sets of devices")
        key = (int(table.device_class[device]), touched.pop(), len(cards))
        group_of_device[device] = keys.setdefault(key, len(keys))
    cards_in_pool = np.bincount([pools[s] for s in signatures.values()], minlength=len(pools)).astype(np.int64)
    usage = np.zeros((len(pools), len(keys)), np.int64)
    for (_, pool, size), group in keys.items():
        usage[pool, group] = size
    units = np.gcd.reduce(usage, axis=1)
    return GroupIndex(
        classes=np.array([c for c, _, _ in keys], np.int64),
        available=np.bincount(group_of_device, minlength=len(keys)).astype(np.int64),
        usage=usage // units[:, None],
        pool_units=cards_in_pool // units,
        cards_per_device=np.array([size for _, _, size in keys], np.int64),
        group_of_device=group_of_device,
        has_exclusive_devices=sum(len(c) for c in table.device_cards) == len(signatures),
    )


@dataclass(frozen=True, slots=True)
class RowTicks:
    """One iteration shape in integers, by group.

    Attributes
    ----------
    row, batch_size, max_micro_batches
        Row of the table, its b, and the largest K that the objective allows with it.
    num_layers
        L.
    fixed, layer, embed, head
        (G,) int64 ticks; the smallest layer where they differ.
    room, embed_bytes, head_bytes, tied_saving_bytes
        (G,) int64 bytes; `room` is capacity less workspace.
    weight_bytes, kv_bytes
        (G,) int64 bytes a layer, and a layer and sequence.
    hop, ret, occupancy
        Ticks of the quickest forward hop, the quickest hop back, and the least time a link is busy.
    longest
        Ticks that no pipeline's interval exceeds; also the objective's own cap when it is tighter.
    """

    row: int
    batch_size: int
    max_micro_batches: int
    num_layers: int
    fixed: IntArray
    layer: IntArray
    embed: IntArray
    head: IntArray
    room: IntArray
    embed_bytes: IntArray
    head_bytes: IntArray
    tied_saving_bytes: IntArray
    weight_bytes: IntArray
    kv_bytes: IntArray
    hop: int
    ret: int
    occupancy: int
    longest: int

    def memory_caps(self, num_in_flight: int, extra_bytes: IntArray | int = 0) -> IntArray:
        """Return (G,) int64, most layers that fit with `num_in_flight` sequences; -1 where not even the extras fit."""
        free = self.room - extra_bytes
        per_layer = self.weight_bytes + num_in_flight * self.kv_bytes
        layers = np.where(per_layer > 0, free // np.maximum(per_layer, 1), self.num_layers)
        return np.asarray(np.where(free < 0, -1, np.minimum(layers, self.num_layers)), dtype=np.int64)

    def time_caps(self, limit: IntArray | int, extra: IntArray | int = 0) -> IntArray:
        """Return most layers whose stage takes at most `limit` ticks; -1 where not even the fixed part fits.

        Parameters
        ----------
        limit
            Scalar, or (P, 1) int64.
        extra
            Ticks on top of the fixed time, (G,) or scalar.
        """
        free = limit - self.fixed - extra
        layers = np.where(self.layer > 0, free // np.maximum(self.layer, 1), self.num_layers)
        return np.asarray(np.where(free < 0, -1, np.minimum(layers, self.num_layers)), dtype=np.int64)


def row_ticks(instance: PlacementInstance, groups: GroupIndex, *, longest: int | None = None) -> tuple[RowTicks, ...]:
    """Return the rows that the objective may use.

    Parameters
    ----------
    instance
        The problem.
    groups
        Its groups.
    longest
        Replaces the objective's cap on the interval, ticks.
    """
    table, objective = instance.table, instance.objective
    if isinstance(objective, IntervalObjective):
        allowed = [(0, 1, objective.in_flight)]
        cap = UNREACHABLE
    else:
        allowed = []
        for row, b in enumerate(table.batch_sizes):
            largest = objective.max_micro_batches
            if objective.max_in_flight is not None:
                largest = min(largest, objective.max_in_flight // b)
            if row > 0 and largest > 0:
                allowed.append((row, b, largest))
        cap = ticks_within(objective.max_interval_s)
    if longest is not None:
        cap = longest
    return tuple(_one_row(table, groups.classes, row, b, k, cap) for row, b, k in allowed)


def _one_row(table: CostTable, classes: IntArray, row: int, batch_size: int, max_k: int, cap: int) -> RowTicks:
    """Return one row of `row_ticks`."""
    fixed, embed, head = (whole_ticks(a[row])[classes] for a in (table.fixed_s, table.embed_s, table.head_s))
    slowest_layer = whole_ticks(table.layer_s[row]).max(axis=1)[classes]
    used = np.unique(table.link_class[table.link_class >= 0])
    hops, rets = (whole_ticks(a[row])[used] for a in (table.hop_s, table.return_s))
    busy, busy_back = (whole_ticks(a[row])[used] for a in (table.occupancy_s, table.return_occupancy_s))
    stage = int((fixed + embed + head + table.num_layers * slowest_layer).max())
    chain = table.num_devices * (stage + int(hops.max(initial=0))) + int(rets.max(initial=0))
    worst = max_k * max(chain, int(busy.max(initial=0)), int(busy_back.max(initial=0)))
    if worst >= UNREACHABLE:
        raise InputError("a pipeline of this instance may take more than 2^22 s; the certifier's integers end there")
    return RowTicks(
        row=row,
        batch_size=batch_size,
        max_micro_batches=max_k,
        num_layers=table.num_layers,
        fixed=fixed,
        layer=whole_ticks(table.layer_s[row]).min(axis=1)[classes],
        embed=embed,
        head=head,
        room=(table.capacity_bytes - table.workspace_bytes[row])[classes],
        embed_bytes=table.embed_bytes[classes],
        head_bytes=table.head_bytes[row][classes],
        tied_saving_bytes=table.tied_saving_bytes[classes],
        weight_bytes=table.weight_bytes.min(axis=1)[classes],
        kv_bytes=table.kv_bytes.min(axis=1)[classes],
        hop=int(hops.min(initial=UNREACHABLE)) if used.size else 0,
        ret=int(rets.min(initial=UNREACHABLE)) if used.size else 0,
        occupancy=max(int(busy.min(initial=UNREACHABLE)), int(busy_back.min(initial=UNREACHABLE))) if used.size else 0,
        longest=min(cap, worst),
    )


def is_exact_by_counts(instance: PlacementInstance) -> bool:
    """Return whether counts per group fix a pipeline's value, so that the relaxations here lose nothing."""
    table = instance.table
    dedicated = not bool(np.any(np.isfinite(table.nic_bytes_per_s)))
    return table.has_identical_layers and table.has_uniform_links and table.has_exclusive_devices and dedicated


def count_box(available: IntArray, start: int, end: int) -> IntArray:
    """Return the count vectors numbered ``[start, end)`` of the box ``0 .. available``, (P, G) int64; 0 is empty."""
    shape = tuple(int(a) + 1 for a in available)
    return np.stack(np.unravel_index(np.arange(start, end), shape), axis=1).astype(np.int64)


def box_size(available: IntArray) -> int:
    """Return the number of count vectors, the empty one included."""
    return math.prod(int(a) + 1 for a in available)


BoolArray = NDArray[np.bool_]
