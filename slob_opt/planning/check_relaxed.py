"""Re-checks prices on clusters too large to walk all patterns, by putting a price on pipeline time as well.

A pipeline of shape (K, b) whose interval lies in ``(low, high]`` earns less than ``K * b / low``. Whatever multiplier
m >= 0 is chosen, its price is at least ``min over ways to give the layers to devices of (price + m * time) - m * high``
with caps on layers taken at `high`. If that is no less than the earning for one m, no such pipeline beats its price.
The minimum separates over groups (see :mod:`.check_reach` for the curves), and cells of a grid cover all intervals.

References
----------
Lasdon 1970, "Optimization theory for large systems", chapter 8, for multipliers on a coupling constraint.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from slob_opt.cost.table import FloatArray
from slob_opt.planning.check_kernel import lone_stage
from slob_opt.planning.check_patterns import (
    MAX_PATTERNS,
    check_pattern_witness,
    stock_price,
)
from slob_opt.planning.instance import PlacementInstance
from slob_opt.planning.ticks import TICKS_PER_S, GroupIndex, RowTicks, box_size, group_index, row_ticks
from slob_opt.planning.verdict import RELATIVE_TOLERANCE, Verdict, claimed, refuted, verified
from slob_opt.planning.witness import PatternWitness, RelaxedPriceWitness

MAX_STEPS = 2_000
"""Finest grid that is walked."""
EXTRA_MULTIPLIERS = (0.6, 0.9)
"""Tried beside those of the witness; any multiplier that closes a cell is a proof."""


def check_relaxed_witness(instance: PlacementInstance, witness: RelaxedPriceWitness, rate: float) -> Verdict:
    """Return whether prices prove that no placement makes more than `rate` tokens/s.

    Small boxes of patterns are walked instead, which is exact.
    """
    if not instance.is_throughput:
        return claimed("prices bound rates, and this objective is an interval")
    groups = group_index(instance.table)
    prices = np.asarray(witness.prices, dtype=np.float64)
    if prices.size != groups.num_groups:
        return claimed(f"the witness has {prices.size} prices, the table {groups.num_groups} groups of devices")
    if not np.all(np.isfinite(prices)) or np.any(prices < 0):
        return refuted("prices have to be finite and at least zero")
    total = stock_price(groups, prices)
    if rate < total * (1 - RELATIVE_TOLERANCE):
        return refuted(f"the bound is {rate:.9g} tokens/s, the prices only exclude more than {total:.9g}")
    if box_size(groups.available) <= MAX_PATTERNS:
        return check_pattern_witness(instance, PatternWitness(witness.prices), rate)
    if not 1 <= witness.num_interval_steps <= MAX_STEPS:
        return claimed(f"a grid of {witness.num_interval_steps} steps is not walked")
    multipliers = sorted({*witness.multipliers, *EXTRA_MULTIPLIERS}, key=lambda m: abs(m - 0.75))
    rows = row_ticks(instance, groups)
    for row in rows:
        for k in range(1, row.max_micro_batches + 1):
            found = _open_cell(row, groups, k, prices, witness.num_interval_steps, multipliers)
            if found is not None:
                return claimed(f"no multiplier shows that {found} stays below its price")
    return verified(f"priced time shows for {len(rows)} shapes and all K that no pipeline beats its price")


def _open_cell(
    row: RowTicks, groups: GroupIndex, k: int, prices: FloatArray, steps: int, multipliers: Sequence[float]
) -> str | None:
    """Return what is not shown to stay below its price at this K; ``None`` when everything is."""
    earned = k * row.batch_size * TICKS_PER_S
    allowance = 1 + RELATIVE_TOLERANCE
    for group in range(groups.num_groups):
        for found, interval in lone_stage(row, group):
            if found == k and earned > interval * prices[group] * allowance:
                return f"one device of group {group} with K = {k}, b = {row.batch_size}"
    if groups.available.sum() < 2 or row.num_layers < 2:
        return None
    edges = _edges(row, k, steps)
    low, high = edges[:-1], edges[1:]
    earning = earned / np.maximum(low, 1.0)
    # A pipeline of several devices costs at least the two cheapest.
    cells = np.flatnonzero(earning > 2 * float(prices.min()) * allowance)
    for multiplier in multipliers:
        if cells.size == 0:
            return None
        scale = multiplier * earning[cells] / high[cells]
        least = _least_price(row, groups, k, prices, high[cells], scale)
        cells = cells[earning[cells] > least * allowance]
    if cells.size == 0:
        return None
    c = int(cells[0])
    return f"an interval of {low[c] / TICKS_PER_S:.4g} to {high[c] / TICKS_PER_S:.4g} s, K = {k}, b = {row.batch_size}"


def _edges(row: RowTicks, k: int, steps: int) -> FloatArray:
    """Return geometric cell edges from below the shortest sum of stage times to above the longest interval, ticks."""
    least = float((row.fixed + row.num_layers * row.layer).min())
    slowest = float((row.fixed + row.num_layers * row.layer + row.embed + row.head).max())
    longest = k * max(slowest, float(row.occupancy)) + row.num_layers * (slowest + row.hop) + row.ret
    longest = min(longest, float(row.longest))
    if longest <= least:
        return np.zeros(1)
    edges = np.geomspace(max(least, 1.0), longest, steps + 1)
    # geomspace rounds; the outer edges have to hold every interval.
    edges[0], edges[-1] = max(least, 1.0), longest
    return edges


def _least_price(
    row: RowTicks, groups: GroupIndex, k: int, prices: FloatArray, high: FloatArray, scale: FloatArray
) -> FloatArray:
    """Return (X,) tokens/s, a lower limit on the price of any pipeline of several devices with interval up to `high`.

    Parameters
    ----------
    high
        (X,) float64 ticks.
    scale
        (X,) float64, tokens/s a tick of pipeline time.
    """
    size = row.num_layers + 1
    layers = np.arange(size)
    stage_limit = np.floor(high / k).astype(np.int64)
    caps = np.minimum(row.memory_caps(k * row.batch_size), row.time_caps(stage_limit[:, None]))
    total = np.full((high.size, size), np.inf)
    total[:, 0] = 0.0
    for g in range(groups.num_groups):
        cap = np.maximum(caps[:, g], 0)[:, None]
        devices = -(-layers // np.maximum(cap, 1))
        possible = (devices <= groups.available[g]) & ((cap > 0) | (layers == 0))
        a_device = float(prices[g]) + scale * float(row.fixed[g] + row.hop)
        cost = devices * a_device[:, None] + layers * (scale * float(row.layer[g]))[:, None]
        curve = np.where(possible, cost, np.inf)
        combined = total.copy()
        most = int(min(row.num_layers, (cap.max() * groups.available[g])))
        for count in range(1, most + 1):
            reached = total[:, : size - count] + curve[:, count : count + 1]
            np.minimum(combined[:, count:], reached, out=combined[:, count:])
        total = combined
    ends = float(row.embed.min() + row.head.min() + row.ret - row.hop)
    return np.asarray(total[:, row.num_layers] + scale * (ends - high))
