"""Unequal layers: a dynamic program over (devices used by group, layers executed).

For one shape and interval ``value[n][l]`` is the least sum of stage times with which devices n, all of them used,
execute layers [0, l); stages that break memory or exceed ``interval / K`` are left out. Order and cuts come out of
the program, so a pattern's shortest interval is exact up to the bisection step; upper and lower ends of the last
step give plan and bound.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from slob_opt.cost.table import TICK_S, FloatArray
from slob_opt.planning.groups import PatternPlan, ShapeCosts, realise
from slob_opt.planning.outcome import better_plan, outcome
from slob_opt.planning.packing import pack
from slob_opt.planning.pattern_rates import PatternProblem, best_rates
from slob_opt.planning.priced_lp import all_patterns
from slob_opt.planning.result import HistoryPoint, SolveLimits, SolveResult
from slob_opt.planning.witness import EnumerationWitness
from slob_opt.problem.placement import Placement

MAX_PATTERNS = 4000
"""Largest box for the layered program (one layer matrix a pattern and group)."""

RELATIVE_STEP = 1e-7
"""Relative width at which bisection of an interval stops."""

CHUNK = 64


def can_solve_layered(problem: PatternProblem) -> bool:
    """Return whether the box of patterns is small enough for the layered program."""
    return problem.groups.box_size() <= MAX_PATTERNS


class LayeredProgram:
    """Values of all patterns of a box for one shape; `patterns` is (P, G), every sub-pattern included."""

    def __init__(self, problem: PatternProblem, costs: ShapeCosts, patterns: NDArray[np.int16]) -> None:
        self.costs = costs
        self.patterns = patterns.astype(np.int64)
        self.index = {tuple(int(n) for n in row): i for i, row in enumerate(self.patterns)}
        self.num_layers = problem.num_layers
        table = problem.instance.table
        classes = problem.groups.classes
        prefix = table.layer_prefix_s[costs.row][classes] / TICK_S
        stage = costs.fixed[:, None, None] + prefix[:, None, :] - prefix[:, :, None]
        stage[:, 0, :] += costs.embed[:, None]
        stage[:, :, -1] += costs.head[:, None]
        q = costs.num_in_flight
        held = table.weight_prefix_bytes[classes] + q * table.kv_prefix_bytes[classes]
        memory = held[:, None, :] - held[:, :, None] + table.workspace_bytes[costs.row][classes][:, None, None]
        memory[:, 0, :] += table.embed_bytes[classes][:, None]
        memory[:, :, -1] += table.head_bytes[costs.row][classes][:, None]
        memory[:, 0, -1] -= table.tied_saving_bytes[classes]
        rows, columns = np.arange(self.num_layers + 1)[:, None], np.arange(self.num_layers + 1)[None, :]
        fits = (memory <= table.capacity_bytes[classes][:, None, None]) & (rows < columns)
        self.stage = np.where(fits, stage, np.inf)
        sizes = self.patterns.sum(axis=1)
        self.levels = [np.flatnonzero(sizes == m) for m in range(1, int(sizes.max(initial=0)) + 1)]
        self.hops = np.where(sizes > 1, (sizes - 1) * costs.hop + costs.ret, 0.0)

    def values(self, interval: float) -> FloatArray:
        """Return (P, L + 1) ticks: least sums with no stage above ``interval / K``."""
        stage = np.where(self.stage <= np.floor(interval / self.costs.num_micro_batches), self.stage, np.inf)
        value = np.full((self.patterns.shape[0], self.num_layers + 1), np.inf)
        for level in self.levels:
            for g in range(self.patterns.shape[1]):
                members = level[self.patterns[level, g] > 0]
                for start in range(0, members.size, CHUNK):
                    part = members[start : start + CHUNK]
                    reached = np.min(self._before(value, part, g)[:, :, None] + stage[g][None], axis=1)
                    value[part] = np.minimum(value[part], reached)
        return value

    def _before(self, value: FloatArray, part: NDArray[np.int64], g: int) -> FloatArray:
        """Return (X, L + 1): values of the patterns with one device of group g less."""
        before = np.full((part.size, self.num_layers + 1), np.inf)
        for i, p in enumerate(part):
            smaller = self.patterns[p].copy()
            smaller[g] -= 1
            if smaller.any():
                before[i] = value[self.index[tuple(int(n) for n in smaller)]]
            else:
                before[i, 0] = 0.0
        return before

    def reached(self, interval: float) -> NDArray[np.bool_]:
        """Return (P,) bool: patterns that reach an interval."""
        sizes = self.patterns.sum(axis=1)
        limit = min(interval, self.costs.max_interval)
        total = self.values(limit)[:, -1] + self.hops
        busy = (sizes == 1) | (self.costs.num_micro_batches * self.costs.occupancy <= limit)
        return np.asarray((total <= limit) & busy)

    def brackets(self, active: NDArray[np.int64], high: float) -> Iterator[tuple[NDArray[np.int64], float, float]]:
        """Yield (patterns, low, high): patterns reach `high` and don't reach `low`, ticks."""
        good = self.reached(high)
        active = active[good[active]]
        stack = [(active, 0.0, high)] if active.size else []
        while stack:
            members, low, top = stack.pop()
            if top - low <= max(1.0, RELATIVE_STEP * top):
                yield members, low, top
                continue
            middle = float(np.floor((low + top) / 2))
            good = self.reached(middle)[members]
            if np.any(good):
                stack.append((members[good], low, middle))
            if not np.all(good):
                stack.append((members[~good], middle, top))

    def plan(self, pattern: int, interval: float) -> PatternPlan:
        """Return groups and layers of a pattern at an interval it reaches."""
        value = self.values(interval)
        stage = np.where(self.stage <= np.floor(interval / self.costs.num_micro_batches), self.stage, np.inf)
        counts, end = self.patterns[pattern].copy(), self.num_layers
        groups: list[int] = []
        layers: list[int] = []
        while counts.any():
            best = (np.inf, 0, 0)
            for g in np.flatnonzero(counts):
                at = np.array([self.index[tuple(int(n) for n in counts)]])
                before = self._before(value, at, int(g))[0]
                cut = int(np.argmin(before + stage[g][:, end]))
                best = min(best, (float(before[cut] + stage[g][cut, end]), int(g), cut))
            groups.append(best[1])
            layers.append(end - best[2])
            counts[best[1]] -= 1
            end = best[2]
        shape = (self.costs.num_micro_batches, self.costs.batch_size)
        return PatternPlan(tuple(reversed(groups)), tuple(reversed(layers)), *shape)


