"""Re-checks bounds on small sets of devices with links of any kind: least hop sums by subset, then the fill test.

References
----------
Held & Karp 1962, "A dynamic programming approach to sequencing problems", for the least sum of hops over all orders.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from slob_opt.cost.table import CostTable, FloatArray, IntArray
from slob_opt.planning.check_kernel import CapTables, cap_tables, fewest_micro_batches, lone_stage
from slob_opt.planning.instance import PlacementInstance
from slob_opt.planning.ticks import (
    TICKS_PER_S,
    UNREACHABLE,
    BoolArray,
    GroupIndex,
    RowTicks,
    group_index,
    row_ticks,
    ticks_below,
    whole_ticks,
)
from slob_opt.planning.verdict import RELATIVE_TOLERANCE, Verdict, claimed, failed, refuted, verified
from slob_opt.planning.witness import SubsetWitness

MAX_DEVICES = 12
"""Most devices whose subsets are walked; 3^12 pairs and 2^12 x 12 x 12 path sums fit in memory."""


def usable_subsets(table: CostTable) -> BoolArray:
    """Return (2^D,) bool, whether the devices of a mask share no card."""
    num = table.num_devices
    usable = np.ones(1 << num, np.bool_)
    masks = np.arange(1 << num)
    cards = [set(c) for c in table.device_cards]
    for a in range(num):
        for b in range(a + 1, num):
            if cards[a] & cards[b]:
                usable &= ((masks >> a) & (masks >> b) & 1) == 0
    return usable


def least_path_sums(hops: IntArray) -> IntArray:
    """Return (2^D, D, D) int64 ticks: least sum of hops over all orders of a mask's devices, by first and last device.

    Parameters
    ----------
    hops
        (D, D) int64 ticks from row to column; at least `UNREACHABLE` where a hop is not allowed.
    """
    num = len(hops)
    sums = np.full((1 << num, num, num), UNREACHABLE, np.int64)
    for device in range(num):
        sums[1 << device, device, device] = 0
    masks = np.arange(1 << num)
    size = np.bitwise_count(masks)
    for members in range(1, num):
        layer = masks[size == members]
        for new in range(num):
            before = layer[(layer >> new) & 1 == 0]
            if before.size:
                reached = (sums[before] + hops[None, None, :, new]).min(axis=2)
                sums[before | (1 << new), :, new] = np.minimum(reached, UNREACHABLE)
    return sums


@dataclass(slots=True)
class SubsetRow:
    """One iteration shape with its links.

    Attributes
    ----------
    row
        Times and bytes by group; its `hop`, `ret` and `occupancy` are zero, paths bring their own.
    caps
        Cap tables.
    hop, ret, occupancy, ret_occupancy
        (D, D) int64 ticks; `UNREACHABLE` where devices can't work together.
    path_sums
        Path sums by the longest link occupancy that is allowed, ticks; filled on demand.
    """

    row: RowTicks
    caps: CapTables
    hop: IntArray
    ret: IntArray
    occupancy: IntArray
    ret_occupancy: IntArray
    path_sums: dict[int, IntArray] = field(default_factory=dict)

    def loops(self, limit: int) -> IntArray:
        """Return (2^D, D, D) int64 ticks: hops and hop back, over links that are busy for at most `limit` ticks."""
        busiest = np.concatenate([self.occupancy.ravel(), self.ret_occupancy.ravel()])
        level = int(np.max(busiest[busiest <= limit], initial=-1))
        if level not in self.path_sums:
            allowed = np.where(self.occupancy <= level, self.hop, UNREACHABLE)
            back = np.where(self.ret_occupancy <= level, self.ret, UNREACHABLE)
            self.path_sums[level] = np.minimum(least_path_sums(allowed) + back.T[None], UNREACHABLE)
        return self.path_sums[level]


def subset_rows(instance: PlacementInstance, groups: GroupIndex, *, longest: int | None = None) -> list[SubsetRow]:
    """Return the iteration shapes of an instance with their links."""
    table = instance.table
    found = []
    for row in row_ticks(instance, groups, longest=longest):
        matrices = []
        for values in (table.hop_s, table.return_s, table.occupancy_s, table.return_occupancy_s):
            ticks = whole_ticks(values[row.row])
            known = ticks[np.maximum(table.link_class, 0)] if ticks.size else np.zeros(table.link_class.shape, np.int64)
            matrices.append(np.where(table.link_class >= 0, known, UNREACHABLE))
        hop, ret, occupancy, ret_occupancy = matrices
        linkless = replace(row, hop=0, ret=0, occupancy=0)
        found.append(SubsetRow(linkless, cap_tables(row), hop, ret, occupancy, ret_occupancy))
    return found


def _counts_of_masks(groups: GroupIndex) -> IntArray:
    """Return (2^D, G) int64, devices of each group in a mask."""
    num = len(groups.group_of_device)
    bits = (np.arange(1 << num)[:, None] >> np.arange(num)) & 1
    member = np.zeros((num, groups.num_groups), np.int64)
    member[np.arange(num), groups.group_of_device] = 1
    return np.asarray(bits @ member, dtype=np.int64)


def _pairs(num_devices: int) -> Iterator[tuple[int, int, IntArray]]:
    """Yield (first, last, masks that hold both)."""
    masks = np.arange(1 << num_devices)
    for first in range(num_devices):
        for last in range(num_devices):
            if first != last:
                yield first, last, masks[((masks >> first) & (masks >> last) & 1) == 1]


def is_exact_by_subsets(instance: PlacementInstance) -> bool:
    """Return whether subset, order and counts of layers fix a pipeline's value: no network cards, equal layers."""
    return instance.table.has_identical_layers and not bool(np.any(np.isfinite(instance.table.nic_bytes_per_s)))


