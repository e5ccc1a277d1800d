"""Packing patterns into pools of cards: max-plus dynamic program over the box of card counts."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from slob_opt.cost.table import FloatArray, IntArray

MAX_STATES = 4_000_000
"""Largest box the dynamic program is run on (8 bytes a state)."""


def num_states(cards: IntArray) -> float:
    """Return the size of the box of card counts."""
    return float(np.prod(cards.astype(np.float64) + 1))


def pack(cards: IntArray, usage: IntArray, rates: FloatArray) -> tuple[float, tuple[int, ...]]:
    """Return the largest sum of rates of patterns that fit the pools together, and the patterns (with repeats).

    Parameters
    ----------
    cards
        (pools,) cards of each pool.
    usage
        (P, pools) cards of each pattern, none of them all zero.
    rates
        (P,) tokens/s.

    Notes
    -----
    For each pattern in turn (fewest cards first) and each copy that fits, ``value[s] = max(value[s], value[s - usage]
    + rate)`` over all states at once; after the last pattern each state holds the best packing into that many cards.
    A pattern that smaller ones already match on its own cards is skipped, which never loses value.

    Examples
    --------
    >>> pack(np.array([3]), np.array([[2], [1]]), np.array([5.0, 2.0]))
    (7.0, (0, 1))
    """
    value, kept = best_values(cards, usage, rates)
    return float(value[tuple(cards)]), trace(value, cards, usage, rates, kept)


def best_values(cards: IntArray, usage: IntArray, rates: FloatArray) -> tuple[FloatArray, NDArray[np.int64]]:
    """Return the largest sum of rates for every number of cards of each pool, and the patterns that may be in it.

    Parameters as in :func:`pack`. The first array has the shape ``cards + 1``.
    """
    value = np.zeros(tuple(int(c) + 1 for c in cards))
    kept: list[int] = []
    limit = [int(c) for c in cards]
    fits = np.flatnonzero(np.all(usage <= cards, axis=1))
    order = fits[np.lexsort((-rates[fits], usage[fits].sum(axis=1)))]
    flat, place = value.reshape(-1), np.ravel_multi_index(tuple(usage[order].T), value.shape)
    for index, at, rate in zip(order.tolist(), place.tolist(), rates[order].tolist(), strict=True):
        if rate <= flat[at]:
            continue
        kept.append(index)
        need = usage[index].tolist()
        copies = min(c // n for n, c in zip(need, limit, strict=True) if n)
        tail = tuple(slice(n, None) for n in need)
        head = tuple(slice(None, c + 1 - n) for n, c in zip(need, limit, strict=True))
        for _ in range(copies):
            np.maximum(value[tail], value[head] + rate, out=value[tail])
    return value, np.array(kept, np.int64)


def trace(
    value: FloatArray, cards: IntArray, usage: IntArray, rates: FloatArray, keep: NDArray[np.int64]
) -> tuple[int, ...]:
    """Return patterns whose rates add up to the value of the full box; the first arguments from :func:`best_values`."""
    state = cards.copy()
    chosen: list[int] = []
    while value[tuple(state)] > 0:
        fits = keep[np.all(usage[keep] <= state, axis=1)]
        before = state - usage[fits]
        total = value[tuple(before.T)] + rates[fits]
        best = int(np.argmax(total))
        chosen.append(int(fits[best]))
        state = before[best]
    return tuple(sorted(chosen))
