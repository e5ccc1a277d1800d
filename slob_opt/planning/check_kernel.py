"""The certifier's test whether a set of devices can form a pipeline below a time limit; integers only.

A pipeline that makes more than u tokens/s with K micro-batches of b has an interval below ``K * y`` with ``y = b / u``.
Every stage then takes less than y, whatever K; memory leaves the fewer layers a device the larger K is, so the least
possible sum S(K) of stage times grows with K. Hence the smallest K with ``S(K) < K * y`` is found by iterating
``K <- floor(S(K) / y) + 1`` from below, and if that exceeds the largest K allowed, no K does it.

S(K) itself: each device takes one layer, the rest fill the devices in order of their time per layer up to their caps
(an exchange argument: moving a layer to a quicker device with room never makes the sum longer).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from slob_opt.cost.table import FloatArray, IntArray
from slob_opt.planning.ticks import RowTicks


@dataclass(frozen=True, slots=True)
class CapTables:
    """Most layers by memory and by the cap on the interval, for K = 0 .. largest (index 0 is unused).

    Attributes
    ----------
    middle, first, last
        (K + 1, G) int64, for a device with neither extra, with the embedding, with the head.
    """

    middle: IntArray
    first: IntArray
    last: IntArray


def cap_tables(row: RowTicks) -> CapTables:
    """Return the caps that do not depend on the time limit under test."""
    tables: list[IntArray] = []
    for extra_bytes, extra_s in ((0, 0), (row.embed_bytes, row.embed), (row.head_bytes, row.head)):
        caps = [np.full(row.fixed.size, row.num_layers, np.int64)]
        for k in range(1, row.max_micro_batches + 1):
            by_memory = row.memory_caps(k * row.batch_size, extra_bytes)
            caps.append(np.minimum(by_memory, row.time_caps(row.longest // k, extra_s)))
        tables.append(np.stack(caps))
    return CapTables(*tables)


def strictly_below(limits: FloatArray) -> IntArray:
    """Return the largest whole ticks strictly below limits."""
    return np.asarray(np.ceil(limits).astype(np.int64) - 1)


def fewest_micro_batches(
    row: RowTicks,
    caps: CapTables,
    counts: IntArray,
    overhead: IntArray,
    limits: FloatArray,
    *,
    ends: tuple[int, int] | None,
    at_least: int = 1,
) -> IntArray:
    """Return the smallest K with which a pipeline of several stages stays below its limit; 0 where there is none.

    Parameters
    ----------
    row, caps
        The iteration shape.
    counts
        (P, G) int64, devices of each pipeline, at least two; every one executes a layer at least.
    overhead
        (P,) int64 ticks, hops and the hop back.
    limits
        (P,) float64 ticks, y: the interval must be less than K * y (and at most ``row.longest``).
    ends
        Groups of the first and the last device; every row of `counts` must hold them. ``None`` relaxes: extra bytes are
        ignored and the least extra times of the groups at hand are charged.
    at_least
        Smallest K to consider.
    """
    found = np.zeros(len(counts), np.int64)
    num_devices = counts.sum(axis=1)
    stage_limit = strictly_below(limits)
    active = np.flatnonzero((num_devices <= row.num_layers) & (row.occupancy <= stage_limit) & (stage_limit > 0))
    if active.size == 0:
        return found
    n, y = counts[active], limits[active]
    time_caps = row.time_caps(stage_limit[active, None])
    if ends is None:
        extra_time = _least_present(n, row.embed) + _least_present(n, row.head)
        end_caps = None
    else:
        first, last = ends
        extra_time = np.full(active.size, row.embed[first] + row.head[last])
        limit = stage_limit[active]
        end_caps = (
            _cap_of(row, first, limit, int(row.embed[first])),
            _cap_of(row, last, limit, int(row.head[last])),
        )
    base = n @ (row.fixed + row.layer) + overhead[active] + extra_time
    order = np.argsort(row.layer, kind="stable")
    k = np.full(active.size, at_least, np.int64)
    keep = k <= row.max_micro_batches
    while True:
        active, n, k = active[keep], n[keep], k[keep]
        y, base, time_caps = y[keep], base[keep], time_caps[keep]
        end_caps = None if end_caps is None else (end_caps[0][keep], end_caps[1][keep])
        if active.size == 0:
            return found
        cap = np.minimum(time_caps, caps.middle[k])
        space = n * (cap - 1)
        possible = ~np.any((cap < 1) & _needs_middle(n, ends), axis=1)
        if ends is not None and end_caps is not None:
            for group, own, table in ((ends[0], end_caps[0], caps.first), (ends[1], end_caps[1], caps.last)):
                own_cap = np.minimum(own, table[k, group])
                possible &= own_cap >= 1
                space[:, group] += own_cap - cap[:, group]
        total = base.copy()
        left = row.num_layers - n.sum(axis=1)
        for g in order:
            taken = np.minimum(np.maximum(space[:, g], 0), left)
            total += taken * row.layer[g]
            left = left - taken
        possible &= (left == 0) & (total <= row.longest)
        needed = np.floor(total / y).astype(np.int64) + 1
        done = possible & (needed <= k) & (row.occupancy * k <= row.longest)
        found[active[done]] = k[done]
        keep = possible & ~done & (needed > k) & (needed <= row.max_micro_batches)
        k = np.maximum(k, needed)


def _least_present(counts: IntArray, values: IntArray) -> IntArray:
    """Return (P,) int64, the least of (G,) values over the groups that a pattern uses."""
    return np.asarray(np.where(counts > 0, values, np.iinfo(np.int64).max).min(axis=1))


def _needs_middle(counts: IntArray, ends: tuple[int, int] | None) -> IntArray:
    """Return (P, G) bool, where a device is neither the first nor the last."""
    if ends is None:
        return np.asarray(counts > 0)
    middle = counts.copy()
    middle[:, ends[0]] -= 1
    middle[:, ends[1]] -= 1
    return np.asarray(middle > 0)


def _cap_of(row: RowTicks, group: int, limit: IntArray, extra: int) -> IntArray:
    """Return (P,) int64, most layers of one group's device within a stage limit; -1 where there is no room."""
    free = limit - int(row.fixed[group]) - extra
    layer = int(row.layer[group])
    layers = free // layer if layer > 0 else np.full_like(free, row.num_layers)
    return np.asarray(np.where(free < 0, -1, np.minimum(layers, row.num_layers)), dtype=np.int64)


def lone_stage(row: RowTicks, group: int) -> Iterator[tuple[int, int]]:
    """Yield (K, interval in ticks) of all layers on one device, for every K that memory and caps allow."""
    extra = row.embed_bytes + row.head_bytes - row.tied_saving_bytes
    stage = int(row.fixed[group] + row.num_layers * row.layer[group] + row.embed[group] + row.head[group])
    for k in range(1, row.max_micro_batches + 1):
        if k * stage > row.longest or row.memory_caps(k * row.batch_size, extra)[group] < row.num_layers:
            return
        yield k, k * stage
