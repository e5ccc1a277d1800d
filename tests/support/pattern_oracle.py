"""Values of patterns by trying every order of their devices with the split of :mod:`slob_opt.planning.split`."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from slob_opt.cost.table import TICK_S
from slob_opt.planning.groups import Groups
from slob_opt.planning.instance import PlacementInstance
from slob_opt.planning.split import best_split


def devices_of(groups: Groups, counts: Sequence[int]) -> list[int]:
    """Return the first devices of each group."""
    return [d for g, n in enumerate(counts) for d in groups.devices[g][: int(n)]]


def route_s(instance: PlacementInstance, order: Sequence[int], row: int) -> tuple[float, float]:
    """Return the sum of hops with return, and the largest occupancy of a link, seconds."""
    table = instance.table
    if len(order) == 1:
        return 0.0, 0.0
    links = [int(table.link_class[a, b]) for a, b in itertools.pairwise(order)]
    back = int(table.link_class[order[-1], order[0]])
    hops = float(sum(table.hop_s[row, c] for c in links) + table.return_s[row, back])
    return hops, float(max(table.return_occupancy_s[row, back], *(table.occupancy_s[row, c] for c in links)))


def interval_in_order(instance: PlacementInstance, order: Sequence[int], shape: tuple[int, int, int]) -> float:
    """Return the shortest interval of devices in an order, ticks; infinite when nothing is allowed."""
    row, k, b = shape
    hops, busy = route_s(instance, order, row)
    found = best_split(instance.table, row, order, k, k * b, hops, busy, instance.max_interval_s)
    return float("inf") if found is None else found[0] / TICK_S


def interval_of_pattern(
    instance: PlacementInstance,
    groups: Groups,
    counts: Sequence[int],
    shape: tuple[int, int, int],
    ends: tuple[int, int] | None = None,
) -> float:
    """Return the shortest interval over all orders that differ by group, ticks; with `ends` first and last groups."""
    devices = devices_of(groups, counts)
    group_of = {d: g for g, members in enumerate(groups.devices) for d in members}
    seen: set[tuple[int, ...]] = set()
    best = float("inf")
    for order in itertools.permutations(devices):
        key = tuple(group_of[d] for d in order)
        if key in seen or (ends is not None and (key[0], key[-1]) != ends):
            continue
        seen.add(key)
        best = min(best, interval_in_order(instance, order, shape))
    return best


def every_pattern(groups: Groups, max_devices: int) -> np.ndarray:
    """Return (P, G) all counts within the box, pools and devices by the plainest loop."""
    found = [
        counts
        for counts in itertools.product(*(range(int(a) + 1) for a in groups.available))
        if 0 < sum(counts) <= max_devices and np.all(groups.usage @ np.array(counts) <= groups.pool_cards)
    ]
    return np.array(found, np.int64)
