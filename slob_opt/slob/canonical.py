"""The same instance with its devices in an order that doesn't depend on how they were numbered.

A heuristic breaks ties by index. Solving in a canonical order makes its value independent of the numbering: devices are
sorted by class, then told apart by their links to devices already told apart (colour refinement), and what is still
alike is taken apart one device at a time.

References
----------
McKay, Piperno 2014, Practical graph isomorphism II, section 2 (individualisation and refinement). Deviation: only one
branch is followed, which is enough where alike devices are exchangeable, as equal cards of equal nodes are.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from slob_opt.cost.table import CostTable
from slob_opt.planning.instance import PlacementInstance

MAX_DEVICES = 64
"""Most devices that are taken apart one by one; above it, one refinement and the given order. Chosen: 20 ms."""

IndexArray = NDArray[np.int64]


def canonical(instance: PlacementInstance) -> PlacementInstance:
    """Return the instance with planning devices in canonical order; cards keep their numbers.

    Examples
    --------
    >>> from slob_opt.cost.direct import DirectClass, direct_table
    >>> from slob_opt.planning.objectives import IntervalObjective
    >>> table = direct_table([DirectClass("a", 1, 9, 1.0), DirectClass("b", 2, 9, 2.0)], 3, layer_bytes=1)
    >>> sorted(canonical(PlacementInstance(table, IntervalObjective(1))).table.device_names)
    ['a-0', 'b-0', 'b-1']
    """
    table = instance.table
    order = canonical_order(table)
    if np.array_equal(order, np.arange(order.size)):
        return instance
    changed = replace(
        table,
        device_names=tuple(table.device_names[i] for i in order),
        device_cards=tuple(table.device_cards[i] for i in order),
        device_node=table.device_node[order],
        device_class=table.device_class[order],
        link_class=table.link_class[np.ix_(order, order)],
    )
    return replace(instance, table=changed)


def canonical_order(table: CostTable) -> IndexArray:
    """Return (D,) int, the devices in canonical order."""
    colour = _class_ranks(table)[table.device_class]
    if table.has_uniform_links and table.has_exclusive_devices:
        return np.argsort(colour, kind="stable")
    pairs = _pair_codes(table)
    colour = _refined(colour, pairs)
    size = colour.size
    while size <= MAX_DEVICES:
        members = np.bincount(colour, minlength=size)
        alike = np.flatnonzero(members > 1)
        if alike.size == 0:
            break
        first = int(np.flatnonzero(colour == alike[0])[0])
        colour = colour * 2 + 1
        colour[first] -= 1
        colour = _refined(np.unique(colour, return_inverse=True)[1].astype(np.int64), pairs)
    return np.lexsort((np.arange(size), colour))


def _ranks(columns: list[NDArray[np.generic]]) -> IndexArray:
    """Return (N,) int: ranks of N things by the bytes of their numbers; each block is (N, anything).

    The order means nothing, but it is the same whatever the things are numbered.
    """
    rows = np.concatenate([np.reshape(c, (c.shape[0], -1)).astype(np.float64) for c in columns], axis=1)
    keys = [row.tobytes() for row in np.ascontiguousarray(rows)]
    rank = {key: i for i, key in enumerate(sorted(set(keys)))}
    return np.array([rank[key] for key in keys], np.int64)


def _class_ranks(table: CostTable) -> IndexArray:
    """Return (C,) int: device classes ranked by what they cost and hold, not by the order they were met in."""
    by_row = (table.fixed_s, table.embed_s, table.head_s, table.layer_s, table.workspace_bytes, table.head_bytes)
    by_class = (table.capacity_bytes, table.embed_bytes, table.tied_saving_bytes, table.weight_bytes, table.kv_bytes)
    return _ranks([*(np.swapaxes(part, 0, 1) for part in by_row), *by_class])


def _link_ranks(table: CostTable) -> IndexArray:
    """Return (number of link classes,) int: link classes ranked by their times."""
    return _ranks([part.T for part in (table.hop_s, table.occupancy_s, table.return_s, table.return_occupancy_s)])


def _pair_codes(table: CostTable) -> IndexArray:
    """Return (D, D) int: what a pair of devices has between them (link there and back, node in common)."""
    link = np.where(table.link_class >= 0, _link_ranks(table)[table.link_class] + 1, 0)
    base = int(link.max(initial=0)) + 1
    same_node = table.device_node[:, None] == table.device_node[None, :]
    codes = (link * base + link.T) * 2 + same_node
    return np.asarray(np.unique(codes, return_inverse=True)[1].reshape(codes.shape), dtype=np.int64)


def _refined(colour: IndexArray, pairs: IndexArray) -> IndexArray:
    """Return colours split by the colours of the devices at the other end of each kind of pair, until stable."""
    kinds = int(pairs.max(initial=0)) + 1
    while True:
        count = int(colour.max(initial=0)) + 1
        if count == colour.size:
            return colour
        around = np.sort(colour[None, :] * kinds + pairs, axis=1)
        rows = np.concatenate([colour[:, None], around], axis=1)
        order = np.lexsort(rows.T[::-1])
        ranked = rows[order]
        is_new = np.any(ranked[1:] != ranked[:-1], axis=1)
        finer = np.zeros_like(colour)
        finer[order[1:]] = np.cumsum(is_new)
        if int(finer.max()) + 1 == count:
            return finer
        colour = finer
