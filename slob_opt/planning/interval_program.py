"""Shortest interval of one pipeline by a dynamic program over groups and layers, for any number of devices.

At interval I a group that executes l layers needs ``ceil(l / cap)`` devices, because each further device only adds
its fixed time and a hop. So the smallest sum of stage times is a min-plus convolution of one cost curve a group,
and I is reached if and only if that sum is at most I; bisection over whole ticks makes it exact. First and last
groups are enumerated. The work is O(G^3 L^2 log I) whatever the number of devices.
"""

from __future__ import annotations

import time

import numpy as np

from slob_opt.cost.table import TICK_S, FloatArray
from slob_opt.planning.groups import PatternPlan, ShapeCosts, realise
from slob_opt.planning.outcome import outcome
from slob_opt.planning.pattern_kernel import pattern_split, single_interval
from slob_opt.planning.pattern_rates import PatternProblem
from slob_opt.planning.result import SolveLimits, SolveResult
from slob_opt.planning.witness import EnumerationWitness, ThresholdWitness
from slob_opt.problem.placement import Placement


def min_plus(left: FloatArray, right: FloatArray) -> FloatArray:
    """Return (X, L + 1): ``min over k of left[:, l - k] + right[:, k]``."""
    size = left.shape[1]
    padded = np.concatenate([np.full((left.shape[0], size - 1), np.inf), left], axis=1)
    windows = np.lib.stride_tricks.sliding_window_view(padded, size, axis=1)
    if windows.size <= 1 << 20:
        return np.asarray(np.min(windows + right[:, None, ::-1], axis=2))
    result = np.full_like(left, np.inf)
    for k in range(size):
        np.minimum(result[:, k:], left[:, : size - k] + right[:, k : k + 1], out=result[:, k:])
    return result


def curve(
    cap: FloatArray,
    per_device: FloatArray | float,
    per_layer: FloatArray | float,
    count: FloatArray | float,
    num_layers: int,
) -> FloatArray:
    """Return (X, L + 1): cost of l layers on as few devices as caps allow; infinite beyond ``cap * count``."""
    layers = np.arange(num_layers + 1, dtype=np.float64)
    most = np.maximum(np.asarray(cap, dtype=np.float64), 0.0)[:, None]
    with np.errstate(divide="ignore", invalid="ignore"):
        devices = np.where(layers > 0, np.ceil(layers / most), 0.0)
        # Infinitely many devices that cost nothing are no number; such entries exceed `count` and drop out below.
        cost = devices * np.reshape(per_device, (-1, 1)) + layers * np.reshape(per_layer, (-1, 1))
    return np.asarray(np.where((devices <= np.reshape(count, (-1, 1))) | (layers == 0), cost, np.inf))


def _caps(costs: ShapeCosts, interval: float, extra: FloatArray | float, memory: FloatArray) -> FloatArray:
    """Layers of one device of each group within the interval, (G,)."""
    per_stage = np.floor(interval / costs.num_micro_batches)
    budget = per_stage - costs.fixed - extra
    with np.errstate(divide="ignore", invalid="ignore"):
        layers = np.where(costs.layer > 0, np.floor(budget / costs.layer), np.where(budget >= 0, memory, -1.0))
    return np.asarray(np.minimum(layers, memory))


