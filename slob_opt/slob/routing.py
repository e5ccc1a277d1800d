"""From patterns to devices when links differ: which devices, in which order, and a local search after it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from slob_opt.cost.table import TICK_S, CostTable, FloatArray
from slob_opt.planning.flat_kernel import FlatBatch
from slob_opt.planning.instance import PlacementInstance
from slob_opt.planning.pattern_kernel import single_interval
from slob_opt.planning.pattern_search import Candidates, PatternSearch
from slob_opt.planning.split_order import layers_in_order
from slob_opt.problem.placement import Pipeline, Placement, Stage

MAX_STEPS = 40
"""Improvement steps of one pipeline's local search."""


@dataclass(slots=True)
class Route:
    """A pipeline under construction: devices in order, shape and interval in ticks."""

    order: tuple[int, ...]
    shape: int
    interval: float

    def rate(self, search: PatternSearch) -> float:
        """Output tokens/s."""
        return float(search.shapes.in_flight[self.shape] / (self.interval * TICK_S))


class Router:
    """Hop matrices of an instance and the value of ordered devices."""

    def __init__(self, instance: PlacementInstance, search: PatternSearch) -> None:
        self.instance, self.search, self.table = instance, search, instance.table
        self.group_of = np.zeros(self.table.num_devices, np.int64)
        for g, devices in enumerate(search.groups.devices):
            self.group_of[list(devices)] = g
        self.cards = self.table.device_cards
        self._matrices: dict[int, tuple[FloatArray, FloatArray, FloatArray]] = {}
        self._nested: dict[int, tuple[list[list[float]], list[list[float]], list[list[float]]]] = {}

    def matrices(self, row: int) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return (D, D) ticks of hop, return and occupancy in one row."""
        if row not in self._matrices:
            table: CostTable = self.table
            index = np.maximum(table.link_class, 0)
            none = table.link_class < 0
            hop = np.where(none, 2.0**45, table.hop_s[row][index] / TICK_S)
            ret = np.where(none, 2.0**45, table.return_s[row][index] / TICK_S)
            busy = np.maximum(table.occupancy_s[row][index], 0.0) / TICK_S
            self._matrices[row] = (hop, ret, busy)
        return self._matrices[row]

    def length(self, order: tuple[int, ...], row: int) -> tuple[float, float]:
        """Return the sum of hops with return and the largest link occupancy, ticks."""
        if len(order) < 2:
            return 0.0, 0.0
        hop, ret, busy = self._lists(row)
        total, most, before = ret[order[-1]][order[0]], 0.0, order[0]
        for device in order[1:]:
            total += hop[before][device]
            most = max(most, busy[before][device])
            before = device
        return total, most

    def _lists(self, row: int) -> tuple[list[list[float]], list[list[float]], list[list[float]]]:
        """The matrices as nested lists, which are faster for single entries."""
        if row not in self._nested:
            hop, ret, busy = self.matrices(row)
            self._nested[row] = (hop.tolist(), ret.tolist(), busy.tolist())
        return self._nested[row]

    def intervals(self, orders: list[tuple[int, ...]], shape: NDArray[np.int64], upper: FloatArray) -> FloatArray:
        """Return (X,) ticks: shortest intervals of ordered devices, infinite where `upper` isn't reached."""
        result = np.full(len(orders), np.inf)
        several = np.array([i for i, o in enumerate(orders) if len(o) > 1], np.int64)
        for i, order in enumerate(orders):
            if len(order) == 1:
                alone = single_interval(self.search.shape_costs(int(shape[i])), self.search.num_layers)
                value = float(alone[self.group_of[order[0]]])
                result[i] = value if value <= upper[i] else np.inf
        if several.size == 0:
            return result
        counts = np.zeros((several.size, self.search.groups.num_groups), np.int64)
        route, busy = np.zeros(several.size), np.zeros(several.size)
        for x, i in enumerate(several):
            np.add.at(counts[x], self.group_of[list(orders[i])], 1)
            route[x], busy[x] = self.length(orders[i], int(self.search.shapes.row[shape[i]]))
        first = self.group_of[[orders[i][0] for i in several]]
        last = self.group_of[[orders[i][-1] for i in several]]
        batch = FlatBatch(self.search.shapes, counts, shape[several], first, last, self.search.num_layers, route, busy)
        result[several] = batch.shortest(upper[several])
        return result

    def improve(self, route: Route, free: set[int]) -> Route:
        """Return a route improved by steepest descent over orders, exchanges, additions and removals.

        `free` are devices that may be added; it is not modified.
        """
        for _ in range(MAX_STEPS):
            spare = self._spare(route.order, free)
            orders = list(dict.fromkeys(self._moves(route.order, spare)))
            shape = np.full(len(orders), route.shape)
            upper = np.full(len(orders), route.interval - 1)
            found = self.intervals(orders, shape, upper)
            best = int(np.argmin(found)) if found.size else 0
            if not found.size or not np.isfinite(found[best]):
                return route
            route = Route(orders[best], route.shape, float(found[best]))
        return route

    def _spare(self, order: tuple[int, ...], free: set[int]) -> list[int]:
        """Devices that could be added, at most two of each group and node."""
        seen: dict[tuple[int, int], int] = {}
        spare = []
        for device in sorted(free - set(order)):
            key = (int(self.group_of[device]), int(self.table.device_node[device]))
            seen[key] = seen.get(key, 0) + 1
            if seen[key] <= 2:
                spare.append(device)
        return spare[:24]

    def _moves(self, order: tuple[int, ...], spare: list[int]) -> list[tuple[int, ...]]:
        """Neighbours of an order."""
        size = len(order)
        moves = [order[:i] + order[i + 1 :] for i in range(size)] if size > 1 else []
        for device in spare:
            cards = set(self.cards[device])
            clash = [i for i in range(size) if cards & set(self.cards[order[i]])]
            if not clash:
                moves += [(*order[:i], device, *order[i:]) for i in range(size + 1)]
            if len(clash) <= 1:
                moves += [(*order[:i], device, *order[i + 1 :]) for i in (clash or range(size))]
        for i in range(size):
            for j in range(i + 1, size):
                swapped = list(order)
                swapped[i], swapped[j] = swapped[j], swapped[i]
                moves.append(tuple(swapped))
                moves.append(order[:i] + order[i : j + 1][::-1] + order[j + 1 :])
        for i in range(size):
            rest = order[:i] + order[i + 1 :]
            moves += [(*rest[:j], order[i], *rest[j:]) for j in range(size) if j != i]
        return [m for m in moves if m != order]

    def reshape(self, route: Route) -> Route:
        """Return the route in the shape that gives it the best rate."""
        shapes = np.arange(self.search.shapes.row.size)
        if shapes.size == 1:
            return route
        s = self.search.shapes
        useful = shapes[s.micro_batches <= len(route.order) + 1]
        rate = route.rate(self.search)
        upper = np.minimum(np.ceil(s.in_flight[useful] / (rate * TICK_S)) - 1, s.max_interval[useful])
        found = self.intervals([route.order] * useful.size, useful, upper)
        rates = s.in_flight[useful] / (found * TICK_S)
        best = int(np.argmax(rates))
        if rates[best] > rate:
            return Route(route.order, int(useful[best]), float(found[best]))
        return route

    def build(self, counts: NDArray[np.int64], row: int, free: set[int]) -> tuple[int, ...] | None:
        """Return devices for a pattern: from several starts, always the nearest free device of a group still needed."""
        best: tuple[float, tuple[int, ...]] | None = None
        hop, _, _ = self.matrices(row)
        wanted = [d for d in sorted(free) if counts[self.group_of[d]] > 0]
        for start in wanted[:: max(1, len(wanted) // 12)]:
            order, left = [start], counts.copy()
            left[self.group_of[start]] -= 1
            taken = set(self.cards[start])
            while left.any():
                options = [d for d in wanted if left[self.group_of[d]] > 0 and not taken & set(self.cards[d])]
                if not options:
                    break
                device = min(options, key=lambda d: (hop[order[-1], d], d))
                order.append(device)
                left[self.group_of[device]] -= 1
                taken |= set(self.cards[device])
            if left.any():
                continue
            length = self.length(tuple(order), row)[0]
            if best is None or length < best[0]:
                best = (length, tuple(order))
        return None if best is None else best[1]

    def pipeline(self, route: Route) -> Pipeline:
        """Return the pipeline of a route."""
        _row, k, b = self.search.shape_list[route.shape]
        groups = tuple(int(self.group_of[d]) for d in route.order)
        costs = self.search.shape_costs(route.shape)
        stages, start = [], 0
        for device, count in zip(
            route.order, layers_in_order(costs, groups, self.search.num_layers, route.interval), strict=True
        ):
            stages.append(Stage(self.cards[device], start, start + count))
            start += count
        return Pipeline(tuple(stages), k, b)


def route_plans(
    instance: PlacementInstance, search: PatternSearch, found: Candidates, chosen: list[int]
) -> tuple[Placement | None, dict[int, float]]:
    """Return the placement of chosen candidates on actual devices, and the rate each came to (its worst copy)."""
    router = Router(instance, search)
    free = set(range(instance.table.num_devices))
    routes: list[tuple[int, Route]] = []
    rates: dict[int, float] = {}
    for index in sorted(chosen, key=lambda i: -int(found.counts[i].sum())):
        shape = int(found.shape[index])
        order = router.build(found.counts[index], int(search.shapes.row[shape]), free)
        if order is None:
            rates[index] = 0.0
            continue
        ceiling = np.array([search.shapes.max_interval[shape] if instance.is_throughput else 2.0**50])
        ceiling = np.minimum(ceiling, 2.0**50)
        interval = router.intervals([order], np.array([shape]), ceiling)[0]
        if not np.isfinite(interval):
            interval = float(ceiling[0]) + 1
        routes.append((index, Route(order, shape, float(interval))))
        _take(router, free, order)
    better: list[Route] = []
    for index, route in routes:
        own = {d for d in range(instance.table.num_devices) if d in free or d in route.order}
        improved = router.reshape(router.improve(route, own))
        improved = router.improve(improved, own) if improved.shape != route.shape else improved
        limit = search.shapes.max_interval[improved.shape]
        free |= set(route.order)
        if improved.interval > min(limit, 2.0**50):
            rates[index] = 0.0
            continue
        rates[index] = min(rates.get(index, np.inf), improved.rate(search))
        better.append(improved)
        _take(router, free, improved.order)
    if not better:
        return None, rates
    return Placement(tuple(router.pipeline(route) for route in better)), rates


def _take(router: Router, free: set[int], order: tuple[int, ...]) -> None:
    """Remove from `free` every device that shares a card with the order."""
    cards = {c for d in order for c in router.cards[d]}
    free -= {d for d in free if cards & set(router.cards[d])}
