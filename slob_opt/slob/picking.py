"""Which candidates to use: one for an interval, a packing for throughput."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from slob_opt.cost.table import FloatArray, IntArray
from slob_opt.planning.packing import num_states, pack
from slob_opt.slob.pattern_search import Candidates, PatternSearch

MAX_WORK = 3e6
"""States times patterns up to which the packing program is run at once (about 10 ms)."""

MAX_ROUNDS = 8
"""Times that a pick is repeated after making its patterns exact. Chosen: two or three are usual."""


def usage_of(search: PatternSearch, counts: NDArray[np.int64]) -> IntArray:
    """Return (P, pools) cards of each pattern."""
    return np.asarray(counts @ search.groups.usage.T)


def pick(search: PatternSearch, found: Candidates, rng: np.random.Generator) -> list[int]:
    """Return candidates to build, all exact; empty when none is possible."""
    for _ in range(MAX_ROUNDS):
        chosen = pick_once(search, found, rng)
        fresh = np.array(sorted({i for i in chosen if not found.is_exact[i]}), np.int64)
        if fresh.size == 0:
            return chosen
        search.make_exact(found, fresh)
    chosen = [i for i in chosen if found.rate[i] > 0]
    return chosen


def pick_once(search: PatternSearch, found: Candidates, rng: np.random.Generator) -> list[int]:
    """Return the best candidates by the rates known now."""
    useful = np.flatnonzero(found.rate > 0)
    if useful.size == 0:
        return []
    if not search.instance.is_throughput:
        return [int(np.argmax(found.rate))]
    usage = usage_of(search, found.counts[useful])
    cards = search.groups.pool_cards
    rates = found.rate[useful]
    if num_states(cards) * useful.size <= MAX_WORK:
        return [int(useful[i]) for i in pack(cards, usage, rates)[1]]
    keep = undominated_quick(usage, rates)
    useful, usage, rates = useful[keep], usage[keep], rates[keep]
    return [int(useful[i]) for i in pack_large(cards, usage, rates, rng)]


def undominated_quick(usage: IntArray, rates: FloatArray) -> NDArray[np.int64]:
    """Return indices of patterns not beaten by one with at most the same cards (blockwise comparison)."""
    order = np.lexsort((usage.sum(axis=1), -rates))
    if order.size > 2000:
        order = order[:2000]
    sorted_usage = usage[order]
    beats = np.all(sorted_usage[:, None, :] <= sorted_usage[None, :, :], axis=2)
    beats &= np.arange(order.size)[:, None] < np.arange(order.size)[None, :]
    return np.asarray(np.sort(order[~beats.any(axis=0)]))


def greedy(cards: IntArray, usage: IntArray, rates: FloatArray, prices: FloatArray) -> list[int]:
    """Return patterns taken by rate per price while they fit."""
    left = cards.copy()
    chosen: list[int] = []
    worth = rates / np.maximum(usage @ prices, 1e-12)
    for index in np.argsort(-worth, kind="stable"):
        need = usage[index]
        copies = int(np.min(left[need > 0] // need[need > 0]))
        if copies > 0:
            chosen += [int(index)] * copies
            left = left - copies * need
    return chosen


def pack_large(cards: IntArray, usage: IntArray, rates: FloatArray, rng: np.random.Generator) -> list[int]:
    """Return a good packing when the box is too large for the program: rounded linear program, then ruin and re-pack."""
    from scipy.optimize import linprog

    solved = linprog(-rates, A_ub=usage.T.astype(np.float64), b_ub=cards.astype(np.float64), method="highs")
    prices = np.maximum(0.0, -np.asarray(solved.ineqlin.marginals))
    whole = np.floor(solved.x + 1e-9).astype(np.int64)
    chosen = [i for i in range(usage.shape[0]) for _ in range(whole[i])]
    left = cards - (usage[chosen].sum(axis=0) if chosen else 0)
    reduced = usage @ prices - rates
    near = np.argsort(reduced, kind="stable")[:400]
    chosen += [int(near[i]) for i in greedy(left, usage[near], rates[near], prices)] if near.size else []
    return repack(cards, usage, rates, chosen, prices, rng)


def repack(
    cards: IntArray,
    usage: IntArray,
    rates: FloatArray,
    chosen: list[int],
    prices: FloatArray,
    rng: np.random.Generator,
    rounds: int = 24,
) -> list[int]:
    """Return a packing improved by taking some pipelines out and packing their cards and the free ones again, exactly."""
    near = np.argsort(usage @ prices - rates, kind="stable")[:120]
    stale = 0
    for _ in range(rounds):
        free = cards - (usage[chosen].sum(axis=0) if chosen else 0)
        order = rng.permutation(len(chosen))
        out: list[int] = []
        for position in order:
            if np.prod((free + usage[chosen[position]] + 1).astype(np.float64)) * near.size > MAX_WORK / 4:
                continue
            free = free + usage[chosen[position]]
            out.append(int(position))
        if not out:
            return chosen
        before = float(sum(rates[chosen[p]] for p in out))
        fits = near[np.all(usage[near] <= free, axis=1)]
        value, again = pack(free, usage[fits], rates[fits])
        if value > before * (1 + 1e-12):
            chosen = [c for p, c in enumerate(chosen) if p not in set(out)] + [int(fits[i]) for i in again]
            stale = 0
        else:
            stale += 1
            if stale >= 8:
                break
    return chosen
