"""From patterns to devices when links differ: which devices, in which order, and a local search after it."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from slob_opt.cost.table import TICK_S, FloatArray
from slob_opt.planning.flat_kernel import FlatBatch
from slob_opt.planning.instance import PlacementInstance
from slob_opt.planning.pattern_search import PatternSearch
from slob_opt.planning.split_order import layers_in_order
from slob_opt.problem.placement import Pipeline, Stage
from slob_opt.slob.moves import neighbours

MAX_STEPS = 40
"""Improvement steps of a local search."""

MAX_STARTS = 12
"""Devices from which the nearest-neighbour construction starts."""

MAX_SPARE = 24
"""Devices that a step tries to put in."""

NO_LINK = 2.0**45
"""Ticks of a hop between devices that can't work together (nine hours)."""

LONGEST = 2.0**50
"""Ticks that no interval of interest exceeds (twelve days)."""

IndexArray = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Route:
    """A pipeline under construction: devices in order, shape and interval in ticks."""

    order: tuple[int, ...]
    shape: int
    interval: float

    def rate(self, search: PatternSearch) -> float:
        """Output tokens/s."""
        return float(search.shapes.in_flight[self.shape] / (self.interval * TICK_S))


def _reordered(order: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Return orders of the same devices: all of up to four, else rotations there and back."""
    if len(order) <= 4:
        return list(itertools.permutations(order))
    turns = [order[i:] + order[:i] for i in range(len(order))]
    return turns + [turn[::-1] for turn in turns]


def _with_all_ends(orders: IndexArray) -> IndexArray:
    """Return orders (X, length) with each pair of their devices moved to the ends in turn."""
    size = orders.shape[1]
    ways = []
    for first in range(size):
        for last in range(size):
            if first != last:
                middle = [i for i in range(size) if i not in (first, last)]
                ways.append(orders[:, [first, *middle, last]])
    return np.concatenate(ways) if ways else orders[:0]


class Router:
    """Hop matrices of an instance and the value of ordered devices."""

    def __init__(self, instance: PlacementInstance, search: PatternSearch) -> None:
        self.instance, self.search, self.table = instance, search, instance.table
        self.num_devices = self.table.num_devices
        self.group_of = np.zeros(self.num_devices, np.int64)
        for g, devices in enumerate(search.groups.devices):
            self.group_of[list(devices)] = g
        self.cards = self.table.device_cards
        self.clash = self._clash()
        self.parts = self._parts()
        self._matrices: dict[int, tuple[FloatArray, FloatArray, FloatArray, FloatArray]] = {}

    def _clash(self) -> NDArray[np.bool_]:
        """(D, D) bool: pairs of devices that share a card; a device shares its cards with itself."""
        if self.table.has_exclusive_devices:
            return np.eye(self.num_devices, dtype=bool)
        held = np.zeros((self.num_devices, self.table.num_cards), np.float32)
        for d, cards in enumerate(self.cards):
            held[d, list(cards)] = 1
        return np.asarray(held @ held.T > 0)

    def _parts(self) -> dict[int, tuple[tuple[int, ...], ...]]:
        """Smaller devices that can take the place of a device of several cards: all of one size, or one of them."""
        found: dict[int, tuple[tuple[int, ...], ...]] = {}
        for d, cards in enumerate(self.cards):
            if len(cards) == 1:
                continue
            inside = [int(e) for e in np.flatnonzero(self.clash[d]) if e != d and set(self.cards[e]) < set(cards)]
            sizes = sorted({len(self.cards[e]) for e in inside})
            sets = [tuple(e for e in inside if len(self.cards[e]) == size) for size in sizes]
            found[d] = (*sets, *((s[0],) for s in sets if len(s) > 1))
        return found

    def matrices(self, row: int) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
        """Return (D, D) ticks of hop, return, occupancy and return occupancy in one row."""
        if row not in self._matrices:
            table = self.table
            index, none = np.maximum(table.link_class, 0), table.link_class < 0
            if table.hop_s.shape[1] == 0:
                zero = np.where(none, NO_LINK, 0.0)
                self._matrices[row] = (zero, zero, np.zeros_like(zero), np.zeros_like(zero))
            else:
                hop, ret, busy, busy_back = (
                    values[row][index] / TICK_S
                    for values in (table.hop_s, table.return_s, table.occupancy_s, table.return_occupancy_s)
                )
                self._matrices[row] = (np.where(none, NO_LINK, hop), np.where(none, NO_LINK, ret), busy, busy_back)
        return self._matrices[row]

    def lengths(self, orders: IndexArray, row: int) -> tuple[FloatArray, FloatArray]:
        """Return (X,) ticks of hops with return, and of the busiest link, of orders (X, length)."""
        if orders.shape[1] < 2:
            return np.zeros(orders.shape[0]), np.zeros(orders.shape[0])
        hop, ret, busy, busy_back = self.matrices(row)
        before, after = orders[:, :-1], orders[:, 1:]
        first, last = orders[:, 0], orders[:, -1]
        total = hop[before, after].sum(axis=1) + ret[last, first]
        return total, np.maximum(busy[before, after].max(axis=1), busy_back[last, first])

    def length(self, order: tuple[int, ...], row: int) -> tuple[float, float]:
        """Return the sum of hops with return and the largest link occupancy of one order, ticks."""
        total, busiest = self.lengths(np.array([order], np.int64), row)
        return float(total[0]), float(busiest[0])

    def intervals(self, parts: Sequence[tuple[IndexArray, IndexArray, FloatArray]]) -> list[FloatArray]:
        """Return the shortest intervals in ticks, infinite where the upper limit isn't reached.

        Parameters
        ----------
        parts
            Triples of orders (X, length), shapes (X,) and upper limits (X,) in ticks.
        """
        groups = self.search.groups.num_groups
        result = [np.full(orders.shape[0], np.inf) for orders, _, _ in parts]
        several: list[int] = []
        for i, (orders, shape, upper) in enumerate(parts):
            if orders.shape[1] == 1:
                alone = self.search.alone[shape, self.group_of[orders[:, 0]]]
                result[i] = np.where(alone <= upper, alone, np.inf)
            elif orders.shape[0] > 0 and orders.shape[1] <= self.search.num_layers:
                several.append(i)
        if not several:
            return result
        counts, route, busy = [], [], []
        for i in several:
            orders, shape, _ = parts[i]
            member = self.group_of[orders]
            counts.append(np.stack([(member == g).sum(axis=1) for g in range(groups)], axis=1))
            total, most = np.zeros(shape.size), np.zeros(shape.size)
            rows = self.search.shapes.row[shape]
            for row in np.unique(rows):
                total[rows == row], most[rows == row] = self.lengths(orders[rows == row], int(row))
            route.append(total)
            busy.append(most)
        first, last = (np.concatenate([self.group_of[parts[i][0][:, end]] for i in several]) for end in (0, -1))
        shapes, upper = (np.concatenate([parts[i][j] for i in several]) for j in (1, 2))
        batch = FlatBatch(
            self.search.shapes, np.concatenate(counts), shapes, first, last, self.search.num_layers,
            np.concatenate(route), np.concatenate(busy),
        )  # fmt: skip
        found = batch.shortest(upper)
        ends = np.cumsum([parts[i][0].shape[0] for i in several])
        for i, values in zip(several, np.split(found, ends[:-1]), strict=True):
            result[i] = values
        return result

    def improve(self, routes: Sequence[Route], usable: Sequence[NDArray[np.bool_]]) -> list[Route]:
        """Return routes improved, each on its own, by steepest descent over orders, exchanges, additions and removals.

        Parameters
        ----------
        usable
            For each route a (D,) bool mask of the devices that may be in it.
        """
        found = list(routes)
        active = list(range(len(found)))
        for _ in range(MAX_STEPS):
            by_length: dict[int, list[tuple[int, IndexArray]]] = {}
            for r in active:
                spare = self._spare(found[r].order, usable[r])
                for orders in neighbours(found[r].order, spare, self.clash, self.parts, self.search.num_layers):
                    by_length.setdefault(orders.shape[1], []).append((r, orders))
            batches = []
            for items in by_length.values():
                owner = np.repeat([r for r, _ in items], [len(orders) for _, orders in items])
                shape = np.array([found[r].shape for r, _ in items])
                upper = np.array([found[r].interval for r, _ in items]) - 1
                sizes = [len(orders) for _, orders in items]
                orders = np.concatenate([orders for _, orders in items])
                batches.append((owner, orders, np.repeat(shape, sizes), np.repeat(upper, sizes)))
            improved: dict[int, Route] = {}
            values = self.intervals([batch[1:] for batch in batches])
            for (owner, orders, _, _), ticks in zip(batches, values, strict=True):
                for x in np.flatnonzero(np.isfinite(ticks)).tolist():
                    r = int(owner[x])
                    if ticks[x] < improved.get(r, found[r]).interval:
                        improved[r] = Route(tuple(orders[x].tolist()), found[r].shape, float(ticks[x]))
            if not improved:
                break
            for r, route in improved.items():
                found[r] = route
            active = sorted(improved)
        return found

    def _spare(self, order: tuple[int, ...], usable: NDArray[np.bool_]) -> list[int]:
        """Devices that could be put in, at most two of each group and node."""
        own = set(order)
        seen: dict[tuple[int, int], int] = {}
        spare = []
        for device in np.flatnonzero(usable).tolist():
            if device in own:
                continue
            key = (int(self.group_of[device]), int(self.table.device_node[device]))
            seen[key] = seen.get(key, 0) + 1
            if seen[key] <= 2:
                spare.append(device)
        return spare[:MAX_SPARE]

    def reshape(self, route: Route) -> Route:
        """Return the best of a few orders of the same devices in all shapes: all orders of four, else all rotations."""
        s = self.search.shapes
        if s.row.size == 1:
            return route
        rate = route.rate(self.search)
        limit = np.minimum(np.ceil(s.in_flight / (rate * TICK_S)) - 1, np.minimum(s.max_interval, LONGEST))
        orders = np.array(_reordered(route.order), np.int64)
        shape = np.repeat(np.arange(s.row.size), orders.shape[0])
        found = self.intervals([(np.tile(orders, (s.row.size, 1)), shape, limit[shape])])[0]
        rates = s.in_flight[shape] / (found * TICK_S)
        best = int(np.argmax(rates))
        if rates[best] <= rate:
            return route
        order = tuple(orders[best % orders.shape[0]].tolist())
        return Route(order, int(shape[best]), float(found[best]))

    def build(self, counts: IndexArray, row: int, usable: NDArray[np.bool_]) -> IndexArray:
        """Return (S, length) devices for a pattern, from S starts: always the nearest usable device still needed."""
        hop = self.matrices(row)[0]
        wanted = np.flatnonzero(usable & (counts[self.group_of] > 0))
        starts = wanted[:: max(1, -(-wanted.size // MAX_STARTS))]
        if starts.size == 0:
            return np.zeros((0, int(counts.sum())), np.int64)
        line = np.arange(starts.size)
        left = np.tile(counts, (starts.size, 1))
        open_ = np.tile(usable, (starts.size, 1))
        orders, complete, at = [starts], np.ones(starts.size, dtype=bool), starts
        left[line, self.group_of[at]] -= 1
        open_ &= ~self.clash[at]
        for _ in range(int(counts.sum()) - 1):
            options = np.where(open_ & (left[:, self.group_of] > 0), hop[at], np.inf)
            at = options.argmin(axis=1)
            complete &= np.isfinite(options[line, at])
            orders.append(at)
            left[line, self.group_of[at]] -= 1
            open_ &= ~self.clash[at]
        return np.asarray(np.stack(orders, axis=1)[complete], dtype=np.int64)

    def built(self, wanted: Sequence[tuple[IndexArray, int]], usable: NDArray[np.bool_]) -> list[Route | None]:
        """Return the best built route of each (pattern, shape); ``None`` where devices don't suffice.

        Where no order works, all pairs of ends are tried: embedding or head may fit on few of the devices only. A route
        that is over the cap counts as very long, not as none: the local search may bring it below.
        """
        ceilings = np.minimum(self.search.shapes.max_interval, LONGEST)
        parts = []
        for counts, shape in wanted:
            orders = self.build(counts, int(self.search.shapes.row[shape]), usable)
            size = orders.shape[0]
            parts.append((orders, np.full(size, shape), np.full(size, ceilings[shape])))
        found: list[Route | None] = []
        for (built, _, _), (_, shape), ticks in zip(parts, wanted, self.intervals(parts), strict=True):
            orders = built
            if not ticks.size:
                found.append(None)
                continue
            best, interval = int(np.argmin(ticks)), float(ticks.min())
            if not np.isfinite(interval):
                turned = _with_all_ends(orders)
                size = turned.shape[0]
                again = self.intervals([(turned, np.full(size, shape), np.full(size, ceilings[shape]))])[0]
                if np.isfinite(again.min(initial=np.inf)):
                    orders, best, interval = turned, int(np.argmin(again)), float(again.min())
            if not np.isfinite(interval):
                best = int(np.argmin(self.lengths(orders, int(self.search.shapes.row[shape]))[0]))
                interval = float(ceilings[shape]) + 1
            found.append(Route(tuple(orders[best].tolist()), shape, interval))
        return found

    def pipeline(self, route: Route) -> Pipeline:
        """Return the pipeline of a route."""
        _row, k, b = self.search.shape_list[route.shape]
        groups = tuple(int(self.group_of[d]) for d in route.order)
        costs = self.search.shape_costs(route.shape)
        layers = layers_in_order(costs, groups, self.search.num_layers, route.interval)
        stages, start = [], 0
        for device, count in zip(route.order, layers, strict=True):
            stages.append(Stage(self.cards[device], start, start + count))
            start += count
        return Pipeline(tuple(stages), k, b)
