"""Re-checks interval bounds for models with unequal layers: dynamic programs over (devices used, layers done).

A stage's time and memory depend on which layers it executes, so counts of layers say too little. With one kind of link
the devices used are counts per group; otherwise they are subsets, together with the last device.
"""

from __future__ import annotations

import numpy as np

from slob_opt.cost.table import CostTable, IntArray
from slob_opt.planning.check_subsets import SubsetRow, subset_rows, usable_subsets
from slob_opt.planning.instance import PlacementInstance
from slob_opt.planning.ticks import (
    UNREACHABLE,
    GroupIndex,
    RowTicks,
    box_size,
    count_box,
    group_index,
    row_ticks,
    ticks_below,
    whole_ticks,
)
from slob_opt.planning.verdict import Verdict, claimed, failed, verified

MAX_OPERATIONS = 4_000_000_000
"""Most elementary steps of one check; beyond, the bound stays claimed. Chosen: ten to twenty seconds."""


def stage_ticks(table: CostTable, row: int, num_in_flight: int, limit: int) -> tuple[IntArray, IntArray]:
    """Return the times of all possible stages of a chain, and of all layers on one device.

    Parameters
    ----------
    table
        Times and bytes.
    row
        Iteration shape.
    num_in_flight
        Sequences whose KV each stage holds.
    limit
        Longest stage time, ticks.

    Returns
    -------
    tuple
        (C, L + 1, L + 1) int64 ticks by class, first layer and end, and (C,) int64 ticks for one device alone;
        `UNREACHABLE` where the stage is empty, does not fit, or takes longer than `limit`.
    """
    num = table.num_layers
    layer = whole_ticks(table.layer_s[row])
    held = table.weight_bytes + num_in_flight * table.kv_bytes
    zero = np.zeros((table.num_classes, 1), np.int64)
    time_to, bytes_to = (np.concatenate([zero, np.cumsum(a, axis=1)], axis=1) for a in (layer, held))
    time = time_to[:, None, :] - time_to[:, :, None] + whole_ticks(table.fixed_s[row])[:, None, None]
    size = bytes_to[:, None, :] - bytes_to[:, :, None] + table.workspace_bytes[row][:, None, None]
    time[:, 0, :] += whole_ticks(table.embed_s[row])[:, None]
    size[:, 0, :] += table.embed_bytes[:, None]
    time[:, :, num] += whole_ticks(table.head_s[row])[:, None]
    size[:, :, num] += table.head_bytes[row][:, None]
    size[:, 0, num] -= table.tied_saving_bytes
    empty = np.arange(num + 1)[:, None] >= np.arange(num + 1)
    bad = empty[None] | (size > table.capacity_bytes[:, None, None]) | (time > limit)
    time[bad] = UNREACHABLE
    alone = time[:, 0, num].copy()
    time[:, 0, num] = UNREACHABLE
    return time, alone


def check_layered_threshold(instance: PlacementInstance, bound_s: float | None) -> Verdict:
    """Return whether no pipeline has an interval below `bound_s` seconds; ``None`` asks whether none works at all.

    Exact for any layers; links by counts when there is one kind, by subsets otherwise.
    """
    if instance.is_throughput and bound_s is not None:
        return claimed("a threshold on the interval says nothing about summed rates")
    table = instance.table
    groups = group_index(table)
    longest = None if bound_s is None else ticks_below(bound_s)
    by_counts = table.has_uniform_links and groups.has_exclusive_devices
    steps = (table.num_layers + 1) ** 2
    if by_counts:
        steps *= box_size(groups.available) * groups.num_groups
    else:
        steps *= table.num_devices**2 << max(0, table.num_devices - 1)
    shapes = instance.shapes()
    if steps * len(shapes) > MAX_OPERATIONS:
        return claimed(f"about {steps * len(shapes):.2g} steps are more than the check takes ({MAX_OPERATIONS:.2g})")
    is_exact = not bool(np.any(np.isfinite(table.nic_bytes_per_s)))
    if by_counts:
        for row in row_ticks(instance, groups, longest=longest):
            for k in _micro_batches(instance, row):
                if _works_by_counts(table, groups, row, k):
                    return failed(f"a pipeline with K = {k} stays below the bound", is_exact=is_exact)
        return verified(f"none of {box_size(groups.available) - 1} patterns stays below the bound with any cut")
    for item in subset_rows(instance, groups, longest=longest):
        for k in _micro_batches(instance, item.row):
            if _works_by_subsets(table, item, k):
                return failed(f"a pipeline with K = {k} stays below the bound", is_exact=is_exact)
    return verified(f"none of {(1 << table.num_devices) - 1} subsets stays below the bound with any cut")


def _micro_batches(instance: PlacementInstance, row: RowTicks) -> range:
    first = 1 if instance.is_throughput else row.max_micro_batches
    return range(first, row.max_micro_batches + 1)


def _works_by_counts(table: CostTable, groups: GroupIndex, row: RowTicks, k: int) -> bool:
    """Return whether some pattern executes all layers within ``row.longest`` ticks at this K."""
    time, alone = stage_ticks(table, row.row, k * row.batch_size, row.longest // k)
    if int(alone.min()) < UNREACHABLE:
        return True
    if row.occupancy * k > row.longest:
        return False
    cells = count_box(groups.available, 0, box_size(groups.available))
    shape = tuple(int(a) + 1 for a in groups.available)
    strides = [int(np.prod(shape[g + 1 :])) for g in range(groups.num_groups)]
    # done[cell, l]: least sum of stage times of the first l layers on exactly these devices.
    done = np.full((len(cells), table.num_layers + 1), UNREACHABLE, np.int64)
    done[0, 0] = 0
    for cell, counts in enumerate(cells):
        for g in np.flatnonzero(counts):
            before = done[cell - strides[g]]
            reached = (before[:, None] + time[groups.classes[g]]).min(axis=0)
            done[cell] = np.minimum(done[cell], reached)
    size = cells.sum(axis=1)
    interval = done[:, -1] + (size - 1) * row.hop + row.ret
    return bool(np.any(interval[size > 1] <= row.longest))


def _works_by_subsets(table: CostTable, item: SubsetRow, k: int) -> bool:
    """Return whether some ordered subset executes all layers within ``row.longest`` ticks at this K."""
    row = item.row
    busy = row.longest // k
    time, alone = stage_ticks(table, row.row, k * row.batch_size, busy)
    if int(alone.min()) < UNREACHABLE:
        return True
    hop = np.where(item.occupancy <= busy, item.hop, UNREACHABLE)
    back = np.where(item.ret_occupancy <= busy, item.ret, UNREACHABLE)
    usable = usable_subsets(table)
    num, layers = table.num_devices, table.num_layers
    for first in range(num):
        # done[mask, last, l]: least time of the first l layers on exactly the mask's devices, starting at `first`.
        done = np.full((1 << num, num, layers + 1), UNREACHABLE, np.int64)
        done[1 << first, first] = time[table.device_class[first], 0]
        for mask in range(1 << num):
            if not mask >> first & 1 or not usable[mask] or int(done[mask].min()) >= row.longest:
                continue
            for new in range(num):
                if mask >> new & 1 or not usable[mask | 1 << new]:
                    continue
                arrived = (done[mask] + hop[:, new, None]).min(axis=0)
                reached = (arrived[:, None] + time[table.device_class[new]]).min(axis=0)
                done[mask | 1 << new, new] = np.minimum(reached, UNREACHABLE)
        total = done[:, :, layers] + back[:, first]
        total[1 << first] = UNREACHABLE
        if int(total.min()) <= row.longest:
            return True
    return False
