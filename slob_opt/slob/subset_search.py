"""Plans for few devices on differing links: subsets of devices with their shortest routes, made exact where it matters.

Every subset gets the rate that its shortest route allows with embedding and head relaxed. The best disjoint family of
subsets is chosen by these; only what is chosen is made exact, over the kinds of its ends and on real links; repeated
until the choice is exact. The value is the optimum unless a link's occupancy binds, which the shortest route ignores.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from slob_opt.cost.table import TICK_S, FloatArray
from slob_opt.planning.flat_kernel import FlatBatch
from slob_opt.planning.instance import PlacementInstance
from slob_opt.planning.pattern_search import Candidates, Routes
from slob_opt.planning.subset_rates import best_family
from slob_opt.planning.subset_routes import compatible_subsets, stacked_route_lengths
from slob_opt.slob.routing import LONGEST, NO_LINK, Route, Router

MAX_THROUGHPUT_DEVICES, MAX_INTERVAL_DEVICES = 9, 10
"""Devices up to which all subsets are looked at. Chosen: 512 subsets in many shapes, or 1,024 in one, take 10 ms."""

MAX_ROUNDS = 12
"""Times that a family is chosen again after making its subsets exact."""

DOUBTS = 2
"""Times that subsets are made exact which would be chosen if they reached their upper limits."""

MANY = 64
"""Subsets that are made exact at once, beside those that are chosen."""

NEARLY = 0.97
"""Share of a subset's estimate that other shapes and ends have to reach to be looked at."""

WAYS = 6
"""Choices of shape and ends of a subset whose routes are built. More than one matters only where a link is busy."""

WIDE_WAYS = 400
"""The same for a second look, when a busy link kept a subset from its estimate."""

IndexArray = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class _RowRoutes:
    """Shortest routes of one row of the cost table, ticks.

    Attributes
    ----------
    open
        (2 ** D, first, last) hops.
    closed
        The same with the hop back.
    """

    open: FloatArray
    closed: FloatArray


@dataclass(frozen=True, slots=True)
class _Way:
    """How a subset reaches a rate (tokens/s): interval in ticks, shape, first and last device."""

    rate: float
    interval: float
    shape: int
    first: int
    last: int


def most_devices(instance: PlacementInstance) -> int:
    """Return the number of devices up to which subsets are looked at."""
    return MAX_THROUGHPUT_DEVICES if instance.is_throughput else MAX_INTERVAL_DEVICES


