"""Re-checks bounds that rest on counts of devices per group: prices, listed patterns, interval thresholds.

References
----------
Gilmore & Gomory 1961, "A linear programming approach to the cutting-stock problem", for prices over patterns; reduced
cost fixing (listing what falls short by less than the slack) as in Nemhauser & Wolsey 1988, section II.5.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from slob_opt.cost.table import FloatArray, IntArray
from slob_opt.planning.check_kernel import CapTables, cap_tables, fewest_micro_batches, lone_stage
from slob_opt.planning.check_reach import reaches
from slob_opt.planning.instance import PlacementInstance
from slob_opt.planning.ticks import (
    TICKS_PER_S,
    UNREACHABLE,
    GroupIndex,
    RowTicks,
    box_size,
    count_box,
    group_index,
    is_exact_by_counts,
    row_ticks,
    ticks_below,
)
from slob_opt.planning.verdict import RELATIVE_TOLERANCE, Verdict, claimed, failed, refuted, verified
from slob_opt.planning.witness import PatternWitness

MAX_PATTERNS = 2_000_000
"""Largest count box that is walked; beyond it a bound stays claimed. Chosen: about a minute of work."""
MAX_PACKING_CELLS = 4_000_000
CHUNK = 1 << 15


@dataclass(frozen=True, slots=True)
class PatternBox:
    """All patterns of an instance.

    Attributes
    ----------
    groups
        Groups and pools.
    rows
        Iteration shapes.
    caps
        Cap tables, one a row.
    """

    groups: GroupIndex
    rows: tuple[RowTicks, ...]
    caps: tuple[CapTables, ...]

    def chunks(self) -> Iterator[IntArray]:
        """Yield all non-empty patterns that the pools hold, (P, G) int64."""
        size = box_size(self.groups.available)
        for start in range(1, size, CHUNK):
            counts = count_box(self.groups.available, start, min(start + CHUNK, size))
            fits = np.all(counts @ self.groups.usage.T <= self.groups.pool_units, axis=1)
            yield counts[fits]


def pattern_box(instance: PlacementInstance, *, longest: int | None = None) -> PatternBox:
    """Return the patterns of an instance, with `longest` ticks instead of the objective's cap on the interval."""
    groups = group_index(instance.table)
    rows = row_ticks(instance, groups, longest=longest)
    return PatternBox(groups, rows, tuple(cap_tables(r) for r in rows))


def first_pattern_above(box: PatternBox, counts: IntArray, rates: FloatArray) -> tuple[int, str] | None:
    """Return index and description of a pattern that makes more than its rate; ``None`` when there is none.

    Parameters
    ----------
    box
        Shapes to try.
    counts
        (P, G) int64 patterns.
    rates
        (P,) float64 tokens/s; zero or less asks whether the pattern can work at all.

    Notes
    -----
    A pattern counts as better only when it beats its rate by more than `RELATIVE_TOLERANCE`.
    """
    with np.errstate(divide="ignore"):
        seconds_per_token = np.where(rates > 0, 1.0 / (np.maximum(rates, 1e-300) * (1 + RELATIVE_TOLERANCE)), np.inf)
    size = counts.sum(axis=1)
    chains = np.flatnonzero(size > 1)
    for row, caps in zip(box.rows, box.caps, strict=True):
        limits = np.minimum(row.batch_size * TICKS_PER_S * seconds_per_token, float(row.longest + 1))
        for alone in np.flatnonzero(size == 1).tolist():
            for k, interval in lone_stage(row, int(counts[alone].argmax())):
                if interval < k * limits[alone]:
                    return alone, _describe(counts[alone], row, k)
        overhead = (size - 1) * row.hop + row.ret
        hopeful = fewest_micro_batches(row, caps, counts[chains], overhead[chains], limits[chains], ends=None)
        hopeful_at = chains[hopeful > 0]
        if hopeful_at.size == 0:
            continue
        at_least = hopeful[hopeful > 0]
        for ends, holds in _possible_ends(counts[hopeful_at]):
            rows_at = hopeful_at[holds]
            k_found = fewest_micro_batches(
                row, caps, counts[rows_at], overhead[rows_at], limits[rows_at], ends=ends, at_least=int(at_least.min())
            )
            better = np.flatnonzero(k_found)
            if better.size:
                p = int(rows_at[better[0]])
                return p, _describe(counts[p], row, int(k_found[better[0]]))
    return None


