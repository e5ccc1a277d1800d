"""Neighbours of an order of devices: exchanges, reversals, shifts, devices taken out, put in or replaced."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

IndexArray = NDArray[np.int64]

LONGEST_FULL = 24
"""Stages up to which every pair of positions is tried; beyond, only pairs at most this far apart."""


@lru_cache(maxsize=256)
def permutations_near(size: int) -> IndexArray:
    """Return (X, size) int: positions of an order after one swap, reversal of a part, or shift of one device.

    The identity is not among them. The array is shared, do not write to it.
    """
    base = np.arange(size)
    rows: dict[bytes, IndexArray] = {}

    def enter(row: IndexArray) -> None:
        rows.setdefault(row.tobytes(), row)

    for i in range(size):
        for j in range(i + 1, min(size, i + LONGEST_FULL)):
            swapped = base.copy()
            swapped[[i, j]] = swapped[[j, i]]
            enter(swapped)
            enter(np.concatenate([base[:i], base[i : j + 1][::-1], base[j + 1 :]]))
            enter(np.concatenate([base[:i], base[i + 1 : j + 1], base[i : i + 1], base[j + 1 :]]))
            enter(np.concatenate([base[:i], base[j : j + 1], base[i:j], base[j + 1 :]]))
    found = np.array(list(rows.values()), np.int64).reshape(-1, size)
    found.setflags(write=False)
    return found


@lru_cache(maxsize=256)
def insertions(size: int) -> IndexArray:
    """Return (size + 1, size + 1) int: positions after putting number `size` into each gap of an order."""
    base = np.arange(size)
    found = np.array([[*base[:i], size, *base[i:]] for i in range(size + 1)], np.int64)
    found.setflags(write=False)
    return found


@lru_cache(maxsize=256)
def replacements(size: int) -> IndexArray:
    """Return (size, size) int: positions after putting number `size` in the place of each device of an order."""
    found = np.where(np.eye(size, dtype=bool), size, np.arange(size)[None, :])
    found.setflags(write=False)
    return found


@lru_cache(maxsize=256)
def removals(size: int) -> IndexArray:
    """Return (size, size - 1) int: positions after taking each device out of an order."""
    found = np.array([[j for j in range(size) if j != i] for i in range(size)], np.int64).reshape(size, size - 1)
    found.setflags(write=False)
    return found


def neighbours(
    order: Sequence[int], spare: Sequence[int], clash: NDArray[np.bool_], parts: dict[int, tuple[tuple[int, ...], ...]],
    max_devices: int,
) -> list[IndexArray]:  # fmt: skip
    """Return arrays (X, length) of orders one move away, one array or more a length.

    Parameters
    ----------
    order
        Devices of a pipeline.
    spare
        Devices that may be put in; they may share cards with devices of the order, which then leave it.
    clash
        (D, D) bool: pairs that share a card.
    parts
        For a device of several cards, sets of smaller devices that can take its place.
    max_devices
        Longest order.
    """
    at = np.array(order, np.int64)
    size = at.size
    found = [at[permutations_near(size)]] if size > 1 else []
    if size > 1:
        found.append(at[removals(size)])
    for device in spare:
        hit = np.flatnonzero(clash[device, at])
        with_it = np.append(at, device)
        if hit.size == 0:
            found.append(with_it[replacements(size)])
            if size < max_devices:
                found.append(with_it[insertions(size)])
        elif hit.size == 1:
            found.append(with_it[replacements(size)[hit]])
        else:
            rest = np.delete(at, hit)
            found.append(np.append(rest, device)[insertions(rest.size)])
    for position, device in enumerate(order):
        for group in parts.get(device, ()):
            if size - 1 + len(group) <= max_devices:
                found.append(np.array([[*order[:position], *group, *order[position + 1 :]]], np.int64))
    return found
