"""Shortest routes through every subset of at most a dozen devices, by first and last device (Held and Karp 1962)."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from slob_opt.cost.table import FloatArray

MAX_DEVICES = 13
"""Largest number of devices whose subsets are enumerated (13 devices: 8,192 subsets, 11 MB of routes)."""


def route_lengths(hop: FloatArray) -> FloatArray:
    """Return (2 ** D, D, D): least sum of hops that visits exactly a subset, from a first to a last device.

    Parameters
    ----------
    hop
        (D, D) length of the hop from row to column; infinite where it is not allowed.

    Notes
    -----
    Entry ``[mask, i, j]`` is infinite when i or j is not in the mask; ``[1 << i, i, i]`` is zero.
    """
    return np.asarray(stacked_route_lengths(hop[None])[0])


def stacked_route_lengths(hops: FloatArray) -> FloatArray:
    """Return (R, 2 ** D, D, D): :func:`route_lengths` of R matrices of hops (R, D, D) at once."""
    num_rows, d, _ = hops.shape
    # [last, mask, first and row]: each step below is then one operation on whole planes.
    routes = np.full((d, 1 << d, d, num_rows), np.inf)
    every = np.arange(d)
    routes[every, 1 << every, every] = 0.0
    routes = routes.reshape(d, 1 << d, d * num_rows)
    step = np.broadcast_to(hops.transpose(1, 2, 0)[:, :, None, :], (d, d, d, num_rows)).reshape(d, d, d * num_rows)
    for masks, nexts in _extensions(d):
        shortest = routes[0].take(masks, axis=0)
        shortest += step[0].take(nexts, axis=0)
        for at in range(1, d):
            other = routes[at].take(masks, axis=0)
            other += step[at].take(nexts, axis=0)
            np.minimum(shortest, other, out=shortest)
        routes[nexts, masks | (1 << nexts)] = shortest
    return routes.reshape(d, 1 << d, d, num_rows).transpose(3, 1, 2, 0)


@lru_cache(maxsize=MAX_DEVICES)
def _extensions(num_devices: int) -> tuple[tuple[NDArray[np.int64], NDArray[np.int64]], ...]:
    """Return, for each size of subset from one up, all (subset, device outside it) pairs as two arrays."""
    masks = np.arange(1 << num_devices)
    outside = (masks[:, None] >> np.arange(num_devices)) & 1 == 0
    sizes = num_devices - outside.sum(axis=1)
    found = []
    for size in range(1, num_devices):
        level = masks[sizes == size]
        row, device = np.nonzero(outside[level])
        found.append((level[row], device))
    return tuple(found)


def route_order(hop: FloatArray, devices: list[int], first: int, last: int) -> tuple[int, ...]:
    """Return the order in which a shortest route visits `devices`, from `first` to `last`."""
    if first == last:
        return (first,)
    local = {device: i for i, device in enumerate(devices)}
    small = hop[np.ix_(devices, devices)]
    routes = route_lengths(small)
    mask, at = (1 << len(devices)) - 1, local[last]
    start = local[first]
    order = [last]
    while at != start:
        before_mask = mask & ~(1 << at)
        steps = routes[before_mask, start, :] + small[:, at]
        mask, at = before_mask, int(np.argmin(steps))
        order.append(devices[at])
    return tuple(reversed(order))


def compatible_subsets(device_cards: tuple[tuple[int, ...], ...]) -> NDArray[np.bool_]:
    """Return (2 ** D,) bool: whether no two devices of the subset share a card."""
    d = len(device_cards)
    masks = np.arange(1 << d)
    good = np.ones(1 << d, dtype=bool)
    for i in range(d):
        for j in range(i):
            if set(device_cards[i]) & set(device_cards[j]):
                good &= ~(((masks >> i) & 1 == 1) & ((masks >> j) & 1 == 1))
    return good
