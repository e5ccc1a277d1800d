"""Unequal layers: patterns by mean layers, then the exact split of each pattern in a few orders of its devices."""

from __future__ import annotations

import itertools

import numpy as np

from slob_opt.cost.table import TICK_S
from slob_opt.planning.instance import PlacementInstance
from slob_opt.planning.pattern_search import Candidates, PatternSearch
from slob_opt.planning.split import best_split, pipeline_of
from slob_opt.problem.placement import Pipeline, Placement
from slob_opt.slob.picking import pick_small
from slob_opt.slob.routing import Router

MAX_ORDERS = 24
"""Orders of a pattern's groups that are tried; all of them up to four stages of different groups."""

MAX_PATTERNS = 16
"""Patterns that are split, the most promising first."""


def orders_of(devices: list[int], router: Router) -> list[tuple[int, ...]]:
    """Return orders of some devices that differ by group: all when few, else by capacity and speed up and down."""
    if len(devices) <= 4:
        seen: dict[tuple[int, ...], tuple[int, ...]] = {}
        for order in itertools.permutations(devices):
            seen.setdefault(tuple(int(router.group_of[d]) for d in order), order)
        return list(seen.values())[:MAX_ORDERS]
    table = router.table
    capacity = table.capacity_bytes[table.device_class]
    speed = table.layer_s[0].mean(axis=1)[table.device_class]
    by_capacity = tuple(sorted(devices, key=lambda d: (int(capacity[d]), d)))
    by_speed = tuple(sorted(devices, key=lambda d: (float(speed[d]), d)))
    return list(dict.fromkeys([by_capacity, by_capacity[::-1], by_speed, by_speed[::-1], tuple(devices)]))


def split_pattern(
    instance: PlacementInstance, router: Router, devices: list[int], shapes: list[int]
) -> tuple[float, Pipeline] | None:
    """Return the best rate (tokens/s) and pipeline over orders and shapes, ``None`` when nothing fits."""
    best: tuple[float, Pipeline] | None = None
    cap = instance.max_interval_s
    for shape in shapes:
        row, k, b = router.search.shape_list[shape]
        for order in orders_of(devices, router):
            hops, busy = router.length(order, row)
            found = best_split(instance.table, row, order, k, k * b, hops * TICK_S, busy * TICK_S, upper=cap)
            if found is None:
                continue
            rate = k * b / found[0]
            if best is None or rate > best[0]:
                best = (rate, pipeline_of(instance.table, order, found[1], k, b))
    return best


def unequal_plans(instance: PlacementInstance, search: PatternSearch, found: Candidates) -> list[Placement | None]:
    """Return plans for unequal layers, best effort."""
    router = Router(instance, search)
    everything = set(range(instance.table.num_devices))
    if not instance.is_throughput:
        plans: list[Placement | None] = []
        for index in np.argsort(-found.rate, kind="stable")[:MAX_PATTERNS]:
            if found.rate[index] <= 0:
                break
            order = router.build(found.counts[index], 0, everything)
            split = split_pattern(instance, router, sorted(order), [0]) if order else None
            plans.append(Placement((split[1],)) if split else None)
        return plans
    return [_packed(instance, search, found, router, everything)]


def _packed(
    instance: PlacementInstance, search: PatternSearch, found: Candidates, router: Router, everything: set[int]
) -> Placement | None:
    """Return a packing whose patterns were all split; one that can't be is struck out and packing repeats."""
    for _ in range(MAX_PATTERNS):
        chosen = pick_small(search, found)
        if not chosen:
            return None
        free, pipelines, failed = set(everything), [], False
        for index in chosen:
            order = router.build(found.counts[index], int(search.shapes.row[found.shape[index]]), free)
            limits = search.rate_limits(found.counts[index : index + 1])[0]
            hopeful = [int(found.shape[index]), *(int(s) for s in np.argsort(-limits, kind="stable")[:6])]
            split = split_pattern(instance, router, sorted(order), list(dict.fromkeys(hopeful))) if order else None
            if split is None or split[0] < 0.9 * found.rate[index]:
                found.rate[index] = 0.0 if split is None else split[0]
                failed = True
            if split is not None:
                pipelines.append(split[1])
                cards = set(split[1].cards)
                free = {d for d in free if not cards & set(router.cards[d])}
        if not failed:
            break
    return Placement(tuple(pipelines)) if pipelines else None
