"""Rates of candidate patterns in a few array operations, and lazily exact picking among them.

Every (pattern, shape) has a closed upper limit on its rate: an iteration takes at least the sum of fixed times and
hops with all layers on the fastest group, and K times the perfectly balanced stage. Only choices whose limit beats
the best rate found for the pattern are bisected, first with embedding and head relaxed. The patterns that a packing
picks are then made exact over first and last groups; the packing is repeated until it picks exact patterns only.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from slob_opt.cost.table import TICK_S, FloatArray
from slob_opt.planning.flat_kernel import FlatBatch, ShapeArrays, shape_arrays
from slob_opt.planning.groups import Groups, PatternPlan, ShapeCosts, group_devices
from slob_opt.planning.instance import PlacementInstance
from slob_opt.planning.pattern_kernel import pattern_split

COARSE_STEP = 1e-5
"""Relative width of a candidate's interval that is enough to rank it. Chosen: 100 times below what matters."""


@dataclass(slots=True)
class Candidates:
    """Patterns and the best that is known of them.

    Attributes
    ----------
    counts
        (P, G).
    rate
        (P,) tokens/s.
    shape, first, last
        (P,) how the rate is reached; -1 where nothing is known. `first` is -1 while the rate is relaxed.
    interval
        (P,) ticks.
    is_exact
        (P,) bool.
    """

    counts: NDArray[np.int64]
    rate: FloatArray
    shape: NDArray[np.int64]
    first: NDArray[np.int64]
    last: NDArray[np.int64]
    interval: FloatArray
    is_exact: NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Routes:
    """One route for each of P patterns in each of S shapes.

    Attributes
    ----------
    first, last
        (P, S) groups of the ends.
    length
        (P, S) ticks, hops with return; infinite where there is no route.
    """

    first: NDArray[np.int64]
    last: NDArray[np.int64]
    length: FloatArray

    def at(
        self, pattern: NDArray[np.int64], shape: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], FloatArray]:
        """Return first, last and length of some (pattern, shape) choices."""
        return self.first[pattern, shape], self.last[pattern, shape], self.length[pattern, shape]