def _possible_ends(counts: IntArray) -> Iterator[tuple[tuple[int, int], IntArray]]:
    """Yield (first group, last group) and the indices of the patterns that hold both."""
    for first in range(counts.shape[1]):
        for last in range(counts.shape[1]):
            holds = (counts[:, first] >= 1 + (first == last)) & (counts[:, last] >= 1)
            if np.any(holds):
                yield (first, last), np.flatnonzero(holds)


def _describe(counts: IntArray, row: RowTicks, k: int) -> str:
    return f"counts {tuple(int(c) for c in counts)} with K = {k}, b = {row.batch_size}"


def best_packing(groups: GroupIndex, patterns: IntArray, rates: FloatArray) -> float:
    """Return the largest summed rate of patterns, each used any number of times, that the pools hold.

    Max-plus dynamic program over the units in each pool (unbounded knapsack in several dimensions): after pattern j the
    cell of a stock holds its best worth from patterns up to j. Walking a dimension upwards in blocks of the pattern's
    own size lets one pass use a pattern several times.

    Parameters
    ----------
    groups
        Pools.
    patterns
        (J, G) int64 counts.
    rates
        (J,) float64 tokens/s.
    """
    stock = tuple(int(u) for u in groups.pool_units)
    best = np.zeros([u + 1 for u in stock])
    for use, rate in zip(patterns @ groups.usage.T, rates, strict=True):
        if rate <= 0 or np.any(use > groups.pool_units):
            continue
        axis = int(np.argmax(use))
        step = int(use[axis])
        for low in range(step, stock[axis] + 1, step):
            high = min(low + step, stock[axis] + 1)
            target = tuple(slice(low, high) if a == axis else slice(int(use[a]), None) for a in range(len(stock)))
            source = tuple(
                slice(low - step, high - step) if a == axis else slice(0, stock[a] + 1 - int(use[a]))
                for a in range(len(stock))
            )
            np.maximum(best[target], best[source] + rate, out=best[target])
    return float(best[tuple(stock)])


def stock_price(groups: GroupIndex, prices: FloatArray) -> float:
    """Return an upper limit on the prices of all devices that can be used together, tokens/s."""
    total = Fraction(0)
    for pool, units in enumerate(groups.pool_units):
        members = np.flatnonzero(groups.usage[pool])
        total += int(units) * max(Fraction(float(prices[g])) / int(groups.usage[pool, g]) for g in members)
    return float(total)


def check_pattern_witness(instance: PlacementInstance, witness: PatternWitness, rate: float) -> Verdict:
    """Return whether prices and listed patterns prove that no placement makes more than `rate` tokens/s.

    Every listed pattern must be worth no more than its claimed rate and than its price, every other pattern no more
    than its price less the slack. A placement then uses listed patterns only, and their best packing bounds it; or it
    uses another one, and then the price of all devices less the slack does.
    """
    if not instance.is_throughput:
        return claimed("prices bound rates, and this objective is an interval")
    groups = group_index(instance.table)
    given = np.asarray(witness.prices, dtype=np.float64)
    if not np.all(np.isfinite(given)) or np.any(given < 0) or not 0 <= witness.slack < float("inf"):
        return refuted("prices and slack have to be finite and at least zero")
    if given.size != groups.num_groups:
        return claimed(f"the witness has {given.size} prices, the table {groups.num_groups} groups of devices")
    return _check_prices(instance, groups, witness, given, rate)


