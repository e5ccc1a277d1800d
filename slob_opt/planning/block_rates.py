"""Best rate of sets of blocks (two-level links), exact in ticks; see :mod:`slob_opt.planning.node_blocks`."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from slob_opt.cost.table import TICK_S, FloatArray, IntArray
from slob_opt.planning.flat_kernel import FlatBatch, ShapeArrays, shape_arrays
from slob_opt.planning.groups import Groups
from slob_opt.planning.instance import PlacementInstance
from slob_opt.planning.node_blocks import BlockPatterns, BlockStructure

CHUNK = 1 << 14

SPLIT = -2
"""First and last stage are on different nodes, so the hop back goes between nodes; else the number of their kind."""


@dataclass(slots=True)
class BlockRates:
    """Best known rate of each pattern and how it is reached.

    Attributes
    ----------
    rate
        (P,) tokens/s; where nothing beat the floor it is the floor.
    shape, first, last, home
        (P,) int: index into the instance's shapes, groups of the first and the last stage, and the kind of the node
        that holds both (or :data:`SPLIT`); -1 where nothing beat the floor.
    interval
        (P,) float64, ticks.
    """

    rate: FloatArray
    shape: IntArray
    first: IntArray
    last: IntArray
    home: IntArray
    interval: FloatArray

    def select(self, index: IntArray) -> BlockRates:
        """Return some of the entries."""
        return BlockRates(
            self.rate[index], self.shape[index], self.first[index], self.last[index], self.home[index],
            self.interval[index],
        )  # fmt: skip

    def join(self, other: BlockRates) -> BlockRates:
        """Return the entries of both."""
        return BlockRates(
            np.concatenate([self.rate, other.rate]),
            np.concatenate([self.shape, other.shape]),
            np.concatenate([self.first, other.first]),
            np.concatenate([self.last, other.last]),
            np.concatenate([self.home, other.home]),
            np.concatenate([self.interval, other.interval]),
        )


@dataclass(frozen=True, slots=True)
class _Hops:
    """Times of one link class by shape, (S,) ticks: forward hop, occupancy, hop back, its occupancy."""

    hop: FloatArray
    busy: FloatArray
    ret: FloatArray
    ret_busy: FloatArray


class BlockKernel:
    """Rates of all block patterns of one instance.

    Parameters
    ----------
    instance, structure, patterns
        The instance and what :mod:`slob_opt.planning.node_blocks` says of it.
    """

    def __init__(self, instance: PlacementInstance, structure: BlockStructure, patterns: BlockPatterns) -> None:
        self.instance = instance
        self.structure = structure
        self.patterns = patterns
        self.num_layers = instance.table.num_layers
        shapes = instance.shapes()
        self.order = sorted(range(len(shapes)), key=lambda i: (-shapes[i][1] * shapes[i][2], shapes[i][0]))
        self.shapes: ShapeArrays = shape_arrays(instance, _as_groups(structure), shapes)
        members = np.zeros((len(patterns.blocks), structure.num_groups), np.int64)
        for b, (kind, counts) in enumerate(patterns.blocks):
            members[b, list(structure.kinds[kind].groups)] = counts
        self.members = members
        kinds = np.array([kind for kind, _ in patterns.blocks])
        used = patterns.used.astype(np.int64)
        self.counts = used @ members
        self.by_kind = np.stack([used[:, kinds == k].sum(axis=1) for k in range(len(structure.kinds))], axis=1)
        self.devices_by_kind = np.stack(
            [self.counts[:, list(kind.groups)].sum(axis=1) for kind in structure.kinds], axis=1
        )
        self.inner = [self._hops(kind.link) for kind in structure.kinds]
        self.inter = self._hops(structure.inter_link)

    def _hops(self, link: int) -> _Hops:
        table, rows = self.instance.table, self.shapes.row
        parts = (table.hop_s, table.occupancy_s, table.return_s, table.return_occupancy_s)
        if link < 0:
            return _Hops(*(np.zeros(rows.size) for _ in parts))
        return _Hops(*(np.asarray(part[rows, link] / TICK_S) for part in parts))

    def rates(self, floor: FloatArray, index: IntArray | None = None) -> BlockRates:
        """Return the best rate of patterns as far as it is above their floor.

        Parameters
        ----------
        floor
            (P,) tokens/s.
        index
            (P,) patterns to look at; ``None`` takes all.
        """
        index = np.arange(self.counts.shape[0]) if index is None else index
        shape, first, last, home = (np.full(index.size, -1, np.int64) for _ in range(4))
        table = BlockRates(np.array(floor, dtype=np.float64), shape, first, last, home, np.full(index.size, np.inf))
        for start in range(0, index.size, CHUNK):
            at = np.arange(start, min(start + CHUNK, index.size))
            self._raise_chunk(table, at, index[at])
        return table

    def _raise_chunk(self, table: BlockRates, at: IntArray, index: IntArray) -> None:
        """Raise rates of patterns `index`, entered at `at`, shape by shape."""
        lone = self.counts[index].sum(axis=1) == 1
        chains = np.flatnonzero(~lone)
        ends = list(self._ends(index[chains]))
        for s in self.order:
            self._raise_alone(table, at[lone], index[lone], s)
            if chains.size:
                self._raise_chains(table, at[chains], index[chains], s, ends)

    def _raise_alone(self, table: BlockRates, at: IntArray, index: IntArray, s: int) -> None:
        if at.size == 0:
            return
        costs, group = self.shapes, self.counts[index].argmax(axis=1)
        stage = costs.fixed[s] + self.num_layers * costs.layer[s] + costs.embed[s] + costs.head[s]
        ticks = costs.micro_batches[s] * stage
        ticks = np.where((costs.cap_both[s] >= self.num_layers) & (ticks <= costs.max_interval[s]), ticks, np.inf)
        self._enter(table, at, s, group, group, np.full(at.size, SPLIT), ticks[group])

    def _raise_chains(
        self, table: BlockRates, at: IntArray, index: IntArray, s: int, ends: list[tuple[int, int, int, IntArray]]
    ) -> None:
        limit = self._limit(table, at, s)
        least = np.full(at.size, np.inf)
        calm = np.full(at.size, np.inf)
        homes = {home for _, _, home, _ in ends}
        for home in homes:
            route, busy = self._route(index, s, home)
            least, calm = np.minimum(least, route), np.minimum(calm, busy)
        shape = np.full(at.size, s)
        room = self.counts[index] @ np.maximum(self.shapes.cap[s], 0)
        hopeful = np.flatnonzero(np.isfinite(least) & (room >= self.num_layers))
        if hopeful.size == 0:
            return
        batch = FlatBatch(
            self.shapes, self.counts[index[hopeful]], shape[hopeful], None, None, self.num_layers,
            least[hopeful], calm[hopeful],
        )  # fmt: skip
        is_hopeful = np.zeros(at.size, dtype=bool)
        is_hopeful[hopeful[batch.reaches(np.minimum(limit[hopeful], self._ceiling(index[hopeful], s)))]] = True
        for first, last, home, holds in ends:
            chosen = holds[is_hopeful[holds]]
            if chosen.size == 0:
                continue
            route, busy = self._route(index[chosen], s, home)
            size = chosen.size
            batch = FlatBatch(
                self.shapes, self.counts[index[chosen]], shape[chosen], np.full(size, first), np.full(size, last),
                self.num_layers, route, busy,
            )  # fmt: skip
            upper = np.minimum(self._limit(table, at[chosen], s), self._ceiling(index[chosen], s))
            ticks = batch.shortest(upper)
            ends_of = (np.full(size, first), np.full(size, last), np.full(size, home))
            self._enter(table, at[chosen], s, *ends_of, ticks)

    def _limit(self, table: BlockRates, at: IntArray, s: int) -> FloatArray:
        """Return (X,) ticks: the longest interval whose rate is above the one known."""
        with np.errstate(divide="ignore"):
            longest = np.ceil(self.shapes.in_flight[s] / (table.rate[at] * TICK_S)) - 1
        return np.asarray(np.minimum(longest, self.shapes.max_interval[s]))

    def _ceiling(self, index: IntArray, s: int) -> FloatArray:
        """Return (X,) ticks that no split of a pattern exceeds."""
        costs = self.shapes
        slowest = (costs.fixed[s] + self.num_layers * costs.layer[s] + costs.embed[s] + costs.head[s]).max()
        hops = [self.inter, *self.inner]
        hop = max(float(max(h.hop[s], h.ret[s])) for h in hops)
        busy = max(float(max(h.busy[s], h.ret_busy[s])) for h in hops)
        devices = self.counts[index].sum(axis=1)
        return np.asarray(costs.micro_batches[s] * max(slowest, busy) + devices * (slowest + hop))

    def _route(self, index: IntArray, s: int, home: int) -> tuple[FloatArray, FloatArray]:
        """Return hops with the hop back (infinite where `home` is impossible) and the largest occupancy, (X,) each."""
        blocks, devices = self.by_kind[index], self.devices_by_kind[index]
        nodes = blocks.sum(axis=1)
        inner = devices - blocks
        if home == SPLIT:
            route = (nodes - 1) * self.inter.hop[s] + self.inter.ret[s]
            busy = np.full(index.size, max(self.inter.busy[s], self.inter.ret_busy[s]))
            possible = nodes >= 2
        else:
            at_home = self.inner[home]
            route = np.where(nodes > 1, nodes * self.inter.hop[s] - at_home.hop[s], 0.0) + at_home.ret[s]
            busy = np.where(nodes > 1, self.inter.busy[s], 0.0)
            busy = np.maximum(busy, at_home.ret_busy[s])
            possible = inner[:, home] >= 1
        for k, hops in enumerate(self.inner):
            route = route + inner[:, k] * hops.hop[s]
            forward = inner[:, k] - ((home == k) & (nodes > 1))
            busy = np.maximum(busy, np.where(forward >= 1, hops.busy[s], 0.0))
        return np.where(possible, route, np.inf), busy

    def _ends(self, index: IntArray) -> list[tuple[int, int, int, IntArray]]:
        """Return (first group, last group, home, patterns that allow it); see :data:`SPLIT` for the home."""
        used = self.patterns.used[index].astype(np.int64)
        has = self.members > 0
        found: list[tuple[int, int, int, IntArray]] = []
        for first in range(self.structure.num_groups):
            for last in range(self.structure.num_groups):
                either, both = used @ has[:, first], used @ has[:, last]
                same = used @ (has[:, first] & has[:, last])
                # Two different blocks: not possible only if one single block holds all of both groups' devices.
                split = (either >= 1) & (both >= 1) & ~((either == 1) & (both == 1) & (same == 1))
                if np.any(split):
                    found.append((first, last, SPLIT, np.flatnonzero(split)))
                kind = int(self.structure.kind_of_group[first])
                if kind != int(self.structure.kind_of_group[last]):
                    continue
                enough = self.members[:, first] >= (2 if first == last else 1)
                together = used @ (enough & has[:, last]) >= 1
                if np.any(together):
                    found.append((first, last, kind, np.flatnonzero(together)))
        return found

    def _enter(
        self,
        table: BlockRates,
        at: IntArray,
        s: int,
        first: NDArray[np.int64],
        last: NDArray[np.int64],
        home: NDArray[np.int64],
        ticks: FloatArray,
    ) -> None:
        """Enter rates that beat the table's."""
        rate = self.shapes.in_flight[s] / (ticks * TICK_S)
        better = rate > table.rate[at]
        to = at[better]
        table.rate[to], table.interval[to], table.shape[to] = rate[better], ticks[better], s
        table.first[to], table.last[to], table.home[to] = first[better], last[better], home[better]


def _as_groups(structure: BlockStructure) -> Groups:
    """Return the groups of a structure in the form the flat kernel reads (cost classes only matter)."""
    size = structure.num_groups
    devices = tuple(tuple(d for node in nodes for d in node) for nodes in structure.devices)
    pools = np.arange(size)
    cards = np.array([len(d) for d in devices], np.int64)
    return Groups(devices, structure.classes, pools, np.ones(size, np.int64), cards, False)
