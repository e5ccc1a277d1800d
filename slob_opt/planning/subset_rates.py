"""Best rate of every subset of at most a dozen devices, with general links and tensor-parallel groups; exact."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from slob_opt.cost.table import TICK_S, FloatArray
from slob_opt.planning.groups import ShapeCosts, shape_costs
from slob_opt.planning.instance import PlacementInstance
from slob_opt.planning.split_order import layers_in_order
from slob_opt.planning.subset_routes import MAX_DEVICES, compatible_subsets, route_lengths, route_order
from slob_opt.problem.placement import Pipeline, Stage

IndexArray = NDArray[np.int64]


@dataclass(slots=True)
class SubsetRates:
    """Best pipeline on exactly the devices of each subset.

    Attributes
    ----------
    rate
        (2 ** D,) tokens/s, zero where none is possible.
    shape, first, last, level
        (2 ** D,) int: how it is reached (index into the instance's shapes, devices, link level); -1 where it isn't.
    interval
        (2 ** D,) float64, ticks.
    """

    rate: FloatArray
    shape: IndexArray
    first: IndexArray
    last: IndexArray
    level: IndexArray
    interval: FloatArray


@dataclass(frozen=True, slots=True)
class _RowRoutes:
    """Routes of one row at one link level, and the smallest route with return of each subset."""

    limit: float
    closed: FloatArray
    least: FloatArray


def _ticks(values: FloatArray) -> FloatArray:
    return np.asarray(values / TICK_S)


def link_matrices(instance: PlacementInstance, row: int) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
    """Return (D, D) ticks of hop, occupancy, return, return occupancy; infinite hops where there is no link."""
    table = instance.table
    link = table.link_class
    none = link < 0
    index = np.where(none, 0, link)
    parts = (table.hop_s, table.occupancy_s, table.return_s, table.return_occupancy_s)
    found = [_ticks(part[row][index]) if part.shape[1] else np.zeros(link.shape) for part in parts]
    for matrix in (found[0], found[2]):
        matrix[none] = np.inf
    return found[0], found[1], found[2], found[3]


def reaches_subset(
    members: NDArray[np.bool_],
    costs: ShapeCosts,
    num_layers: int,
    interval: FloatArray,
    first: IndexArray,
    last: IndexArray,
    route: FloatArray,
) -> NDArray[np.bool_]:
    """Return (X,) bool: whether devices `members` (D, X) in a route of given length reach an interval.

    `first` and `last` are -1 for a relaxation without embedding and head. Lengths and intervals are (X,) ticks.
    """
    per_stage = np.floor(interval / costs.num_micro_batches)
    remaining = num_layers - members.sum(axis=0).astype(np.float64)
    covered = remaining >= 0
    total = np.array(route, dtype=np.float64)
    for d in np.argsort(costs.layer, kind="stable"):
        inside = members[d]
        is_first, is_last = first == d, last == d
        extra = np.where(is_first, costs.embed[d], 0.0) + np.where(is_last, costs.head[d], 0.0)
        cap = np.where(
            is_first & is_last,
            costs.cap_both[d],
            np.where(is_first, costs.cap_first[d], np.where(is_last, costs.cap_last[d], costs.cap[d])),
        )
        budget = per_stage - costs.fixed[d] - extra
        if costs.layer[d] > 0:
            most = np.minimum(np.floor(budget / costs.layer[d]), cap)
        else:
            most = np.where(budget >= 0, cap, -1.0)
        covered &= ~inside | (most >= 1)
        take = np.where(inside, np.minimum(remaining, np.maximum(most - 1, 0)), 0.0)
        total += np.where(inside, costs.fixed[d] + costs.layer[d] + extra, 0.0) + take * costs.layer[d]
        remaining = remaining - take
    return np.asarray(covered & (remaining <= 0) & (total <= interval))


class SubsetKernel:
    """Enumerates subsets of one instance; call :meth:`rates` once."""

    def __init__(self, instance: PlacementInstance) -> None:
        self.instance = instance
        self.num_devices = instance.table.num_devices
        masks = np.arange(1 << self.num_devices)
        self.members = ((masks[None, :] >> np.arange(self.num_devices)[:, None]) & 1).astype(bool)
        self.allowed = compatible_subsets(instance.table.device_cards)
        self.shapes = instance.shapes()
        self.costs = [shape_costs(instance, instance.table.device_class, s) for s in self.shapes]
        self._routes: dict[int, list[_RowRoutes]] = {}

    def _row_routes(self, row: int) -> list[_RowRoutes]:
        """Routes of a row by link level, all links first."""
        if row not in self._routes:
            hop, occupancy, ret, _ = link_matrices(self.instance, row)
            levels = np.unique(occupancy[np.isfinite(hop)])[::-1] if self.num_devices > 1 else np.zeros(1)
            found = []
            for limit in levels:
                routes = route_lengths(np.where(occupancy <= limit, hop, np.inf))
                closed = routes + ret.T[None]
                closed[:, np.arange(self.num_devices), np.arange(self.num_devices)] = np.inf
                found.append(_RowRoutes(float(limit), closed, closed.min(axis=(1, 2))))
            self._routes[row] = found
        return self._routes[row]

    def rates(self, floor: float = 0.0) -> SubsetRates:
        """Return the best rate of each subset as far as it is above `floor` tokens/s."""
        size = 1 << self.num_devices
        shape, first, last, level = (np.full(size, -1) for _ in range(4))
        result = SubsetRates(np.full(size, floor), shape, first, last, level, np.full(size, np.inf))
        order = sorted(range(len(self.shapes)), key=lambda i: -self.costs[i].num_in_flight)
        for index in order:
            self._single(result, index)
            for depth, routes in enumerate(self._row_routes(self.shapes[index][0])):
                self._several(result, index, depth, routes)
        result.rate[result.shape < 0] = 0.0
        return result

    def _limit(self, result: SubsetRates, costs: ShapeCosts, masks: IndexArray) -> FloatArray:
        """Largest interval, in ticks, that beats the rate known of each mask."""
        with np.errstate(divide="ignore"):
            bound = np.ceil(costs.num_in_flight / (result.rate[masks] * TICK_S)) - 1
        slowest = float((costs.fixed + self._layers * costs.layer + costs.embed + costs.head).max())
        hop, occupancy, ret, ret_occupancy = link_matrices(self.instance, costs.row)
        longest_hop = max(float(m[np.isfinite(m)].max(initial=0.0)) for m in (hop, ret))
        busiest = max(float(m.max(initial=0.0)) for m in (occupancy, ret_occupancy))
        ceiling = costs.num_micro_batches * max(slowest, busiest) + self.num_devices * (slowest + longest_hop)
        return np.asarray(np.minimum(np.minimum(bound, costs.max_interval), ceiling))

    @property
    def _layers(self) -> int:
        return self.instance.table.num_layers

    def _enter(
        self,
        result: SubsetRates,
        masks: IndexArray,
        index: int,
        first: IndexArray,
        last: IndexArray,
        level: int,
        ticks: FloatArray,
    ) -> None:
        """Enter intervals that beat the rates known (masks may repeat)."""
        rate = self.costs[index].num_in_flight / (ticks * TICK_S)
        for i in np.argsort(-rate, kind="stable"):
            mask = masks[i]
            if rate[i] > result.rate[mask]:
                result.rate[mask], result.interval[mask] = rate[i], ticks[i]
                result.shape[mask], result.level[mask] = index, level
                result.first[mask], result.last[mask] = first[i], last[i]

    def _single(self, result: SubsetRates, index: int) -> None:
        """Pipelines of one device."""
        costs = self.costs[index]
        ticks = costs.num_micro_batches * (costs.fixed + self._layers * costs.layer + costs.embed + costs.head)
        fits = np.flatnonzero((costs.cap_both >= self._layers) & (ticks <= costs.max_interval))
        self._enter(result, 1 << fits, index, fits, fits, -1, ticks[fits])

    def _several(self, result: SubsetRates, index: int, level: int, routes: _RowRoutes) -> None:
        """Pipelines of several devices at one link level."""
        costs = self.costs[index]
        k, layers = costs.num_micro_batches, self._layers
        masks = np.flatnonzero(self.allowed & np.isfinite(routes.least))
        limit = self._limit(result, costs, masks)
        base = (costs.fixed + costs.layer) @ self.members[:, masks] + routes.least[masks]
        room = np.maximum(costs.cap, 0) @ self.members[:, masks]
        hopeful = (base <= limit) & (room >= layers) & (limit >= k * routes.limit)
        masks, limit = masks[hopeful], limit[hopeful]
        if masks.size == 0:
            return
        none = np.full(masks.size, -1)
        good = reaches_subset(self.members[:, masks], costs, layers, limit, none, none, routes.least[masks])
        masks, limit = masks[good], limit[good]
        if masks.size == 0:
            return
        _, _, _, return_occupancy = link_matrices(self.instance, self.shapes[index][0])
        which, first, last = np.nonzero(np.isfinite(routes.closed[masks]))
        subset, high = masks[which], limit[which]
        route = routes.closed[subset, first, last]
        low = np.maximum(k * routes.limit, k * return_occupancy[last, first]) - 1
        members = self.members[:, subset]
        keep = (high > low) & reaches_subset(members, costs, layers, high, first, last, route)
        subset, first, last, route, high, low = (a[keep] for a in (subset, first, last, route, high, low))
        best = np.full(1 << self.num_devices, np.inf)
        while subset.size and np.any(high - low > 1):
            # The lower end may stand for a busy link, which the test knows nothing of: closed ranges stay as they are.
            middle = np.maximum(np.floor((low + high) / 2), low + 1)
            good = reaches_subset(self.members[:, subset], costs, layers, middle, first, last, route)
            high, low = np.where(good, middle, high), np.where(good, low, np.minimum(middle, high - 1))
            np.minimum.at(best, subset, high)
            keep = low + 1 <= best[subset]
            subset, first, last, route, high, low = (a[keep] for a in (subset, first, last, route, high, low))
        self._enter(result, subset, index, first, last, level, high)

    def pipeline(self, result: SubsetRates, mask: int) -> Pipeline:
        """Return the pipeline behind the rate of a subset."""
        costs = self.costs[int(result.shape[mask])]
        first, last = int(result.first[mask]), int(result.last[mask])
        devices = [d for d in range(self.num_devices) if (mask >> d) & 1]
        order: tuple[int, ...] = (first,)
        if len(devices) > 1:
            hop, occupancy, _, _ = link_matrices(self.instance, costs.row)
            limit = self._row_routes(costs.row)[int(result.level[mask])].limit
            order = route_order(np.where(occupancy <= limit, hop, np.inf), devices, first, last)
        layers = layers_in_order(costs, order, self._layers, float(result.interval[mask]))
        stages, start = [], 0
        for device, count in zip(order, layers, strict=True):
            stages.append(Stage(self.instance.table.device_cards[device], start, start + count))
            start += count
        return Pipeline(tuple(stages), costs.num_micro_batches, costs.batch_size)


def best_family(rate: FloatArray, allowed: NDArray[np.bool_] | None = None) -> tuple[FloatArray, list[int]]:
    """Return the worth of the best disjoint family within each subset, and the family for all devices.

    Parameters
    ----------
    rate
        (2 ** D,) worth of a pipeline on exactly a subset.
    allowed
        (2 ** D,) subsets whose devices share no card (see :func:`compatible_subsets`); a family's devices together have
        to be such a subset. ``None`` when no devices share cards.
    """
    size = rate.size
    num_devices = size.bit_length() - 1
    value = np.zeros(size)
    choice = np.zeros(size, np.int64)
    for masks, parts in _splits(num_devices):
        total = rate[parts] + value[masks[:, None] & ~parts]
        best = np.argmax(total, axis=1)
        line = np.arange(masks.size)
        without = value[masks & (masks - 1)]
        better = total[line, best] > without
        value[masks] = np.where(better, total[line, best], without)
        choice[masks] = np.where(better, parts[line, best], 0)
        if allowed is not None:
            # Some device has to stay unused; the larger remainder among equals.
            for mask in masks[~allowed[masks]].tolist():
                smaller = [mask & ~(1 << b) for b in range(num_devices) if (mask >> b) & 1]
                value[mask], choice[mask] = max((value[s], -s) for s in smaller)
    family, mask = [], size - 1
    while mask:
        lowest = mask & -mask
        picked = int(choice[mask])
        if picked < 0:
            mask = -picked
        elif picked:
            family.append(picked)
            mask &= ~picked
        else:
            mask &= ~lowest
    return value, family


@lru_cache(maxsize=MAX_DEVICES)
def _splits(num_devices: int) -> tuple[tuple[IndexArray, IndexArray], ...]:
    """Return, for each size of subset from one up, (M,) subsets and (M, N) their parts that hold the lowest device."""
    masks = np.arange(1, 1 << num_devices)
    lowest = masks & -masks
    sizes = ((masks[:, None] >> np.arange(num_devices)) & 1).sum(axis=1)
    found = []
    for size in range(1, num_devices + 1):
        level, parts = masks[sizes == size], lowest[sizes == size][:, None]
        rest = level & ~parts[:, 0]
        for _ in range(size - 1):
            bit = rest & -rest
            parts = np.concatenate([parts, parts | bit[:, None]], axis=1)
            rest &= ~bit
        found.append((level, parts))
    return tuple(found)