def _check_prices(
    instance: PlacementInstance, groups: GroupIndex, witness: PatternWitness, prices: FloatArray, rate: float
) -> Verdict:
    """Check a witness with given prices of one device of each group, (G,) float64 tokens/s."""
    patterns = np.asarray(witness.patterns, dtype=np.int64).reshape(len(witness.patterns), groups.num_groups)
    rates = np.asarray(witness.rates, dtype=np.float64)
    malformed = _malformed(groups, patterns, rates)
    if malformed is not None:
        return refuted(malformed)
    if box_size(groups.available) > MAX_PATTERNS or box_size(groups.pool_units) > MAX_PACKING_CELLS:
        return claimed(f"{box_size(groups.available)} patterns are more than the check walks ({MAX_PATTERNS})")
    unlisted = stock_price(groups, prices) - witness.slack
    if rate < unlisted * (1 - RELATIVE_TOLERANCE):
        return refuted(f"the bound is {rate:.9g} tokens/s, prices less slack only exclude more than {unlisted:.9g}")
    packed = best_packing(groups, patterns, rates)
    if rate < packed * (1 - RELATIVE_TOLERANCE):
        return refuted(f"the bound is {rate:.9g} tokens/s, listed patterns pack to {packed:.9g}")
    box = pattern_box(instance)
    found = first_pattern_above(box, patterns, np.minimum(rates, patterns @ prices))
    if found is not None:
        return failed(f"listed pattern {found[1]} beats its rate or price", is_exact=is_exact_by_counts(instance))
    shape = tuple(int(a) + 1 for a in groups.available)
    listed = np.sort(np.ravel_multi_index(tuple(patterns.T), shape))
    walked = 0
    for chunk in box.chunks():
        others = chunk[~np.isin(np.ravel_multi_index(tuple(chunk.T), shape), listed)]
        walked += len(others)
        found = first_pattern_above(box, others, others @ prices - witness.slack)
        if found is not None:
            return failed(f"pattern {found[1]} beats its price less the slack", is_exact=is_exact_by_counts(instance))
    return verified(f"{walked} patterns stay below their price, {len(patterns)} listed ones were packed")


def _malformed(groups: GroupIndex, patterns: IntArray, rates: FloatArray) -> str | None:
    """Return what makes listed patterns meaningless; ``None`` when they are well formed."""
    if rates.shape != (len(patterns),) or not np.all(np.isfinite(rates)):
        return "each listed pattern needs one finite rate"
    if np.any(patterns < 0) or np.any(patterns > groups.available) or np.any(patterns.sum(axis=1) == 0):
        return "a listed pattern is empty or uses more devices than there are"
    return None


def check_pattern_threshold(instance: PlacementInstance, bound_s: float | None) -> Verdict:
    """Return whether no pattern has an interval below `bound_s` seconds; ``None`` asks whether none works at all.

    Where devices share cards, patterns that overdraw a pool are told apart by walking the box, if it is small enough.
    """
    if bound_s is not None and instance.is_throughput:
        return claimed("a threshold on the interval says nothing about summed rates")
    longest = None if bound_s is None else ticks_below(bound_s)
    groups = group_index(instance.table)
    found = None
    for row in row_ticks(instance, groups, longest=longest):
        # More micro-batches hold more memory and take longer, so K = 1 decides whether a shape works at all.
        k = 1 if instance.is_throughput else row.max_micro_batches
        if reaches(row, groups, k):
            found = f"a pipeline with K = {k}, b = {row.batch_size}"
            break
    if found is not None and not groups.has_exclusive_devices and box_size(groups.available) <= MAX_PATTERNS:
        found = _first_in_box(pattern_box(instance, longest=longest), fixed_k=not instance.is_throughput)
    if found is not None:
        return failed(f"{found} stays below the bound", is_exact=is_exact_by_counts(instance))
    return verified(f"no pattern of {groups.num_groups} groups stays below the bound")


def _first_in_box(box: PatternBox, *, fixed_k: bool) -> str | None:
    """Return a pattern that the pools hold and that works within the rows' longest interval; ``None`` without one."""
    for row, caps in zip(box.rows, box.caps, strict=True):
        k = row.max_micro_batches if fixed_k else 1
        for group in range(box.groups.num_groups):
            if any(found == k for found, _ in lone_stage(row, group)):
                return f"one device of group {group}"
        for chunk in box.chunks():
            chains = chunk[chunk.sum(axis=1) > 1]
            overhead = (chains.sum(axis=1) - 1) * row.hop + row.ret
            limits = np.full(len(chains), float(UNREACHABLE))
            kept = fewest_micro_batches(row, caps, chains, overhead, limits, ends=None, at_least=k) > 0
            chains, overhead, limits = chains[kept], overhead[kept], limits[kept]
            for ends, holds in _possible_ends(chains):
                works = fewest_micro_batches(
                    row, caps, chains[holds], overhead[holds], limits[holds], ends=ends, at_least=k
                )
                if np.any(works):
                    return _describe(chains[holds][np.flatnonzero(works)[0]], row, k)
    return None
