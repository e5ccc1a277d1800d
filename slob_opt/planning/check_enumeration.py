"""Looks at every plan of a tiny instance again: all device orders, all cuts, all shapes; integers only."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from slob_opt.cost.table import CostTable, IntArray
from slob_opt.planning.instance import PlacementInstance
from slob_opt.planning.ticks import TICKS_PER_S, UNREACHABLE, RowTicks, group_index, row_ticks, whole_ticks
from slob_opt.planning.verdict import RELATIVE_TOLERANCE, Verdict, claimed, failed, verified

MAX_ROUTES = 8_000
"""Most pairs of a device order and a shape; a few seconds. Chosen."""
MAX_CUTS = 2_000
"""Most cuts of the layers into stages."""
MAX_CARDS = 10
"""Most cards; all pairs of disjoint card sets are walked to combine pipelines."""


def routes(table: CostTable) -> Iterator[tuple[int, ...]]:
    """Yield every order of every set of devices that share no card and number no more than the layers."""
    for size in range(1, min(table.num_devices, table.num_layers) + 1):
        for order in itertools.permutations(range(table.num_devices), size):
            cards = [card for device in order for card in table.device_cards[device]]
            if len(set(cards)) == len(cards):
                yield order


def _num_routes(table: CostTable) -> int:
    return sum(math.perm(table.num_devices, m) for m in range(1, min(table.num_devices, table.num_layers) + 1))


def _cuts(num_layers: int, num_stages: int) -> IntArray:
    """Return (n, num_stages + 1) int64, all ways to cut the layers into stages of at least one layer."""
    inner = list(itertools.combinations(range(1, num_layers), num_stages - 1))
    cuts = np.zeros((len(inner), num_stages + 1), np.int64)
    if num_stages > 1:
        cuts[:, 1:-1] = inner
    cuts[:, -1] = num_layers
    return cuts


@dataclass(frozen=True, slots=True)
class _RowNumbers:
    """One row of the table in whole numbers, by cost class and link class; prefix sums over layers."""

    row: RowTicks
    layer_to: IntArray
    weight_to: IntArray
    kv_to: IntArray
    fixed: IntArray
    embed: IntArray
    head: IntArray
    hop: IntArray
    ret: IntArray
    busy: IntArray
    busy_back: IntArray


def _row_numbers(table: CostTable, row: RowTicks) -> _RowNumbers:
    def prefix(values: IntArray) -> IntArray:
        return np.concatenate([np.zeros((len(values), 1), np.int64), np.cumsum(values, axis=1)], axis=1)

    r = row.row
    times = (table.fixed_s, table.embed_s, table.head_s, table.hop_s, table.return_s)
    fixed, embed, head, hop, ret = (whole_ticks(a[r]) for a in times)
    return _RowNumbers(
        row, prefix(whole_ticks(table.layer_s[r])), prefix(table.weight_bytes), prefix(table.kv_bytes),
        fixed, embed, head, hop, ret, whole_ticks(table.occupancy_s[r]), whole_ticks(table.return_occupancy_s[r]),
    )  # fmt: skip


def _best_of_route(
    table: CostTable, numbers: _RowNumbers, order: tuple[int, ...], cuts: IntArray, first_k: int
) -> Iterator[tuple[int, int]]:
    """Yield (K, least interval in ticks) of a route over all its cuts, for each K that has a cut in memory and caps."""
    row = numbers.row
    times, free, per_sequence = [], [], []
    for stage, device in enumerate(order):
        c = int(table.device_class[device])
        low, high = cuts[:, stage], cuts[:, stage + 1]
        time = numbers.layer_to[c, high] - numbers.layer_to[c, low] + numbers.fixed[c]
        size = numbers.weight_to[c, high] - numbers.weight_to[c, low] + table.workspace_bytes[row.row, c]
        if stage == 0:
            time, size = time + numbers.embed[c], size + table.embed_bytes[c]
        if stage == len(order) - 1:
            time, size = time + numbers.head[c], size + table.head_bytes[row.row, c]
        if len(order) == 1:
            size = size - table.tied_saving_bytes[c]
        times.append(time)
        free.append(table.capacity_bytes[c] - size)
        per_sequence.append(numbers.kv_to[c, high] - numbers.kv_to[c, low])
    hops = busy = 0
    if len(order) > 1:
        links = [int(table.link_class[a, b]) for a, b in itertools.pairwise(order)]
        back = int(table.link_class[order[-1], order[0]])
        hops = sum(int(numbers.hop[c]) for c in links) + int(numbers.ret[back])
        busy = max(int(numbers.busy_back[back]), *(int(numbers.busy[c]) for c in links))
    total, slowest = np.sum(times, axis=0) + hops, np.maximum(np.max(times, axis=0), busy)
    room, need = np.stack(free), np.stack(per_sequence)
    for k in range(first_k, row.max_micro_batches + 1):
        fits = np.all(room >= k * row.batch_size * need, axis=0)
        least = int(np.maximum(total, k * slowest)[fits].min(initial=UNREACHABLE))
        if least <= row.longest:
            yield k, least


def check_enumeration(instance: PlacementInstance, bound: float | None) -> Verdict:
    """Return whether no plan at all is worth less than `bound` (minimised scale); ``None`` asks whether none works.

    Instances above the limits of this module stay claimed. Network cards' limits are let go of, which can only make
    plans look better.
    """
    table = instance.table
    shapes = instance.shapes()
    largest = math.comb(table.num_layers - 1, min(table.num_devices - 1, (table.num_layers - 1) // 2))
    if _num_routes(table) * len(shapes) > MAX_ROUTES or largest > MAX_CUTS or table.num_cards > MAX_CARDS:
        return claimed(f"too many plans to enumerate again ({_num_routes(table)} routes, {len(shapes)} shapes)")
    rows = [_row_numbers(table, row) for row in row_ticks(instance, group_index(table))]
    cuts = {m: _cuts(table.num_layers, m) for m in range(1, min(table.num_devices, table.num_layers) + 1)}
    least = UNREACHABLE
    best_rate: dict[int, Fraction] = {}
    for order in routes(table):
        mask = sum(1 << card for device in order for card in table.device_cards[device])
        for numbers in rows:
            row = numbers.row
            first_k = 1 if instance.is_throughput else row.max_micro_batches
            for k, interval in _best_of_route(table, numbers, order, cuts[len(order)], first_k):
                rate = Fraction(k * row.batch_size * TICKS_PER_S, max(interval, 1))
                best_rate[mask] = max(rate, best_rate.get(mask, Fraction(0)))
                least = min(least, interval)
    is_exact = not bool(np.any(np.isfinite(table.nic_bytes_per_s)))
    if bound is None:
        if best_rate:
            return failed("enumeration finds a plan, the instance is feasible", is_exact=is_exact)
        return verified("enumeration finds no plan")
    if instance.is_throughput:
        rate = _best_family(best_rate, table.num_cards)
        holds = -Fraction(bound) >= rate * (1 - Fraction(RELATIVE_TOLERANCE))
        found = f"{float(rate):.9g} tokens/s"
    else:
        holds = Fraction(bound) * TICKS_PER_S <= least
        found = f"an interval of {least / TICKS_PER_S:.9g} s"
    if holds:
        return verified(f"enumeration finds nothing better than {found}")
    return failed(f"enumeration finds {found}", is_exact=is_exact)


def _best_family(rates: dict[int, Fraction], num_cards: int) -> Fraction:
    """Return the largest summed rate of card-disjoint pipelines."""
    best = [Fraction(0)] * (1 << num_cards)
    for mask in range(1, 1 << num_cards):
        part = mask
        while part:
            if part in rates:
                best[mask] = max(best[mask], rates[part] + best[mask ^ part])
            part = (part - 1) & mask
    return best[-1]
