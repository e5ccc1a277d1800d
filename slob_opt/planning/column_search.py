"""Candidate patterns for clusters whose box is too large to enumerate: neighbours of the patterns that prices favour.

Start from one- and two-group patterns. Solve the linear program over the candidates; look at all patterns that
differ from a pattern of its basis by one device more, one less, or one exchanged; keep those that earn more than
their price; repeat.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from slob_opt.cost.table import FloatArray, IntArray
from slob_opt.planning.instance import PlacementInstance
from slob_opt.planning.pattern_search import Candidates, PatternSearch
from slob_opt.planning.priced_lp import solve_master


def usage_of(search: PatternSearch, counts: NDArray[np.int64]) -> IntArray:
    """Return (P, pools) units of cards of each pattern."""
    return np.asarray(counts @ search.groups.usage.T)


SIZES = (1, 2, 3, 4, 5, 6, 8, 10, 13, 17, 22, 30, 40)
"""Counts that starting patterns take; chosen, about a quarter apart."""

MAX_ROUNDS = 25
MAX_NEIGHBOURS_FROM = 16


def starting_patterns(search: PatternSearch) -> NDArray[np.int64]:
    """Return (P, G) patterns of one or two groups that could hold the model in one shape at least."""
    available = np.minimum(search.groups.available, search.num_layers)
    groups = available.size
    caps = np.minimum(np.maximum(search.shapes.cap.max(axis=0), 0), search.num_layers)
    rows: list[NDArray[np.int64]] = []
    for g in range(groups):
        for n in range(1, int(available[g]) + 1):
            if n * caps[g] >= search.num_layers:
                row = np.zeros(groups, np.int64)
                row[g] = n
                rows.append(row)
                if n * caps[g] > 3 * search.num_layers:
                    break
        for h in range(g):
            for n in SIZES:
                for m in SIZES:
                    if n > available[g] or m > available[h]:
                        continue
                    if search.num_layers <= n * caps[g] + m * caps[h] <= 2.5 * search.num_layers:
                        row = np.zeros(groups, np.int64)
                        row[g], row[h] = n, m
                        rows.append(row)
    for order in (np.argsort(-caps, kind="stable"), search.shapes.order[0]):
        rows.append(_filled(order, available, caps, search))
    everything = available.copy()
    if everything.sum() <= search.num_layers:
        rows.append(everything)
    found = np.unique(np.array(rows, np.int64).reshape(-1, groups), axis=0)
    return found[fits_pools(search, found)]


def fits_pools(search: PatternSearch, counts: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return (P,) bool: patterns that are not empty and take no more cards than there are."""
    return np.asarray(np.all(usage_of(search, counts) <= search.groups.pool_cards, axis=1) & (counts.sum(axis=1) > 0))


def _filled(
    order: NDArray[np.int64], available: NDArray[np.int64], caps: FloatArray, search: PatternSearch
) -> NDArray[np.int64]:
    """Return the pattern that takes devices group by group until they hold the model, as far as cards allow."""
    counts = np.zeros(available.size, np.int64)
    left = search.groups.pool_cards.copy()
    room = 0.0
    for g in order:
        pool = search.groups.pools[g]
        while caps[g] > 0 and room < search.num_layers and counts[g] < available[g]:
            if left[pool] < search.groups.sizes[g] or counts.sum() >= search.num_layers:
                break
            counts[g] += 1
            left[pool] -= search.groups.sizes[g]
            room += caps[g]
    return counts


def neighbours(counts: NDArray[np.int64], available: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return (X, G) patterns one device more, less or exchanged away from some patterns."""
    groups = counts.shape[1]
    unit = np.eye(groups, dtype=np.int64)
    moves = np.concatenate(
        [unit, -unit, (unit[:, None, :] - unit[None, :, :]).reshape(-1, groups)[~np.eye(groups, dtype=bool).ravel()]]
    )
    found = (counts[:, None, :] + moves[None]).reshape(-1, groups)
    good = np.all(found >= 0, axis=1) & np.all(found <= available, axis=1) & (found.sum(axis=1) > 0)
    return np.unique(found[good], axis=0)


def join(a: Candidates, b: Candidates) -> Candidates:
    """Return both sets of candidates."""
    pairs = [np.concatenate([getattr(a, n), getattr(b, n)]) for n in Candidates.__slots__]
    return Candidates(*pairs)


def subset(found: Candidates, index: NDArray[np.int64]) -> Candidates:
    """Return some candidates."""
    return Candidates(*(getattr(found, n)[index] for n in Candidates.__slots__))


def priced_candidates(search: PatternSearch, start: NDArray[np.int64] | None = None) -> Candidates:
    """Return candidates around the basis of the linear program."""
    counts = starting_patterns(search)
    if start is not None and start.size:
        counts = np.unique(np.concatenate([counts, start]), axis=0)
    found = search.candidates(counts)
    found = subset(found, np.flatnonzero(found.rate > 0))
    if not search.instance.is_throughput:
        return _descend(search, found)
    seen = {row.tobytes() for row in counts}
    cards = search.groups.pool_cards
    for _ in range(MAX_ROUNDS):
        if found.rate.size == 0:
            return found
        usage = usage_of(search, found.counts)
        share, prices = solve_master(usage, found.rate, cards)
        basis = np.argsort(-share, kind="stable")[:MAX_NEIGHBOURS_FROM]
        basis = basis[share[basis] > 1e-9]
        near = np.argsort(usage @ prices - found.rate, kind="stable")[:MAX_NEIGHBOURS_FROM]
        around = neighbours(found.counts[np.union1d(basis, near)], search.groups.available)
        fresh = np.array([row for row in around if row.tobytes() not in seen], np.int64).reshape(-1, around.shape[1])
        seen.update(row.tobytes() for row in fresh)
        fresh = fresh[fits_pools(search, fresh)]
        if fresh.size == 0:
            break
        limits = search.rate_limits(fresh).max(axis=1)
        limits = np.maximum(limits, np.where(fresh.sum(axis=1) == 1, np.inf, 0.0))
        fresh = fresh[limits > (usage_of(search, fresh) @ prices) * 0.98]
        new = search.candidates(fresh)
        better = new.rate > (usage_of(search, new.counts) @ prices) * (1 + 1e-6)
        found = join(found, subset(new, np.flatnonzero(new.rate > 0)))
        if not np.any(better):
            break
    return found


def _descend(search: PatternSearch, found: Candidates) -> Candidates:
    """Follow neighbours of the best patterns for a single pipeline."""
    seen = {row.tobytes() for row in found.counts}
    for _ in range(MAX_ROUNDS):
        if found.rate.size == 0:
            return found
        best = found.rate.max()
        top = np.argsort(-found.rate, kind="stable")[:4]
        around = neighbours(found.counts[top], search.groups.available)
        fresh = np.array([row for row in around if row.tobytes() not in seen], np.int64).reshape(-1, around.shape[1])
        seen.update(row.tobytes() for row in fresh)
        fresh = fresh[fits_pools(search, fresh)]
        if fresh.size == 0:
            break
        new = search.candidates(fresh)
        found = join(found, subset(new, np.flatnonzero(new.rate > 0)))
        if found.rate.max() <= best:
            break
    return found


def dual_prices(instance: PlacementInstance) -> FloatArray | None:
    """Return (G,) tokens/s a device by the linear program over searched patterns; ``None`` when none has a rate."""
    search = PatternSearch(instance)
    found = priced_candidates(search)
    if found.rate.size == 0:
        return None
    _, prices = solve_master(usage_of(search, found.counts), found.rate, search.groups.pool_cards)
    return np.asarray(search.groups.usage.T @ prices)