class PatternSearch:
    """Rates of patterns for one instance; holds the stacked costs of its shapes.

    Parameters
    ----------
    instance
        What is planned for.
    hop_scale
        Weight of the mean hop against the smallest when links differ; ``None`` takes the smallest.
    use_mean_layers
        With unequal layers take mean times and bytes, which makes rates estimates, instead of the smallest, which makes
        them upper limits.
    """

    def __init__(
        self, instance: PlacementInstance, hop_scale: float | None = None, use_mean_layers: bool = True
    ) -> None:
        self.instance = instance
        self.groups: Groups = group_devices(instance.table)
        self.shape_list = instance.shapes()
        self.shapes: ShapeArrays = shape_arrays(
            instance, self.groups, self.shape_list, use_mean_layers and not instance.table.has_identical_layers
        )
        if hop_scale is not None:
            self._use_mean_links(hop_scale)
        self.num_layers = instance.table.num_layers
        self.alone = self._alone()

    def _use_mean_links(self, weight: float) -> None:
        """Blend the smallest hops with mean ones; `weight` 0 keeps the smallest, 1 takes the mean."""
        table = self.instance.table
        links = table.link_class[table.link_class >= 0]
        share = np.bincount(links, minlength=table.hop_s.shape[1]) / max(links.size, 1)
        for name, values in (("hop", table.hop_s), ("ret", table.return_s)):
            mean = (values[self.shapes.row] @ share) / TICK_S
            blend = getattr(self.shapes, name) + weight * (mean - getattr(self.shapes, name))
            getattr(self.shapes, name)[:] = np.rint(blend)

    def _alone(self) -> FloatArray:
        """(S, G) ticks: interval of one device as the whole pipeline."""
        s = self.shapes
        stage = s.fixed + self.num_layers * s.layer + s.embed + s.head
        interval = s.micro_batches[:, None] * stage
        fits = (s.cap_both >= self.num_layers) & (interval <= s.max_interval[:, None])
        return np.asarray(np.where(fits, interval, np.inf))

    def rate_limits(self, counts: NDArray[np.int64], route: FloatArray | None = None) -> FloatArray:
        """Return (P, S) upper limits on rates, tokens/s; zero where memory, time cap or a needlessly large K forbid.

        Parameters
        ----------
        counts
            (P, G).
        route
            (P, S) ticks, least sum of hops with return; ``None`` takes the shapes' own hops.
        """
        s, n = self.shapes, counts.astype(np.float64)
        devices = n.sum(axis=1)
        if route is None:
            route = np.outer(devices - 1, s.hop) + s.ret[None]
        fastest = np.where(counts[:, None, :] > 0, s.layer[None], np.inf).min(axis=2)
        least = n @ s.fixed.T + fastest * self.num_layers + route
        with np.errstate(divide="ignore"):
            speed = n @ np.where(s.layer > 0, 1.0 / np.maximum(s.layer, 1e-12), 1e12).T
        interval = np.maximum(least, s.micro_batches[None] * self.num_layers / np.maximum(speed, 1e-12))
        room = n @ np.maximum(s.cap, 0.0).T
        possible = (room >= self.num_layers) & (interval <= s.max_interval[None]) & (devices[:, None] > 1)
        possible &= devices[:, None] <= self.num_layers
        if self.instance.is_throughput:
            # With a longest stage m the sum is at most devices * m + hops: more micro-batches than sum / m add nothing.
            with np.errstate(invalid="ignore"):
                waiting = route * speed / self.num_layers
            possible &= s.micro_batches[None] <= devices[:, None] + 1 + np.ceil(waiting)
        return np.asarray(np.where(possible, s.in_flight[None] / (interval * TICK_S), 0.0))

    def candidates(self, counts: NDArray[np.int64], known: Routes | None = None) -> Candidates:
        """Return the relaxed rates of patterns (exact for single devices), or those on known routes.

        Parameters
        ----------
        counts
            (P, G).
        known
            Routes of each pattern in each shape, whose ends then carry embedding and head; ``None`` takes the shapes'
            own hops, and relaxes embedding and head.
        """
        size = counts.shape[0]
        found = Candidates(
            counts, np.zeros(size), np.full(size, -1), np.full(size, -1), np.full(size, -1), np.full(size, np.inf),
            np.zeros(size, bool),
        )  # fmt: skip
        single = np.flatnonzero(counts.sum(axis=1) == 1)
        if single.size:
            self._enter_single(found, single)
        limits = self.rate_limits(counts, None if known is None else known.length)
        several = np.flatnonzero(limits.max(axis=1, initial=0.0) > 0)
        for width in (1, 3):
            if several.size == 0:
                return found
            top = np.argsort(-limits[several], axis=1, kind="stable")[:, :width]
            pattern, shape = np.repeat(several, top.shape[1]), top.ravel()
            self._raise(found, limits, pattern, shape, known)
        pattern, shape = np.nonzero(limits[several] > found.rate[several][:, None])
        self._raise(found, limits, several[pattern], shape, known)
        return found

    def _enter_single(self, found: Candidates, single: NDArray[np.int64]) -> None:
        group = found.counts[single].argmax(axis=1)
        rates = self.shapes.in_flight[:, None] / (self.alone[:, group] * TICK_S)
        best = rates.argmax(axis=0)
        found.rate[single] = rates[best, np.arange(single.size)]
        found.shape[single], found.first[single], found.last[single] = best, group, group
        found.interval[single] = self.alone[best, group]
        found.is_exact[single] = True

    def _raise(
        self,
        found: Candidates,
        limits: FloatArray,
        pattern: NDArray[np.int64],
        shape: NDArray[np.int64],
        known: Routes | None,
    ) -> None:
        """Bisect choices whose limit beats the pattern's rate and enter what they reach."""
        keep = limits[pattern, shape] > found.rate[pattern]
        limits[pattern, shape] = 0.0
        pattern, shape = pattern[keep], shape[keep]
        if pattern.size == 0:
            return
        first, last, length = (None, None, None) if known is None else known.at(pattern, shape)
        batch = FlatBatch(self.shapes, found.counts[pattern], shape, first, last, self.num_layers, length)
        interval = batch.shortest(self._upper(found.rate[pattern], shape), COARSE_STEP)
        self._enter(found, pattern, shape, first, last, interval)

    def _upper(self, rate: FloatArray, shape: NDArray[np.int64]) -> FloatArray:
        """Return (X,) ticks: largest interval that beats a rate."""
        s = self.shapes
        slowest = (s.fixed + self.num_layers * s.layer + s.embed + s.head).max(axis=1)
        ceiling = s.micro_batches * np.maximum(slowest, s.occupancy) + self.num_layers * (slowest + s.hop) + s.ret
        with np.errstate(divide="ignore"):
            limit = np.where(rate > 0, np.ceil(s.in_flight[shape] / (rate * TICK_S)) - 1, np.inf)
        return np.asarray(np.minimum(np.minimum(limit, s.max_interval[shape]), np.floor(ceiling[shape])))

    def _enter(
        self,
        found: Candidates,
        pattern: NDArray[np.int64],
        shape: NDArray[np.int64],
        first: NDArray[np.int64] | None,
        last: NDArray[np.int64] | None,
        interval: FloatArray,
    ) -> None:
        """Enter the best choice of each pattern when it beats what is known."""
        rate = self.shapes.in_flight[shape] / (interval * TICK_S)
        order = np.lexsort((-rate, pattern))
        heads = order[np.unique(pattern[order], return_index=True)[1]]
        heads = heads[rate[heads] > found.rate[pattern[heads]]]
        at = pattern[heads]
        found.rate[at], found.shape[at], found.interval[at] = rate[heads], shape[heads], interval[heads]
        if first is not None and last is not None:
            found.first[at], found.last[at] = first[heads], last[heads]

    def make_exact(self, found: Candidates, index: NDArray[np.int64]) -> None:
        """Replace the relaxed rates of some patterns by exact ones, over both end groups and all hopeful shapes."""
        index = index[~found.is_exact[index]]
        if index.size == 0:
            return
        relaxed = found.rate[index].copy()
        limits = np.minimum(self.rate_limits(found.counts[index]), relaxed[:, None] * (1 + 2 * COARSE_STEP))
        best_shape = found.shape[index]
        for table in (found.rate, found.interval):
            table[index] = 0.0 if table is found.rate else np.inf
        found.shape[index] = -1
        found.is_exact[index] = True
        rows = np.arange(index.size)
        self._exact_choices(found, index, rows, best_shape)
        limits[rows, best_shape] = 0.0
        row, shape = np.nonzero(limits > found.rate[index][:, None])
        self._exact_choices(found, index, row, shape)

    def _exact_choices(
        self, found: Candidates, index: NDArray[np.int64], row: NDArray[np.int64], shape: NDArray[np.int64]
    ) -> None:
        """Bisect all pairs of ends of some (pattern, shape) choices; `row` points into `index`."""
        if row.size == 0:
            return
        groups = self.groups.num_groups
        first, last = np.divmod(np.arange(groups * groups), groups)
        need = np.zeros((groups * groups, groups), np.int64)
        np.add.at(need, (np.arange(groups * groups), first), 1)
        np.add.at(need, (np.arange(groups * groups), last), 1)
        choice, pair = np.nonzero(np.all(found.counts[index[row]][:, None, :] >= need[None], axis=2))
        if choice.size == 0:
            return
        pattern, at = index[row[choice]], shape[choice]
        batch = FlatBatch(self.shapes, found.counts[pattern], at, first[pair], last[pair], self.num_layers)
        interval = batch.shortest(self._upper(found.rate[pattern], at))
        self._enter(found, pattern, at, first[pair], last[pair], interval)

    def shape_costs(self, shape: int) -> ShapeCosts:
        """Return one shape's costs."""
        s = self.shapes
        row, k, b = self.shape_list[shape]
        return ShapeCosts(
            row, k, b, s.fixed[shape], s.layer[shape], s.embed[shape], s.head[shape], s.cap[shape], s.cap_first[shape],
            s.cap_last[shape], s.cap_both[shape], float(s.hop[shape]), float(s.ret[shape]), float(s.occupancy[shape]),
            float(s.max_interval[shape]),
        )  # fmt: skip

    def plan(self, found: Candidates, index: int) -> PatternPlan:
        """Return the pipeline behind an exact candidate."""
        costs = self.shape_costs(int(found.shape[index]))
        counts = found.counts[index]
        if int(counts.sum()) == 1:
            return PatternPlan((int(np.argmax(counts)),), (self.num_layers,), costs.num_micro_batches, costs.batch_size)
        groups, layers = pattern_split(
            counts,
            costs,
            self.num_layers,
            float(found.interval[index]),
            int(found.first[index]),
            int(found.last[index]),
        )
        return PatternPlan(groups, layers, costs.num_micro_batches, costs.batch_size)