def solve_layered(
    name: str, problem: PatternProblem, incumbent: Placement | None, limits: SolveLimits, started: float
) -> SolveResult:
    """Return the best plan for unequal layers; a bound only when links differ."""
    instance = problem.instance
    patterns = all_patterns(problem)
    size = patterns.shape[0]
    lower, upper = np.zeros(size), np.zeros(size)
    how: dict[int, tuple[int, float]] = {}
    complete = True
    for index, costs in enumerate(problem.costs):
        if limits.time_s is not None and time.perf_counter() - started > limits.time_s:
            complete = False
            break
        relaxed = best_rates(_one_shape(problem, costs), patterns, lower, exact=False)
        active = np.flatnonzero(relaxed.shape >= 0)
        if active.size == 0:
            continue
        program = LayeredProgram(problem, costs, patterns)
        high = min(_ceiling(program), costs.max_interval)
        if np.any(lower[active] > 0) and np.all(lower[active] > 0):
            high = min(high, float(np.ceil(costs.num_in_flight / (lower[active].min() * TICK_S))))
        for members, low, top in program.brackets(active, float(np.floor(high))):
            rate = costs.num_in_flight / (top * TICK_S)
            upper[members] = np.maximum(upper[members], costs.num_in_flight / (max(low + 1, 1.0) * TICK_S))
            for p in members[rate > lower[members]]:
                lower[p], how[int(p)] = rate, (index, top)
    found = np.flatnonzero(lower > 0)
    details = (("route", "layered"), ("patterns", size))
    elapsed = time.perf_counter() - started
    if found.size == 0:
        return outcome(
            instance, name, None, None, elapsed_s=elapsed, incumbent=incumbent, limits=limits, details=details,
            is_infeasible=complete, witness=EnumerationWitness(size), message="no set of devices holds the model",
        )  # fmt: skip
    if instance.is_throughput:
        usage = patterns.astype(np.int64) @ problem.groups.usage.T
        _, chosen = pack(problem.groups.pool_cards, usage, lower)
        best, _ = pack(problem.groups.pool_cards, usage, upper)
        bound = -best
    else:
        chosen = (int(np.argmax(lower)),)
        bound = problem.costs[0].num_in_flight / float(upper.max())
    plans = [LayeredProgram(problem, problem.costs[how[p][0]], patterns).plan(p, how[p][1]) for p in chosen]
    plan = realise(instance.table, problem.groups, plans)
    _, worth = better_plan(instance, incumbent, plan)
    return outcome(
        instance, name, plan, bound if complete else None, elapsed_s=time.perf_counter() - started,
        incumbent=incumbent, witness=EnumerationWitness(size), limits=limits, details=details,
        history=(HistoryPoint(elapsed, worth, bound),),
    )  # fmt: skip


def _one_shape(problem: PatternProblem, costs: ShapeCosts) -> PatternProblem:
    """Return the problem with a single shape."""
    return PatternProblem(problem.instance, problem.groups, (costs,), problem.is_exact)


def _ceiling(program: LayeredProgram) -> float:
    """Ticks that no pipeline of the box exceeds."""
    finite = program.stage[np.isfinite(program.stage)]
    slowest = float(finite.max(initial=1.0))
    costs = program.costs
    return (
        costs.num_micro_batches * max(slowest, costs.occupancy)
        + len(program.levels) * (slowest + costs.hop)
        + costs.ret
    )
