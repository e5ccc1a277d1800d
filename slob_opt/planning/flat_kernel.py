"""Shortest intervals of many (pattern, shape, first group, last group) choices in one batch of array operations.

The same test as in :mod:`slob_opt.planning.pattern_kernel`, with the shape varying along the batch, so that a
search over a few thousand choices costs a few dozen array operations instead of a loop over shapes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from slob_opt.cost.table import TICK_S, FloatArray, quantise
from slob_opt.planning.groups import UNLIMITED_LAYERS, Groups, used_links
from slob_opt.planning.instance import PlacementInstance

IndexArray = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class ShapeArrays:
    """Costs of S shapes stacked; see :class:`ShapeCosts` for the fields.

    Attributes
    ----------
    row
        (S,) int, row of the cost table.
    fixed, layer, embed, head, cap, cap_first, cap_last, cap_both
        (S, G).
    hop, ret, occupancy, micro_batches, in_flight, max_interval
        (S,).
    order
        (S, G) int, groups by ascending layer time.
    """

    row: IndexArray
    fixed: FloatArray
    layer: FloatArray
    embed: FloatArray
    head: FloatArray
    cap: FloatArray
    cap_first: FloatArray
    cap_last: FloatArray
    cap_both: FloatArray
    hop: FloatArray
    ret: FloatArray
    occupancy: FloatArray
    micro_batches: FloatArray
    in_flight: FloatArray
    max_interval: FloatArray
    order: IndexArray


def shape_arrays(
    instance: PlacementInstance,
    groups: Groups,
    shapes: tuple[tuple[int, int, int], ...],
    use_mean_layers: bool = False,
) -> ShapeArrays:
    """Return the costs of all shapes (row, K, b) as arrays; the numbers of :func:`shape_costs`.

    With unequal layers the smallest times and bytes are taken, which makes values bounds; `use_mean_layers` takes means
    instead, which makes them estimates.
    """
    table, classes = instance.table, groups.classes
    row = np.array([s[0] for s in shapes], np.int64)
    k = np.array([s[1] for s in shapes], np.int64)
    q = k * np.array([s[2] for s in shapes], np.int64)
    held = table.weight_bytes[None] + q[:, None, None] * table.kv_bytes[None]
    layer_bytes = (np.ceil(held.mean(axis=2)).astype(np.int64) if use_mean_layers else held.min(axis=2))[:, classes]
    free = (table.capacity_bytes - table.workspace_bytes[row])[:, classes]
    embed_bytes, head_bytes = table.embed_bytes[classes][None], table.head_bytes[row][:, classes]

    def cap(extra: NDArray[np.int64] | int) -> FloatArray:
        room = free - extra
        layers = np.where(layer_bytes > 0, room // np.maximum(layer_bytes, 1), UNLIMITED_LAYERS)
        return np.asarray(np.where(room < 0, -1, np.minimum(layers, UNLIMITED_LAYERS)), dtype=np.float64)

    def ticks(values: FloatArray) -> FloatArray:
        return np.asarray(values[row][:, classes] / TICK_S)

    links = used_links(table)

    def least(values: FloatArray) -> FloatArray:
        return np.asarray(values[row][:, links].min(axis=1) / TICK_S if links.size else np.zeros(row.size))

    limit = instance.max_interval_s
    layer = ticks(quantise(table.layer_s.mean(axis=2)) if use_mean_layers else table.layer_s.min(axis=2))
    return ShapeArrays(
        row=row,
        fixed=ticks(table.fixed_s),
        layer=layer,
        embed=ticks(table.embed_s),
        head=ticks(table.head_s),
        cap=cap(0),
        cap_first=cap(embed_bytes),
        cap_last=cap(head_bytes),
        cap_both=cap(embed_bytes + head_bytes - table.tied_saving_bytes[classes][None]),
        hop=least(table.hop_s),
        ret=least(table.return_s),
        occupancy=np.maximum(least(table.occupancy_s), least(table.return_occupancy_s)),
        micro_batches=k.astype(np.float64),
        in_flight=q.astype(np.float64),
        max_interval=np.full(row.size, np.floor(limit / TICK_S) if limit is not None else np.inf),
        order=np.argsort(layer, axis=1, kind="stable"),
    )


class FlatBatch:
    """A batch of X choices; every choice has at least two devices.

    Parameters
    ----------
    shapes
        Stacked costs.
    counts
        (X, G) devices of each group.
    shape
        (X,) index into the shapes.
    first, last
        (X,) groups of the first and last stage; ``None`` relaxes both (least embedding and head times, no bytes).
    num_layers
        L.
    route, occupancy
        (X,) ticks: sum of hops with return, and largest link occupancy, of each choice; ``None`` takes the shapes' own.
    """

    def __init__(
        self,
        shapes: ShapeArrays,
        counts: NDArray[np.integer],
        shape: IndexArray,
        first: IndexArray | None,
        last: IndexArray | None,
        num_layers: int,
        route: FloatArray | None = None,
        occupancy: FloatArray | None = None,
    ) -> None:
        at = shape[None, :]
        base = np.broadcast_to(np.arange(shapes.fixed.shape[1])[:, None], (shapes.fixed.shape[1], shape.size))
        n = np.ascontiguousarray(counts.T).astype(np.float64)
        devices = n.sum(axis=0)
        if route is None:
            route = (devices - 1) * shapes.hop[shape] + shapes.ret[shape]
        item, cap, fixed = [base], [shapes.cap[at, base]], [shapes.fixed[at, base]]
        relaxed = np.zeros(shape.size)
        if first is None or last is None:
            used = n > 0
            relaxed = np.where(used, shapes.embed[at, base], np.inf).min(axis=0)
            relaxed = relaxed + np.where(used, shapes.head[at, base], np.inf).min(axis=0)
        else:
            x = np.arange(shape.size)
            for end, extra, most in ((first, shapes.embed, shapes.cap_first), (last, shapes.head, shapes.cap_last)):
                n[end, x] -= 1
                item.append(end[None, :])
                cap.append(most[shape, end][None, :])
                fixed.append((shapes.fixed[shape, end] + extra[shape, end])[None, :])
            n = np.concatenate([n, np.ones((2, shape.size))])
        items = np.concatenate(item)
        layer = shapes.layer[at, items]
        order = np.argsort(layer, axis=0, kind="stable")
        self.n = np.take_along_axis(n, order, axis=0)
        self.layer = np.take_along_axis(layer, order, axis=0)
        self.fixed = np.take_along_axis(np.concatenate(fixed), order, axis=0)
        self.cap = np.take_along_axis(np.concatenate(cap), order, axis=0)
        self.is_used = self.n > 0
        self.least = np.where(self.is_used, 1.0, -np.inf)
        self.steps = self.layer.copy()
        self.steps[:-1] -= self.layer[1:]
        self.micro_batches = shapes.micro_batches[shape]
        self.ceiling = shapes.max_interval[shape]
        self.floor = self.micro_batches * (shapes.occupancy[shape] if occupancy is None else occupancy)
        self.remaining = num_layers - devices
        self.total = np.einsum("gx,gx->x", self.n, self.fixed + self.layer) + route + relaxed
        self.has_free_layers = bool(np.any(self.layer <= 0))

    def take(self, index: NDArray[np.int64]) -> FlatBatch:
        """Return part of the batch."""
        part = object.__new__(FlatBatch)
        for name in ("n", "fixed", "layer", "cap", "least", "steps", "is_used"):
            setattr(part, name, getattr(self, name)[:, index])
        for name in ("micro_batches", "ceiling", "floor", "remaining", "total"):
            setattr(part, name, getattr(self, name)[index])
        part.has_free_layers = self.has_free_layers
        return part

    def probe(self, interval: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return three (X,) arrays of ticks: least sum, and both ends of the range of intervals with equal caps.

        The least sum of stages and hops with no stage above ``interval / K`` is infinite where caps don't cover the
        model. Caps, hence sums, stay the same from the second array up to, not including, the third.
        """
        budget = np.floor(interval / self.micro_batches) - self.fixed
        if self.has_free_layers:
            with np.errstate(divide="ignore", invalid="ignore"):
                limit = np.where(self.layer > 0, np.floor(budget / self.layer), np.where(budget >= 0, 2.0**30, -1.0))
        else:
            limit = np.floor(budget / self.layer)
        most = np.minimum(limit, self.cap)
        covered = (most >= self.least).all(axis=0)
        edge = self.fixed + self.layer * np.maximum(most, 0.0)
        before = self.micro_batches * np.where(self.is_used, edge, 0.0).max(axis=0)
        grows = self.is_used & (limit < self.cap)
        after = self.micro_batches * np.where(grows, self.fixed + self.layer * (limit + 1), np.inf).min(axis=0)
        most -= 1
        np.maximum(most, 0, out=most)
        most *= self.n
        filled = np.cumsum(most, axis=0)
        covered &= (filled[-1] >= self.remaining) & (self.remaining >= 0)
        np.minimum(filled, self.remaining, out=filled)
        total = self.total + np.einsum("gx,gx->x", filled, self.steps)
        return np.where(covered, total, np.inf), before, after

    def reaches(self, interval: FloatArray) -> NDArray[np.bool_]:
        """Return (X,) bool: whether each choice reaches its interval (ticks)."""
        total, _, _ = self.probe(interval)
        return np.asarray((total <= interval) & (self.floor <= interval) & (interval <= self.ceiling))

    def shortest(self, upper: FloatArray, relative_step: float = 0.0) -> FloatArray:
        """Return (X,) ticks: shortest interval up to `upper`, infinite where that isn't reached.

        With a `relative_step` above zero the search stops at that width and the (reached) upper end is returned.

        All times must be whole ticks: every step then settles at least one tick, so the search ends.

        Notes
        -----
        Between two intervals where a cap changes the least sum T is constant, so one probe settles the whole range:
        I is reached there if and only if it is at least T. Bisection therefore runs over ranges, not over ticks, and
        takes about as many steps as the number of layers has binary digits.
        """
        best = np.full(upper.size, np.inf)
        top = np.floor(np.minimum(upper, self.ceiling))
        total, before, _ = self.probe(top)
        alive = np.flatnonzero((total <= top) & (self.floor <= top))
        if alive.size == 0:
            return best
        batch = self.take(alive)
        high = np.maximum(np.maximum(total, before)[alive], batch.floor)
        low = np.minimum(np.maximum(batch.probe(np.full(alive.size, 2.0**52))[0], batch.floor) - 1, high - 1)
        first = True
        while True:
            width = np.maximum(1.0, relative_step * high)
            open_ = high - low > width
            if not open_.any():
                break
            if open_.sum() * 3 < open_.size * 2:
                best[alive] = high
                left = np.flatnonzero(open_)
                batch, alive, high, low = batch.take(left), alive[left], high[left], low[left]
            middle = np.minimum(low + 1, high - 1) if first else np.maximum(np.floor((low + high) / 2), low)
            first = False
            total, before, after = batch.probe(middle)
            reached = np.maximum(total, batch.floor)
            good = reached <= middle
            high = np.where(good, np.minimum(high, np.maximum(reached, before)), np.minimum(high, reached))
            low = np.maximum(low, np.where(good, reached - 1, np.minimum(reached, after) - 1))
            low = np.minimum(low, high - 1)
        best[alive] = high
        return best
