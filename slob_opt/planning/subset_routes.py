"""Shortest routes through every subset of at most a dozen devices, by first and last device (Held and Karp 1962)."""

from __future__ import annotations

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
    d = hop.shape[0]
    routes = np.full((1 << d, d, d), np.inf)
    masks = np.arange(1 << d)
    members = np.array([bin(m).count("1") for m in masks])
    for i in range(d):
        routes[1 << i, i, i] = 0.0
    for size in range(1, d):
        level = masks[members == size]
        for j in range(d):
            sources = level[(level >> j) & 1 == 0]
            if sources.size:
                routes[sources | (1 << j), :, j] = np.min(routes[sources] + hop[:, j], axis=2)
    return routes


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