class SubsetSearch:
    """Rates of all subsets of the devices of one instance with identical layers; call :meth:`best_routes` once.

    Parameters
    ----------
    router
        Of the instance.
    is_wide
        Whether all shapes and many ends of a chosen subset are looked at, which matters where links are busy.

    Attributes
    ----------
    masks
        (M,) int, the subsets whose devices share no card and hold the model's layers.
    counts
        (M, G) int, devices of each group.
    known
        One route of each subset in each shape, which gives its estimate.
    busiest
        (S,) ticks, longest that any link may be busy in an iteration.
    rate, is_exact
        (M,) tokens/s as far as they are exact, and whether they are.
    built
        How the exact rates are reached.
    fell_short
        Whether a busy link kept some subset from its estimate, so that other plans should be tried too.
    """

    def __init__(self, router: Router, *, is_wide: bool = False) -> None:
        self.nearly, self.num_ways = (0.0, WIDE_WAYS) if is_wide else (NEARLY, WAYS)
        self.router, self.search = router, router.search
        self.num_devices = router.num_devices
        masks = np.arange(1 << self.num_devices)
        self.members = ((masks[:, None] >> np.arange(self.num_devices)) & 1).astype(bool)
        self.allowed = None
        if not router.table.has_exclusive_devices:
            self.allowed = compatible_subsets(router.cards)
        kinds = np.eye(self.search.groups.num_groups, dtype=np.int64)[router.group_of]
        counts = self.members.astype(np.int64) @ kinds
        s = self.search.shapes
        caps = np.max([s.cap, s.cap_first, s.cap_last, s.cap_both], axis=(0, 1))
        holds_model = counts @ np.maximum(caps, 0.0) >= self.search.num_layers
        self.masks = masks[holds_model if self.allowed is None else holds_model & self.allowed]
        self.counts = counts[self.masks]
        self.routes = self._all_routes()
        self.known = self._known_routes()
        s = self.search.shapes
        most = {row: max(float(m.max()) for m in router.matrices(row)[2:]) for row in self.routes}
        self.busiest = s.micro_batches * np.array([most[int(row)] for row in s.row])
        self.rate = np.zeros(self.masks.size)
        self.is_exact = np.zeros(self.masks.size, dtype=bool)
        self.built: dict[int, Route | _Way] = {}
        self.fell_short = False

    def _all_routes(self) -> dict[int, _RowRoutes]:
        rows = np.unique(self.search.shapes.row).tolist()
        hops = np.stack([self.router.matrices(row)[0] for row in rows])
        open_ = stacked_route_lengths(np.where(hops < NO_LINK, hops, np.inf))
        closed = np.stack([self.router.matrices(row)[1].T for row in rows])[:, None] + open_
        every = np.arange(self.num_devices)
        closed[:, :, every, every] = np.inf
        return {row: _RowRoutes(open_[i], closed[i]) for i, row in enumerate(rows)}

    def _known_routes(self) -> Routes:
        """Return for each subset and shape the route that is shortest with embedding and head times at its ends."""
        s, group_of, size = self.search.shapes, self.router.group_of, self.masks.size
        first, last = np.zeros((size, s.row.size), np.int64), np.zeros((size, s.row.size), np.int64)
        length = np.full((size, s.row.size), np.inf)
        if not size:
            return Routes(first, last, length)
        can_first, can_last = (s.cap_first >= 1)[:, group_of], (s.cap_last >= 1)[:, group_of]
        keys = np.concatenate([s.row[:, None], can_first, can_last], axis=1)
        for key in np.unique(keys, axis=0):
            alike = np.flatnonzero(np.all(keys == key, axis=1))
            one = int(alike[0])
            closed = self.routes[int(s.row[one])].closed[self.masks]
            extra = s.embed[one, group_of][:, None] + s.head[one, group_of][None, :]
            extra = np.where(can_first[one][:, None] & can_last[one][None, :], extra, np.inf)
            best = (closed + extra).reshape(size, -1).argmin(axis=1)
            ends = np.divmod(best, self.num_devices)
            first[:, alike], last[:, alike] = (group_of[end][:, None] for end in ends)
            reach = closed[np.arange(size), ends[0], ends[1]] + np.where(np.isfinite(extra[ends]), 0.0, np.inf)
            length[:, alike] = reach[:, None]
        return Routes(first, last, length)

    def best_routes(self) -> list[Route]:
        """Return the routes of the best family found (one route for an interval); empty when none is possible."""
        if not self.masks.size:
            return []
        found = self.estimates()
        self._settle(found)
        limit = self.search.rate_limits(self.counts, self.known.length).max(axis=1, initial=0.0)
        for _ in range(DOUBTS):
            # Other ends than the estimate's may be faster. A better family needs more than this from a subset:
            floor = self._needed(np.where(self.is_exact, self.rate, found.rate))
            hope = np.where(self.is_exact, 0.0, limit - floor)
            fresh = [int(i) for i in np.argsort(-hope, kind="stable")[:MANY] if hope[i] > 0]
            if not fresh:
                break
            self._build(found, fresh, floor)
        chosen = self._settle(found)
        return [self._route(i) for i in chosen]

    def estimates(self) -> Candidates:
        """Return a rate of each subset that its known routes reach unless a link is busy."""
        return self.search.candidates(self.counts, self.known)

    def _settle(self, found: Candidates) -> list[int]:
        """Choose by exact rates where they are known and estimates elsewhere, until all that is chosen is exact."""
        for _ in range(MAX_ROUNDS):
            rate = np.where(self.is_exact, self.rate, found.rate)
            chosen = self._choose(rate)
            if np.all(self.is_exact[chosen]):
                return chosen
            self._build(found, [i for i in self._choose(rate, MANY) if not self.is_exact[i]])
        return self._choose(self.rate)

    def _needed(self, rate: FloatArray) -> FloatArray:
        """Return (M,) tokens/s: from which rate on a subset would be in a better family than the best by some rates."""
        if not self.search.instance.is_throughput:
            return np.full(self.masks.size, rate.max(initial=0.0))
        every = np.zeros(1 << self.num_devices)
        every[self.masks] = rate
        value, _ = best_family(every, self.allowed)
        return np.asarray(value[-1] - value[(value.size - 1) ^ self.masks])

    def _choose(self, rate: FloatArray, many: int = 1) -> list[int]:
        """Return the subsets of the best family, as positions in `masks`; for an interval the best `many`."""
        if not self.search.instance.is_throughput:
            best = np.argsort(-rate, kind="stable")[:many]
            return [int(i) for i in best if rate[i] > 0]
        every = np.zeros(1 << self.num_devices)
        every[self.masks] = rate
        family = best_family(every, self.allowed)[1]
        return [int(i) for i in np.searchsorted(self.masks, family)]

    def _route(self, index: int) -> Route:
        """Return the route behind the exact rate of a subset."""
        known = self.built[index]
        if isinstance(known, Route):
            return known
        return Route(self._order(index, known), known.shape, known.interval)

    def _build(self, found: Candidates, fresh: list[int], floor: FloatArray | None = None) -> None:
        """Enter the exact rates of some subsets, and how they are reached."""
        s = self.search.shapes
        self.is_exact[fresh] = True
        several = []
        for i in fresh:
            if self.counts[i].sum() > 1:
                several.append(i)
                continue
            device = int(np.flatnonzero(self.members[self.masks[i]])[0])
            self.built[i], self.rate[i] = Route((device,), int(found.shape[i]), float(found.interval[i])), found.rate[i]
        busy: list[tuple[int, _Way]] = []
        for i, ways in self._ways(found, np.array(several, np.int64), floor).items():
            if ways and self.busiest[ways[0].shape] <= ways[0].interval:
                self.built[i], self.rate[i] = ways[0], ways[0].rate
            else:
                busy += [(i, way) for way in ways]
        # Some link may be busy for longer than the rate allows: look at real routes.
        shapes = np.array([way.shape for _, way in busy], np.int64)
        orders = [self._order(i, way) for i, way in busy]
        parts = [
            (np.array([order], np.int64), shapes[x : x + 1], np.minimum(s.max_interval, LONGEST)[shapes[x : x + 1]])
            for x, order in enumerate(orders)
        ]
        for (i, way), order, ticks in zip(busy, orders, self.router.intervals(parts), strict=True):
            route = Route(order, way.shape, float(ticks[0]))
            if np.isfinite(ticks[0]) and route.rate(self.search) > self.rate[i]:
                self.built[i], self.rate[i] = route, route.rate(self.search)
        # The ways that were best without busy links may all be bad with them, and others not looked at.
        self.fell_short |= any(self.rate[i] < NEARLY * way.rate for i, way in busy)

    def _ways(self, found: Candidates, index: IndexArray, floor: FloatArray | None) -> dict[int, list[_Way]]:
        """Return for each subset the best few shapes and ends by exact interval, link occupancy aside."""
        ways: dict[int, list[_Way]] = {int(i): [] for i in index}
        if index.size == 0:
            return ways
        shapes = self.search.shapes
        limits = self.search.rate_limits(self.counts[index], self._least(index))
        enough = found.rate[index] * self.nearly if floor is None else np.maximum(floor[index], 0.0)
        position, shape = np.nonzero(limits > enough[:, None])
        if position.size == 0:
            return ways
        owner, first, last, length = self._ends(index[position], shape)
        at, way = position[owner], shape[owner]
        batch = FlatBatch(
            shapes, self.counts[index[at]], way, self.router.group_of[first], self.router.group_of[last],
            self.search.num_layers, length,
        )  # fmt: skip
        with np.errstate(divide="ignore"):
            upper = np.ceil(shapes.in_flight[way] / (enough[at] * TICK_S))
        interval = batch.shortest(np.minimum(upper, np.minimum(shapes.max_interval, LONGEST)[way]))
        rate = shapes.in_flight[way] / (interval * TICK_S)
        for x in np.argsort(-rate, kind="stable").tolist():
            if rate[x] <= 0:
                break
            best = ways[int(index[at[x]])]
            if len(best) < self.num_ways:
                best.append(_Way(float(rate[x]), float(interval[x]), int(way[x]), int(first[x]), int(last[x])))
        return ways

    def _least(self, index: IndexArray) -> FloatArray:
        """(I, S) ticks: shortest closed route of some subsets in each shape, whatever its ends."""
        rows = self.search.shapes.row
        least = {row: self.routes[row].closed[self.masks[index]].min(axis=(1, 2)) for row in self.routes}
        return np.stack([least[int(row)] for row in rows], axis=1)

    def _ends(self, index: IndexArray, shape: IndexArray) -> tuple[IndexArray, IndexArray, IndexArray, FloatArray]:
        """Return, for (subset, shape) choices, the shortest route for each pair of kinds of ends.

        Four (X,) arrays: position of the choice, first and last device, and length with return in ticks.
        """
        d, groups = self.num_devices, self.search.groups.num_groups
        closed = np.stack(
            [
                self.routes[int(self.search.shapes.row[s])].closed[self.masks[i]]
                for i, s in zip(index, shape, strict=True)
            ]
        ).reshape(index.size, d * d)
        kind = (self.router.group_of[:, None] * groups + self.router.group_of[None, :]).ravel()
        order = np.lexsort((np.arange(d * d), kind))
        starts = np.flatnonzero(np.diff(kind[order], prepend=-1))
        shortest = np.minimum.reduceat(closed[:, order], starts, axis=1)
        owner, block = np.nonzero(np.isfinite(shortest))
        of_kind = np.searchsorted(kind[order][starts], kind)
        same = (closed[owner] == shortest[owner, block][:, None]) & (of_kind[None, :] == block[:, None])
        first, last = np.divmod(same.argmax(axis=1), d)
        return owner, first, last, shortest[owner, block]

    def _order(self, index: int, way: _Way) -> tuple[int, ...]:
        """Return the devices of a subset in the order of a shortest route."""
        row = int(self.search.shapes.row[way.shape])
        hop = self.router.matrices(row)[0]
        routes = self.routes[row].open
        mask, at = int(self.masks[index]), way.last
        order = [at]
        while at != way.first:
            mask &= ~(1 << at)
            at = int(np.argmin(routes[mask, way.first] + hop[:, at]))
            order.append(at)
        return tuple(reversed(order))
