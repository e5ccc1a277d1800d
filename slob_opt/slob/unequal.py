"""Unequal layers: patterns by mean layers, then the exact split of each pattern.

With one kind of link a pattern's order and cuts come from the layered program over its sub-patterns. Where links
differ, the pattern becomes a route first (by mean layers), and the layers are split along it and along its reverse.
"""

from __future__ import annotations

import itertools

import numpy as np
from numpy.typing import NDArray

from slob_opt.cost.table import TICK_S
from slob_opt.planning.groups import PatternPlan, has_pools, realise, shape_costs
from slob_opt.planning.instance import PlacementInstance
from slob_opt.planning.layered import LayeredProgram, closure
from slob_opt.planning.pattern_rates import PatternProblem
from slob_opt.planning.pattern_search import Candidates, PatternSearch
from slob_opt.planning.split import best_split, pipeline_of
from slob_opt.problem.placement import Pipeline, Placement
from slob_opt.slob.picking import pick_small
from slob_opt.slob.routing import Route, Router

MAX_ORDERS = 24
"""Orders of a pattern's groups that are tried; all of them up to four stages of different groups."""

MAX_PATTERNS = 16
"""Patterns that are split, the most promising first."""

MAX_ROUNDS = 40
"""Packings in which patterns are split; in tests six cards of three kinds need up to about ten."""

MAX_SHAPES = 12
"""Shapes in which a pattern is split, those with the highest limits. Chosen."""

MAX_BOX = 600
"""Sub-patterns up to which the layered program splits a pattern; beyond, a few orders of its devices are tried."""


def unequal_searches(instance: PlacementInstance) -> list[PatternSearch]:
    """Return the searches whose candidates are split.

    In a small box with one kind of link rates are upper limits (the smallest layer counts), since the layered program
    corrects them; else they are estimates by mean layers, and where links differ, limits beside them: a mean of bytes
    may rule out what fits.
    """
    limits = PatternSearch(instance, 0.0 if not instance.table.has_uniform_links else None, use_mean_layers=False)
    if not instance.table.has_uniform_links:
        return [limits, PatternSearch(instance, 0.5)]
    return [limits if limits.groups.box_size() <= MAX_BOX else PatternSearch(instance)]


def unequal_plans(instance: PlacementInstance, search: PatternSearch, found: Candidates) -> list[Placement | None]:
    """Return plans for unequal layers, best effort."""
    splitter = Splitter(instance, search)
    if instance.is_throughput:
        return [_packed(splitter, found)]
    top = [int(i) for i in np.argsort(-found.rate, kind="stable")[:MAX_PATTERNS] if found.rate[i] > 0]
    if not top:
        return []
    if search.groups.box_size() <= MAX_BOX:
        top = [int(i) for i in np.flatnonzero(found.rate > 0)]
    box = closure(found.counts[top])
    if splitter.is_layered and len(box) <= MAX_BOX:
        return [splitter.layered_plan(box, found.counts[top])]
    plans: list[Placement | None] = []
    for index in top[:MAX_PATTERNS]:
        split = splitter.along_routes(found.counts[index], [0], splitter.everything)
        plans.append(Placement((split[1],)) if split else None)
    return plans