def _names(table: CostTable, mask: int) -> str:
    return ", ".join(name for d, name in enumerate(table.device_names) if mask >> d & 1)


def check_subset_threshold(instance: PlacementInstance, bound_s: float | None) -> Verdict:
    """Return whether no ordered subset of devices has an interval below `bound_s`; ``None``: none works at all."""
    table = instance.table
    if table.num_devices > MAX_DEVICES:
        return claimed(f"{table.num_devices} devices are more than the check walks ({MAX_DEVICES})")
    if bound_s is not None and instance.is_throughput:
        return claimed("a threshold on the interval says nothing about summed rates")
    groups = group_index(table)
    usable = usable_subsets(table)
    counts = _counts_of_masks(groups)
    rows = subset_rows(instance, groups, longest=None if bound_s is None else ticks_below(bound_s))
    for item in rows:
        micro_batches = range(1, item.row.max_micro_batches + 1)
        for k in micro_batches if instance.is_throughput else (item.row.max_micro_batches,):
            found = _subset_at_fixed_k(item, groups, counts, usable, k)
            if found is not None:
                reason = f"{_names(table, found)} with K = {k} stays below the bound"
                return failed(reason, is_exact=is_exact_by_subsets(instance))
    return verified(f"none of {(1 << table.num_devices) - 1} subsets stays below the bound")


