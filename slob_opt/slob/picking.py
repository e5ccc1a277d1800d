"""Which candidates to use: one for an interval, a packing for throughput."""

from __future__ import annotations

import numpy as np

from slob_opt.cost.table import FloatArray, IntArray
from slob_opt.planning.column_search import usage_of
from slob_opt.planning.packing import best_values, num_states, pack, trace
from slob_opt.planning.pattern_search import COARSE_STEP, Candidates, PatternSearch
from slob_opt.planning.priced_lp import solve_master

MAX_WORK = 4e8
"""States times patterns up to which the packing program is run at once (most patterns are skipped; 0.3 s at most)."""

NEAR = 60
"""Candidates closest to their price that are made exact in a round of a large packing."""

NUM_EXACT = (1, 16, 48, 96)
"""Candidates that are made exact in each round of a small packing, beside the picked ones, when that is above 1."""

MAX_ROUNDS = 8
"""Times that a large pick is repeated after making its patterns exact. Chosen: two or three are usual."""


def pick(search: PatternSearch, found: Candidates, rng: np.random.Generator) -> list[int]:
    """Return candidates to build, all exact; empty when none is possible."""
    if not search.instance.is_throughput:
        return pick_one(search, found)
    if num_states(search.groups.pool_cards) * found.rate.size > MAX_WORK:
        return pick_large(search, found, rng)
    return pick_small(search, found)


def pick_one(search: PatternSearch, found: Candidates) -> list[int]:
    """Return the candidate with the best exact rate; empty when none is possible."""
    step = 4
    while True:
        best = float(found.rate[found.is_exact].max(initial=0.0))
        hopeful = np.flatnonzero(~found.is_exact & (found.rate * (1 + 2 * COARSE_STEP) > best))
        if hopeful.size == 0:
            break
        search.make_exact(found, hopeful[np.argsort(-found.rate[hopeful], kind="stable")[:step]])
        step *= 2
    return [int(np.argmax(np.where(found.is_exact, found.rate, 0.0)))] if best > 0 else []


def pick_small(search: PatternSearch, found: Candidates) -> list[int]:
    """Return the best packing, making rates exact until all that could be in a better one are.

    A candidate could be when its rate and the best packing of the cards it leaves, all by the rates known now, come to
    more than the best packing of exact candidates.
    """
    cards, usage = search.groups.pool_cards, usage_of(search, found.counts)
    for num_exact in (*NUM_EXACT, 0):
        useful = np.flatnonzero(found.rate > 0)
        if useful.size == 0:
            return []
        value, kept = best_values(cards, usage[useful], found.rate[useful])
        chosen = useful[list(trace(value, cards, usage[useful], found.rate[useful], kept))]
        if np.all(found.is_exact[chosen]):
            return [int(i) for i in chosen]
        fresh = np.unique(chosen[~found.is_exact[chosen]])
        if num_exact == 0:
            break
        if num_exact > 1:
            open_ = useful[~found.is_exact[useful]]
            reach = found.rate[open_] + value[tuple((cards - usage[open_]).T)]
            fresh = np.union1d(fresh, open_[np.argsort(-reach, kind="stable")[:num_exact]])
        search.make_exact(found, fresh)
    found.rate[~found.is_exact] = 0.0
    useful = np.flatnonzero(found.rate > 0)
    return [int(useful[i]) for i in pack(cards, usage[useful], found.rate[useful])[1]] if useful.size else []


def pick_large(search: PatternSearch, found: Candidates, rng: np.random.Generator) -> list[int]:
    """Return a packing by the linear program over exact candidates near its prices, rounded, repaired and re-packed."""
    cards = search.groups.pool_cards
    for _ in range(MAX_ROUNDS):
        useful = np.flatnonzero(found.rate > 0)
        if useful.size == 0:
            return []
        usage, rates = usage_of(search, found.counts[useful]), found.rate[useful]
        share, prices = solve_master(usage, rates, cards)
        near = useful[np.argsort(usage @ prices - rates, kind="stable")[:NEAR]]
        fresh = near[~found.is_exact[near]]
        if fresh.size == 0 or np.all(found.is_exact[useful[share > 1e-9]]):
            break
        search.make_exact(found, fresh)
    useful = np.flatnonzero((found.rate > 0) & found.is_exact)
    if useful.size == 0:
        return []
    usage, rates = usage_of(search, found.counts[useful]), found.rate[useful]
    share, prices = solve_master(usage, rates, cards)
    whole = np.floor(share + 1e-9).astype(np.int64)
    chosen = [i for i in range(useful.size) for _ in range(int(whole[i]))]
    left = cards - (usage[chosen].sum(axis=0) if chosen else 0)
    near = np.argsort(usage @ prices - rates, kind="stable")[:400]
    chosen += [int(near[i]) for i in greedy(left, usage[near], rates[near], prices)]
    return [int(useful[i]) for i in repack(cards, usage, rates, chosen, prices, rng)]


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


def repack(
    cards: IntArray,
    usage: IntArray,
    rates: FloatArray,
    chosen: list[int],
    prices: FloatArray,
    rng: np.random.Generator,
    rounds: int = 24,
) -> list[int]:
    """Return a packing improved by taking some pipelines out and packing their cards and the free ones again."""
    near = np.argsort(usage @ prices - rates, kind="stable")[:120]
    stale = 0
    for _ in range(rounds):
        free = cards - (usage[chosen].sum(axis=0) if chosen else 0)
        order = rng.permutation(len(chosen))
        out: list[int] = []
        for position in order:
            if np.prod((free + usage[chosen[position]] + 1).astype(np.float64)) * near.size > MAX_WORK / 16:
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