class Splitter:
    """Exact splits of patterns of one instance."""

    def __init__(self, instance: PlacementInstance, search: PatternSearch) -> None:
        self.instance, self.search = instance, search
        self.router = Router(instance, search)
        self.problem = PatternProblem(instance, search.groups, (), False)
        self.everything = np.ones(instance.table.num_devices, dtype=bool)
        self.is_layered = instance.table.has_uniform_links and has_pools(instance.table)

    def program(self, shape: int, box: NDArray[np.int64]) -> LayeredProgram:
        """Return the layered program of a box of patterns in one shape."""
        costs = shape_costs(self.instance, self.search.groups.classes, self.search.shape_list[shape])
        return LayeredProgram(self.problem, costs, box)

    def layered_plan(self, box: NDArray[np.int64], counts: NDArray[np.int64]) -> Placement | None:
        """Return the best pipeline over some patterns in the only shape."""
        program = self.program(0, box)
        found = program.best(program.indices(counts), float("inf"))
        if found is None:
            return None
        return realise(self.instance.table, self.search.groups, [program.plan(found[1], found[0])])

    def layered(self, counts: NDArray[np.int64], shapes: list[int]) -> tuple[float, PatternPlan] | None:
        """Return the best rate (tokens/s) of a pattern over some shapes and its plan; ``None`` when nothing fits."""
        best: tuple[float, PatternPlan] | None = None
        box = closure(counts[None])
        for shape in shapes:
            _, k, b = self.search.shape_list[shape]
            program = self.program(shape, box)
            upper = float("inf") if best is None else float(np.ceil(k * b / (best[0] * TICK_S)) - 1)
            found = program.best(program.indices(counts[None]), upper)
            if found is not None and (best is None or k * b / (found[0] * TICK_S) > best[0]):
                best = (k * b / (found[0] * TICK_S), program.plan(found[1], found[0]))
        return best

    def along_routes(
        self, counts: NDArray[np.int64], shapes: list[int], usable: NDArray[np.bool_]
    ) -> tuple[float, Pipeline] | None:
        """Return the best rate (tokens/s) and pipeline over a few orders and shapes; ``None`` when nothing fits."""
        table, cap = self.instance.table, self.instance.max_interval_s
        start = self.router.built([(counts, shapes[0])], usable)[0]
        if start is None:
            return None
        best: tuple[float, Pipeline] | None = None
        orders = self._orders(start, usable)
        for shape in shapes:
            row, k, b = self.search.shape_list[shape]
            for order in orders:
                hops, busy = self.router.length(order, row)
                found = best_split(table, row, order, k, k * b, hops * TICK_S, busy * TICK_S, upper=cap)
                if found is not None and (best is None or k * b / found[0] > best[0]):
                    best = (k * b / found[0], pipeline_of(table, order, found[1], k, b))
        return best

    def _orders(self, start: Route, usable: NDArray[np.bool_]) -> list[tuple[int, ...]]:
        """Orders of the devices of a built route; with one kind of link those that differ by group."""
        if not self.is_layered:
            better = self.router.improve([start], [usable])[0].order
            return list(dict.fromkeys([better, better[::-1], start.order, start.order[::-1]]))
        devices = sorted(start.order)
        if len(devices) <= 4:
            seen: dict[tuple[int, ...], tuple[int, ...]] = {}
            for order in itertools.permutations(devices):
                seen.setdefault(tuple(int(self.router.group_of[d]) for d in order), order)
            return list(seen.values())[:MAX_ORDERS]
        table = self.instance.table
        capacity = table.capacity_bytes[table.device_class]
        speed = table.layer_s[0].mean(axis=1)[table.device_class]
        by_capacity = tuple(sorted(devices, key=lambda d: (int(capacity[d]), d)))
        by_speed = tuple(sorted(devices, key=lambda d: (float(speed[d]), d)))
        return list(dict.fromkeys([by_capacity, by_capacity[::-1], by_speed, by_speed[::-1], tuple(devices)]))


def _packed(splitter: Splitter, found: Candidates) -> Placement | None:
    """Return a packing whose patterns were all split; one that comes out worse than estimated is packed by its rate."""
    search = splitter.search
    splits: dict[int, tuple[float, PatternPlan] | None] = {}
    routed = False
    for _ in range(MAX_ROUNDS):
        chosen = pick_small(search, found)
        fresh = sorted({i for i in chosen if i not in splits})
        if not fresh:
            break
        for index in fresh:
            if not splitter.is_layered or len(closure(found.counts[index][None])) > MAX_BOX:
                routed = True
                splits[index] = None
                continue
            split = splitter.layered(found.counts[index], _shapes(search, found, index))
            splits[index], found.rate[index] = split, 0.0 if split is None else split[0]
    if routed:
        return _packed_routes(splitter, found)
    found.rate[[i for i in range(found.rate.size) if i not in splits]] = 0.0
    plans = [split[1] for i in pick_small(search, found) if (split := splits.get(i)) is not None]
    return realise(splitter.instance.table, search.groups, plans) if plans else None


def _shapes(search: PatternSearch, found: Candidates, index: int) -> list[int]:
    """Return the shape a pattern was picked for and those with the highest limits."""
    counts = found.counts[index]
    if int(counts.sum()) == 1:
        limits = search.shapes.in_flight / (search.alone[:, int(np.argmax(counts))] * TICK_S)
    else:
        limits = search.rate_limits(counts[None])[0]
    others = [int(s) for s in np.argsort(-limits, kind="stable")[:MAX_SHAPES] if limits[s] > 0]
    return list(dict.fromkeys([int(found.shape[index]), *others]))


def _packed_routes(splitter: Splitter, found: Candidates) -> Placement | None:
    """Return a packing of patterns split along routes; a disappointing pattern is struck out and packing repeats."""
    best: tuple[float, Placement] | None = None
    for _ in range(MAX_PATTERNS):
        chosen = pick_small(splitter.search, found)
        if not chosen:
            break
        usable, pipelines, total, failed = splitter.everything.copy(), [], 0.0, False
        for index in chosen:
            split = splitter.along_routes(found.counts[index], _shapes(splitter.search, found, index), usable)
            if split is None or split[0] < found.rate[index] * (1 - 1e-9):
                failed = True
                found.rate[index] = 0.0 if split is None else split[0]
            if split is not None:
                total += split[0]
                pipelines.append(split[1])
                taken = set(split[1].cards)
                usable &= np.array([not taken & set(cards) for cards in splitter.router.cards])
        if pipelines and (best is None or total > best[0]):
            best = (total, Placement(tuple(pipelines)))
        if not failed:
            break
    return None if best is None else best[1]