class IntervalProgram:
    """Tests intervals of one shape; `available` (G,) limits the devices of each group."""

    def __init__(self, costs: ShapeCosts, available: FloatArray, num_layers: int) -> None:
        self.costs = costs
        self.available = np.asarray(available, dtype=np.float64)
        self.num_layers = num_layers
        groups = self.available.size
        pairs = [(f, g) for f in range(groups) for g in range(groups)]
        self.first = np.array([f for f, _ in pairs])
        self.last = np.array([g for _, g in pairs])

    def curves(self, interval: float) -> tuple[list[FloatArray], FloatArray, FloatArray]:
        """Return cost curves of middle groups (each (pairs, L + 1)), of the first and of the last stage."""
        costs, layers = self.costs, self.num_layers
        cap = _caps(costs, interval, 0.0, costs.cap)
        first_cap = _caps(costs, interval, costs.embed, costs.cap_first)[self.first]
        last_cap = _caps(costs, interval, costs.head, costs.cap_last)[self.last]
        middle = []
        for g in range(self.available.size):
            count = self.available[g] - (self.first == g) - (self.last == g)
            full = np.full(self.first.size, cap[g])
            middle.append(curve(full, costs.fixed[g] + costs.hop, costs.layer[g], np.maximum(count, 0), layers))
        start = curve(first_cap, (costs.fixed + costs.embed)[self.first], costs.layer[self.first], 1.0, layers)
        end = curve(last_cap, (costs.fixed + costs.head)[self.last] + costs.hop, costs.layer[self.last], 1.0, layers)
        start[:, 0], end[:, 0] = np.inf, np.inf
        enough = self.available[self.first] - (self.first == self.last) >= 1
        start[~enough | (self.available[self.last] < 1)] = np.inf
        return middle, start, end

    def least_sum(self, interval: float) -> FloatArray:
        """Return (pairs,) ticks: least sum of stages, hops and return when no stage exceeds ``interval / K``."""
        middle, start, end = self.curves(interval)
        total = min_plus(start, end)
        for part in middle:
            total = min_plus(total, part)
        return np.asarray(total[:, self.num_layers] + self.costs.ret)

    def reaches(self, interval: float) -> bool:
        """Return whether some pipeline of several devices has at most this interval."""
        costs = self.costs
        if interval > costs.max_interval or costs.num_micro_batches * costs.occupancy > interval:
            return False
        return bool(np.any(self.least_sum(interval) <= interval))

    def pattern(self, interval: float) -> tuple[FloatArray, int, int]:
        """Return (G,) counts, first and last group of a pipeline that reaches an interval."""
        middle, start, end = self.curves(interval)
        pair = int(np.argmin(self.least_sum(interval)))
        partial = [min_plus(start[pair : pair + 1], end[pair : pair + 1])]
        for part in middle:
            partial.append(min_plus(partial[-1], part[pair : pair + 1]))
        left = self.num_layers
        counts = np.zeros(self.available.size)
        cap = _caps(self.costs, interval, 0.0, self.costs.cap)
        for g in range(self.available.size - 1, -1, -1):
            options = partial[g][0, left::-1] + middle[g][pair, : left + 1]
            taken = int(np.argmin(options))
            counts[g] += np.ceil(taken / cap[g]) if taken else 0
            left -= taken
        first, last = int(self.first[pair]), int(self.last[pair])
        counts[first] += 1
        counts[last] += 1
        return counts, first, last

    def best(self, upper: float) -> float:
        """Return the shortest interval in ticks, infinite when even `upper` is not reached."""
        if not self.reaches(upper):
            return float("inf")
        low, high = 0.0, float(np.floor(upper))
        while high - low > 1:
            middle = np.floor((low + high) / 2)
            if self.reaches(float(middle)):
                high = float(middle)
            else:
                low = float(middle)
        return high


def interval_upper(costs: ShapeCosts, num_layers: int) -> float:
    """Return ticks that no sensible pipeline exceeds: every layer on its own device of the slowest kind."""
    stage = costs.fixed + num_layers * costs.layer + costs.embed + costs.head
    slowest = float(stage.max())
    upper = costs.num_micro_batches * max(slowest, costs.occupancy) + num_layers * (slowest + costs.hop) + costs.ret
    return float(min(upper, costs.max_interval))


def best_interval(
    costs: ShapeCosts, available: FloatArray, num_layers: int, upper: float | None = None
) -> tuple[float, PatternPlan | None]:
    """Return the shortest interval (ticks) of one pipeline and its plan; (inf, None) when nothing fits."""
    alone = np.where(available > 0, single_interval(costs, num_layers), np.inf)
    best, plan = float(alone.min()), None
    if np.isfinite(best):
        plan = PatternPlan((int(np.argmin(alone)),), (num_layers,), costs.num_micro_batches, costs.batch_size)
    program = IntervalProgram(costs, available, num_layers)
    limit = interval_upper(costs, num_layers) if upper is None else upper
    several = program.best(min(limit, best - 1))
    if several < best:
        counts, first, last = program.pattern(several)
        groups, layers = pattern_split(counts.astype(np.int64), costs, num_layers, several, first, last)
        return several, PatternPlan(groups, layers, costs.num_micro_batches, costs.batch_size)
    return best, plan


def solve_interval(
    name: str, problem: PatternProblem, incumbent: Placement | None, limits: SolveLimits, started: float
) -> SolveResult:
    """Return the shortest interval of one pipeline; a bound only when patterns are relaxed."""
    instance, costs = problem.instance, problem.costs[0]
    ticks, plan = best_interval(costs, problem.groups.available.astype(np.float64), problem.num_layers)
    details = (("route", "layer program"), ("groups", problem.groups.num_groups))
    if plan is None:
        return outcome(
            instance, name, None, None, elapsed_s=time.perf_counter() - started, incumbent=incumbent, limits=limits,
            details=details, is_infeasible=True, witness=EnumerationWitness(problem.groups.box_size()),
            message="no set of devices holds the model",
        )  # fmt: skip
    placement = realise(instance.table, problem.groups, [plan])
    return outcome(
        instance, name, placement, ticks * TICK_S, elapsed_s=time.perf_counter() - started, incumbent=incumbent,
        witness=ThresholdWitness("pattern"), limits=limits, details=details,
        message="" if problem.is_exact else "pattern bound with the smallest hops and layers",
    )  # fmt: skip
