"""The shortest interval of many patterns at once, exact in ticks.

A pattern says how many devices of each group a pipeline uses. At interval I with K micro-batches in flight a device
of group g may execute ``min(cap_g, floor((floor(I / K) - fixed_g) / layer_g))`` layers; each takes at least one.
Given these caps the sum of stage times is smallest when layers go to the smallest per-layer times first, so a
pattern reaches I if and only if the caps cover the model and that smallest sum plus hops is at most I. All times
are whole ticks below 2^52, so float64 divisions followed by floor are exact.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from slob_opt.cost.table import FloatArray
from slob_opt.planning.groups import ShapeCosts

BoolArray = NDArray[np.bool_]


def _fill(
    counts: FloatArray, costs: ShapeCosts, num_layers: int, interval: FloatArray, first: int | None, last: int | None
) -> tuple[BoolArray, FloatArray]:
    """Return whether caps cover the model, and the smallest sum of stage times, both (P,)."""
    per_stage = np.floor(interval / costs.num_micro_batches)
    order = np.argsort(costs.layer, kind="stable")
    remaining = num_layers - counts.sum(axis=0)
    covered = remaining >= 0
    total = np.zeros_like(per_stage)
    for g in order:
        n = counts[g]
        fixed, layer = costs.fixed[g], costs.layer[g]
        middle = n
        room = np.zeros_like(per_stage)
        for special, extra, cap in ((first, costs.embed, costs.cap_first), (last, costs.head, costs.cap_last)):
            if special == g:
                most = _cap(per_stage - fixed - extra[g], layer, cap[g])
                covered &= most >= 1
                room += most - 1
                total += extra[g]
                middle = middle - 1
        most = _cap(per_stage - fixed, layer, costs.cap[g])
        covered &= (most >= 1) | (middle <= 0)
        room += middle * (most - 1)
        take = np.minimum(remaining, np.maximum(room, 0))
        total += n * (fixed + layer) + take * layer
        remaining = remaining - take
    return covered & (remaining <= 0), total


def _cap(budget: FloatArray, layer: float, most: float) -> FloatArray:
    """Return the most layers within a time budget and a memory cap, (P,)."""
    if layer > 0:
        return np.asarray(np.minimum(np.floor(budget / layer), most))
    return np.asarray(np.where(budget >= 0, most, -1.0))


def reaches(
    counts: FloatArray,
    costs: ShapeCosts,
    num_layers: int,
    interval: FloatArray,
    first: int | None = None,
    last: int | None = None,
) -> BoolArray:
    """Return (P,) bool: whether each pattern reaches its interval with the given first and last groups.

    Parameters
    ----------
    counts
        (G, P) float64, devices of each group; at least two devices each (see :func:`single_interval` for one).
    interval
        (P,) float64, whole ticks.
    first, last
        Groups of the first and last stage, which `counts` must contain. ``None`` for both gives a relaxation: the
        smallest embedding and head times of the groups used, and no bytes for either.
    """
    interval = np.minimum(interval, costs.max_interval)
    devices = counts.sum(axis=0)
    covered, total = _fill(counts, costs, num_layers, interval, first, last)
    total += (devices - 1) * costs.hop + costs.ret
    if first is None:
        total += least_extras(counts, costs)
    return np.asarray(covered & (total <= interval) & (costs.num_micro_batches * costs.occupancy <= interval))


def least_extras(counts: FloatArray, costs: ShapeCosts) -> FloatArray:
    """Return (P,) ticks: smallest embedding time plus smallest head time among the groups that a pattern uses."""
    used = counts > 0
    embed = np.where(used, costs.embed[:, None], np.inf).min(axis=0)
    head = np.where(used, costs.head[:, None], np.inf).min(axis=0)
    return np.asarray(embed + head)


def single_interval(costs: ShapeCosts, num_layers: int) -> FloatArray:
    """Return (G,) ticks: interval of a pipeline that is one device; infinite when it does not fit or breaks the cap."""
    stage = costs.fixed + num_layers * costs.layer + costs.embed + costs.head
    interval = costs.num_micro_batches * stage
    return np.asarray(np.where((costs.cap_both >= num_layers) & (interval <= costs.max_interval), interval, np.inf))


def shortest_interval(
    counts: FloatArray,
    costs: ShapeCosts,
    num_layers: int,
    upper: FloatArray,
    first: int | None = None,
    last: int | None = None,
) -> FloatArray:
    """Return (P,) ticks: shortest interval each pattern reaches, infinite where it doesn't reach `upper`.

    Bisection over whole ticks, hence exact.
    """
    best = np.full(counts.shape[1], np.inf)
    upper = np.minimum(upper, costs.max_interval)
    upper = np.where(np.isfinite(upper), upper, interval_ceiling(costs, num_layers, counts))
    alive = np.flatnonzero(reaches(counts, costs, num_layers, upper, first, last))
    if alive.size == 0:
        return best
    n = counts[:, alive]
    high = np.floor(upper[alive])
    devices = n.sum(axis=0)
    low = n.T @ (costs.fixed + costs.layer) + (devices - 1) * costs.hop + costs.ret - 1.0
    while np.any(high - low > 1):
        middle = np.floor((low + high) / 2)
        good = reaches(n, costs, num_layers, middle, first, last)
        high = np.where(good, middle, high)
        low = np.where(good, low, middle)
    best[alive] = high
    return best


def interval_ceiling(costs: ShapeCosts, num_layers: int, counts: FloatArray) -> FloatArray:
    """Return (P,) ticks: an interval that any split of a pattern stays below."""
    slowest = (costs.fixed + num_layers * costs.layer + costs.embed + costs.head).max()
    devices = counts.sum(axis=0)
    return np.asarray(
        costs.num_micro_batches * max(slowest, costs.occupancy) + devices * (slowest + costs.hop) + costs.ret
    )


def pattern_split(
    counts: NDArray[np.int64], costs: ShapeCosts, num_layers: int, interval: float, first: int, last: int
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return groups and layers of the stages of one pattern at an interval it reaches, in execution order.

    The first stage is of group `first`, the last of group `last`; the others by group.
    """
    per_stage = float(np.floor(interval / costs.num_micro_batches))
    order: list[tuple[int, str]] = [(first, "first")]
    middle = counts.copy()
    middle[first] -= 1
    middle[last] -= 1
    order += [(g, "middle") for g in range(counts.size) for _ in range(int(middle[g]))]
    order.append((last, "last"))
    layers = [1] * len(order)
    remaining = num_layers - len(order)
    for index in sorted(range(len(order)), key=lambda i: (costs.layer[order[i][0]], i)):
        g, role = order[index]
        extra = {"first": costs.embed[g], "middle": 0.0, "last": costs.head[g]}[role]
        cap = {"first": costs.cap_first, "middle": costs.cap, "last": costs.cap_last}[role][g]
        most = _cap(np.array(per_stage - costs.fixed[g] - extra), float(costs.layer[g]), float(cap))
        take = int(min(remaining, float(most) - 1))
        layers[index] += take
        remaining -= take
    return tuple(g for g, _ in order), tuple(layers)