def _subset_at_fixed_k(item: SubsetRow, groups: GroupIndex, counts: IntArray, usable: BoolArray, k: int) -> int | None:
    """Return the mask of a pipeline within the row's longest interval at this K; ``None`` when there is none."""
    row = replace(item.row, max_micro_batches=k)
    for device, group in enumerate(groups.group_of_device):
        if any(found == k for found, _ in lone_stage(row, int(group))):
            return 1 << device
    loops = item.loops(row.longest // k)
    for first, last, masks in _pairs(len(groups.group_of_device)):
        hops = loops[masks, first, last]
        fits = usable[masks] & (hops < UNREACHABLE)
        kept = masks[fits]
        ends = int(groups.group_of_device[first]), int(groups.group_of_device[last])
        limits = np.full(kept.size, float(UNREACHABLE))
        works = fewest_micro_batches(row, item.caps, counts[kept], hops[fits], limits, ends=ends, at_least=k)
        if np.any(works):
            return int(kept[np.flatnonzero(works)[0]])
    return None


def check_subset_witness(instance: PlacementInstance, witness: SubsetWitness, rate: float) -> Verdict:
    """Return whether superadditive worths of subsets prove that no placement makes more than `rate` tokens/s.

    Checked: worths are finite and at least zero, those of two subsets without a common card add up to no more than that
    of their union, none exceeds that of all devices, and no pipeline on exactly a subset beats its worth.
    """
    table = instance.table
    if not instance.is_throughput:
        return claimed("worths of subsets bound rates, and this objective is an interval")
    if table.num_devices > MAX_DEVICES:
        return claimed(f"{table.num_devices} devices are more than the check walks ({MAX_DEVICES})")
    value = np.asarray(witness.value, dtype=np.float64)
    if value.shape != (1 << table.num_devices,) or not np.all(np.isfinite(value)) or np.any(value < 0):
        return refuted(f"the witness needs {1 << table.num_devices} finite worths of at least zero")
    if rate < value[-1] * (1 - RELATIVE_TOLERANCE):
        return refuted(f"the bound is {rate:.9g} tokens/s, the worth of all devices {value[-1]:.9g}")
    usable = usable_subsets(table)
    if value.max() > value[-1] * (1 + RELATIVE_TOLERANCE):
        return refuted(f"devices {_names(table, int(value.argmax()))} are worth more than all devices")
    pair = _not_superadditive(value, usable)
    if pair is not None:
        return refuted(f"{_names(table, pair[0])} and {_names(table, pair[1])} are worth more apart than together")
    groups = group_index(table)
    counts = _counts_of_masks(groups)
    for item in subset_rows(instance, groups):
        found = _mask_above(item, groups, counts, usable, value)
        if found is not None:
            reason = f"a pipeline on {_names(table, found)} beats the worth of that subset"
            return failed(reason, is_exact=is_exact_by_subsets(instance))
    return verified(f"{len(value) - 1} subsets are superadditive and beaten by no pipeline")


def _not_superadditive(value: FloatArray, usable: BoolArray) -> tuple[int, int] | None:
    """Return two card-disjoint masks that are worth more apart; ``None`` when there are none. Walks 3^D pairs."""
    left = np.zeros(1, np.int64)
    right = np.zeros(1, np.int64)
    for device in range(int(np.log2(len(value)))):
        bit = 1 << device
        left, right = np.concatenate([left, left | bit, left]), np.concatenate([right, right, right | bit])
    together = left | right
    relevant = usable[together] & (left < right) & (left > 0)
    left, right, together = left[relevant], right[relevant], together[relevant]
    bad = np.flatnonzero(value[left] + value[right] > value[together] * (1 + RELATIVE_TOLERANCE))
    return (int(left[bad[0]]), int(right[bad[0]])) if bad.size else None


def _mask_above(
    item: SubsetRow, groups: GroupIndex, counts: IntArray, usable: BoolArray, value: FloatArray
) -> int | None:
    """Return a mask on which some pipeline of this shape beats the mask's worth; ``None`` when there is none."""
    row = item.row
    positive = np.maximum(value, 1e-300) * (1 + RELATIVE_TOLERANCE)
    seconds = np.where(value > 0, row.batch_size / positive, np.inf)
    limits = np.minimum(seconds * TICKS_PER_S, float(row.longest + 1))
    for device, group in enumerate(groups.group_of_device):
        if any(interval < k * limits[1 << device] for k, interval in lone_stage(row, int(group))):
            return 1 << device
    freest = item.loops(row.longest)
    for first, last, masks in _pairs(len(groups.group_of_device)):
        ends = int(groups.group_of_device[first]), int(groups.group_of_device[last])
        hops = freest[masks, first, last]
        fits = usable[masks] & (hops < UNREACHABLE)
        kept = masks[fits]
        # First without the limit on link occupancy, which leaves few subsets; then each K with the links it may use.
        hopeful = fewest_micro_batches(row, item.caps, counts[kept], hops[fits], limits[kept], ends=ends)
        for mask, at_least in zip(kept[hopeful > 0], hopeful[hopeful > 0], strict=True):
            for k in range(int(at_least), row.max_micro_batches + 1):
                busy = min(int(np.ceil(limits[mask])) - 1, row.longest // k)
                hop = item.loops(busy)[mask, first, last]
                one = slice(mask, mask + 1)
                fixed_k = replace(row, max_micro_batches=k)
                if hop < UNREACHABLE and np.any(
                    fewest_micro_batches(
                        fixed_k, item.caps, counts[one], np.array([hop]), limits[one], ends=ends, at_least=k
                    )
                ):
                    return int(mask)
    return None
