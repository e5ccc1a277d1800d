"""The certifier's test whether any pipeline at all stays within an interval, without walking patterns.

For fixed K and interval every device has a cap on its layers, and k layers on one group's devices take least time on
as few of them as hold k. So each group has one curve of least time by number of layers, and the groups' curves combine
by min-plus convolution over the layers of the model. The first and the last device, with embedding and head, come from
a pair of groups that is tried in turn. Sizes are those of the model and the number of groups, not of the cluster.
"""

from __future__ import annotations

import numpy as np

from slob_opt.cost.table import IntArray
from slob_opt.planning.check_kernel import lone_stage
from slob_opt.planning.ticks import UNREACHABLE, GroupIndex, RowTicks


def reaches(row: RowTicks, groups: GroupIndex, k: int) -> bool:
    """Return whether some pipeline with K = `k` has an interval of at most ``row.longest`` ticks.

    Exact for equal layers, one kind of link and devices that share no card; otherwise it may say yes where the answer
    is no, never the reverse.
    """
    for group in range(groups.num_groups):
        if any(found == k for found, _ in lone_stage(row, group)):
            return True
    if row.occupancy * k > row.longest:
        return False
    stage_limit, in_flight = row.longest // k, k * row.batch_size
    middle = np.minimum(row.memory_caps(in_flight), row.time_caps(stage_limit))
    first = np.minimum(row.memory_caps(in_flight, row.embed_bytes), row.time_caps(stage_limit, row.embed))
    last = np.minimum(row.memory_caps(in_flight, row.head_bytes), row.time_caps(stage_limit, row.head))
    closings = [_one_device(row, g, int(last[g]), int(row.head[g])) for g in range(groups.num_groups)]
    for f in range(groups.num_groups):
        opening = _one_device(row, f, int(first[f]), int(row.embed[f]))
        for g in range(groups.num_groups):
            free = groups.available.copy()
            free[f] -= 1
            free[g] -= 1
            if np.any(free < 0):
                continue
            total = _combined(opening, closings[g])
            for h in range(groups.num_groups):
                total = _combined(total, _curve(row, h, int(middle[h]), int(free[h])))
            if int(total[row.num_layers]) - row.hop + row.ret <= row.longest:
                return True
    return False


def _one_device(row: RowTicks, group: int, cap: int, extra: int) -> IntArray:
    """Return (L + 1,) int64 ticks of one device by its layers, with the hop behind it; at least one layer."""
    layers = np.arange(row.num_layers + 1)
    time = int(row.fixed[group]) + extra + row.hop + layers * int(row.layer[group])
    return np.asarray(np.where((layers >= 1) & (layers <= cap), time, UNREACHABLE), dtype=np.int64)


def _curve(row: RowTicks, group: int, cap: int, available: int) -> IntArray:
    """Return (L + 1,) int64 ticks of a group's middle devices by their layers together, with the hops behind them."""
    layers = np.arange(row.num_layers + 1)
    if cap < 1 or available < 1:
        return np.asarray(np.where(layers == 0, 0, UNREACHABLE), dtype=np.int64)
    devices = -(-layers // cap)
    time = devices * (int(row.fixed[group]) + row.hop) + layers * int(row.layer[group])
    return np.asarray(np.where(devices <= available, time, UNREACHABLE), dtype=np.int64)


def _combined(a: IntArray, b: IntArray) -> IntArray:
    """Return the min-plus convolution of two curves, cut at the number of layers."""
    size = a.size
    index = np.arange(size)[:, None] - np.arange(size)[None, :]
    sums = a[None, :] + b[np.maximum(index, 0)]
    return np.asarray(np.minimum(np.where(index >= 0, sums, UNREACHABLE).min(axis=1), UNREACHABLE))
