"""Unequal layers: a dynamic program over (devices used by group, layers executed).

For one shape and interval ``value[n][l]`` is the least sum of stage times with which devices n, all of them used,
execute layers [0, l); stages that break memory or exceed ``interval / K`` are left out. Order and cuts come out of
the program.

Which stages are left out changes only at the *breakpoints* K * (time of some stage), so the least sum T is constant
between two of them and an interval I is reached there if and only if T is at most I. Bisection over the breakpoints
finds the shortest interval exactly, in a dozen programs.

For throughput, values that ignore the differences between layers bound every pattern's rate from above. Patterns
are packed by these limits, those that were picked are made exact, and so on until a packing picks exact patterns
only; such a packing is optimal.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

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
"""Largest box for the layered program (one row of values a pattern)."""

CHUNK = 1 << 20
"""Numbers that one min-plus product holds at once."""

BoolArray = NDArray[np.bool_]


def can_solve_layered(problem: PatternProblem) -> bool:
    """Return whether the box of patterns is small enough for the layered program."""
    return problem.groups.box_size() <= MAX_PATTERNS


class LayeredProgram:
    """Values of all patterns of a box for one shape; `patterns` is (P, G), every sub-pattern included."""

    def __init__(self, problem: PatternProblem, costs: ShapeCosts, patterns: NDArray[np.integer]) -> None:
        self.costs = costs
        self.patterns = patterns.astype(np.int64)
        self.num_layers = problem.num_layers
        self._index = {row.tobytes(): i for i, row in enumerate(self.patterns)}
        self.smaller = self._one_less()
        self.stage = _stage_times(problem, costs)
        self.sizes = self.patterns.sum(axis=1)
        self.hops = np.where(self.sizes > 1, (self.sizes - 1) * costs.hop + costs.ret, 0.0)
        self.floors = np.where(self.sizes > 1, costs.num_micro_batches * costs.occupancy, 0.0)
        times = np.unique(self.stage[np.isfinite(self.stage)])
        self.breakpoints = times * costs.num_micro_batches

    def _one_less(self) -> NDArray[np.int64]:
        """(P, G) index of each pattern with one device of a group less; P is no device, -1 where there is none."""
        index = {**self._index, np.zeros(self.patterns.shape[1], np.int64).tobytes(): self.patterns.shape[0]}
        smaller = np.full(self.patterns.shape, -1)
        for g in range(self.patterns.shape[1]):
            less = self.patterns.copy()
            less[:, g] -= 1
            for i in np.flatnonzero(less[:, g] >= 0):
                smaller[i, g] = index[less[i].tobytes()]
        return smaller

    def indices(self, counts: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return (X,) the indices of patterns (X, G) of the box."""
        return np.array([self._index[row.tobytes()] for row in np.ascontiguousarray(counts, dtype=np.int64)], np.int64)

    def values(self, interval: float, within: BoolArray | None = None) -> FloatArray:
        """Return (P + 1, L + 1) ticks: least sums with no stage above ``interval / K``; the last row is no device.

        `within` (P,) limits the work to some patterns, which must include all their sub-patterns; ``None`` is all.
        """
        stage = np.where(self.stage <= np.floor(interval / self.costs.num_micro_batches), self.stage, np.inf)
        value = np.full((self.patterns.shape[0] + 1, self.num_layers + 1), np.inf)
        value[-1, 0] = 0.0
        lengths = [_longest_window(times) for times in stage]
        for size in range(1, int(self.sizes.max(initial=0)) + 1):
            level = self.sizes == size
            members = np.flatnonzero(level if within is None else level & within)
            for g in range(self.patterns.shape[1]):
                part = members[self.smaller[members, g] >= 0]
                if part.size and lengths[g]:
                    reached = _extend(value[self.smaller[part, g]], stage[g], lengths[g])
                    value[part] = np.minimum(value[part], reached)
        return value

    def least(self, members: NDArray[np.int64], interval: float, within: BoolArray | None) -> float:
        """Return the least ticks of some patterns (sum with hops, link occupancy) with stages up to ``interval / K``.

        An interval is reached if and only if it's at least this.
        """
        total = self.values(interval, within)[members, -1] + self.hops[members]
        return float(np.maximum(total, self.floors[members]).min())

    def shortest(self, members: NDArray[np.int64], upper: float) -> float:
        """Return the shortest interval (ticks) of any of some patterns; infinite where `upper` isn't reached."""
        upper = min(upper, self.costs.max_interval)
        within = np.any(np.all(self.patterns[:, None, :] <= self.patterns[members][None], axis=2), axis=1)
        best = self.least(members, upper, within)
        if best > upper:
            return float("inf")
        # Invariant: the stages allowed at points[high] reach it (or high is beyond `upper`); at points[low] they don't.
        points = self.breakpoints
        low, high = int(np.searchsorted(points, best)) - 1, int(np.searchsorted(points, upper, side="right"))
        at_low: float | None = None
        if high == 0 or (low == high - 1 and points[low] <= best):
            return best
        while high - low > 1:
            middle = (low + high) // 2
            found = self.least(members, float(points[middle]), within)
            if found <= points[middle]:
                high = middle
            else:
                low, at_low = middle, found
        if at_low is None and low >= 0:
            at_low = self.least(members, float(points[low]), within)
        end = float(points[high]) if high < points.size else float("inf")
        between = at_low if at_low is not None and at_low < end else float("inf")
        return min(between, end) if high < points.size and points[high] <= upper else between

    def best(self, members: NDArray[np.int64], upper: float) -> tuple[float, int] | None:
        """Return the shortest interval of some patterns (ticks) and one that reaches it; ``None`` above the limit."""
        ticks = self.shortest(members, upper)
        if not np.isfinite(ticks):
            return None
        total = np.maximum(self.values(ticks)[members, -1] + self.hops[members], self.floors[members])
        return ticks, int(members[np.argmax(total <= ticks)])

    def plan(self, pattern: int, interval: float) -> PatternPlan:
        """Return groups and layers of a pattern at an interval it reaches."""
        within = np.all(self.patterns <= self.patterns[pattern], axis=1)
        value = self.values(interval, within)
        stage = np.where(self.stage <= np.floor(interval / self.costs.num_micro_batches), self.stage, np.inf)
        end, at = self.num_layers, pattern
        groups: list[int] = []
        layers: list[int] = []
        while at < self.patterns.shape[0]:
            best = (np.inf, 0, 0)
            for g in np.flatnonzero(self.smaller[at] >= 0):
                sums = value[self.smaller[at, g]] + stage[g][:, end]
                cut = int(np.argmin(sums))
                best = min(best, (float(sums[cut]), int(g), cut))
            groups.append(best[1])
            layers.append(end - best[2])
            end, at = best[2], int(self.smaller[at, best[1]])
        shape = (self.costs.num_micro_batches, self.costs.batch_size)
        return PatternPlan(tuple(reversed(groups)), tuple(reversed(layers)), *shape)


def closure(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return (X, G) all patterns that are part of one of some patterns (P, G), the empty one left out.

    Examples
    --------
    >>> closure(np.array([[1, 1], [2, 0]])).tolist()
    [[0, 1], [1, 0], [1, 1], [2, 0]]
    """
    box = np.indices(counts.max(axis=0) + 1).reshape(counts.shape[1], -1).T
    inside = np.zeros(len(box), dtype=bool)
    for row in counts:
        inside |= np.all(box <= row, axis=1)
    inside[0] = False
    return np.asarray(box[inside], dtype=np.int64)


def _stage_times(problem: PatternProblem, costs: ShapeCosts) -> FloatArray:
    """Return (G, L + 1, L + 1) ticks of a stage ``[first, end)``, infinite where it is empty or doesn't fit."""
    table, classes, row = problem.instance.table, problem.groups.classes, costs.row
    prefix = table.layer_prefix_s[row][classes] / TICK_S
    stage = costs.fixed[:, None, None] + prefix[:, None, :] - prefix[:, :, None]
    stage[:, 0, :] += costs.embed[:, None]
    stage[:, :, -1] += costs.head[:, None]
    held = table.weight_prefix_bytes[classes] + costs.num_in_flight * table.kv_prefix_bytes[classes]
    memory = held[:, None, :] - held[:, :, None] + table.workspace_bytes[row][classes][:, None, None]
    memory[:, 0, :] += table.embed_bytes[classes][:, None]
    memory[:, :, -1] += table.head_bytes[row][classes][:, None]
    memory[:, 0, -1] -= table.tied_saving_bytes[classes]
    ends = np.arange(problem.num_layers + 1)
    fits = (memory <= table.capacity_bytes[classes][:, None, None]) & (ends[:, None] < ends[None, :])
    return np.where(fits, stage, np.inf)


def _longest_window(stage: FloatArray) -> int:
    """Return the most layers of an allowed stage."""
    first, end = np.nonzero(np.isfinite(stage))
    return int((end - first).max(initial=0))


def _extend(before: FloatArray, stage: FloatArray, longest: int) -> FloatArray:
    """Return (X, L + 1): ``min over cut of before[:, cut] + stage[cut, end]`` for stages of up to `longest` layers."""
    size = before.shape[1]
    reached = np.full_like(before, np.inf)
    if longest * 4 < size:
        for n in range(1, longest + 1):
            np.minimum(reached[:, n:], before[:, :-n] + np.diagonal(stage, n), out=reached[:, n:])
        return reached
    step = max(1, CHUNK // (size * size))
    for start in range(0, before.shape[0], step):
        part = before[start : start + step]
        reached[start : start + step] = np.min(part[:, :, None] + stage[None], axis=1)
    return reached


@dataclass(slots=True)
class _Rates:
    """Upper limits of rates by shape and pattern (S, P), and the exact rates found so far (P,)."""

    limits: FloatArray
    upper: FloatArray
    exact: FloatArray
    shape: NDArray[np.int64]
    interval: FloatArray


def _upper_limits(problem: PatternProblem, patterns: NDArray[np.int16]) -> _Rates:
    """Return limits from the smallest times and bytes of any layer."""
    size = patterns.shape[0]
    limits = np.zeros((len(problem.costs), size))
    for index, costs in enumerate(problem.costs):
        one = PatternProblem(problem.instance, problem.groups, (costs,), problem.is_exact)
        limits[index] = best_rates(one, patterns, np.zeros(size), exact=False).rate
    upper = limits.max(axis=0, initial=0.0)
    return _Rates(limits, upper, np.zeros(size), np.full(size, -1), np.full(size, np.inf))


def _make_exact(rates: _Rates, programs: list[LayeredProgram], pattern: int) -> None:
    """Replace one pattern's upper limit by its rate."""
    members = np.array([pattern])
    best = 0.0
    for index in np.argsort(-rates.limits[:, pattern], kind="stable"):
        if rates.limits[index, pattern] <= best:
            break
        program = programs[index]
        in_flight = program.costs.num_in_flight
        ceiling = np.inf if best == 0 else np.ceil(in_flight / (best * TICK_S)) - 1
        ticks = program.shortest(members, float(ceiling))
        if np.isfinite(ticks):
            rate = in_flight / (ticks * TICK_S)
            if rate > best:
                best, rates.shape[pattern], rates.interval[pattern] = rate, index, ticks
    rates.exact[pattern] = rates.upper[pattern] = best


def solve_layered(
    name: str, problem: PatternProblem, incumbent: Placement | None, limits: SolveLimits, started: float
) -> SolveResult:
    """Return the best plan for unequal layers; a bound only when links differ."""
    instance = problem.instance
    patterns = all_patterns(problem)
    rates = _upper_limits(problem, patterns)
    programs = [LayeredProgram(problem, costs, patterns) for costs in problem.costs]

    def elapsed() -> float:
        return time.perf_counter() - started

    def is_out_of_time() -> bool:
        return limits.time_s is not None and elapsed() > limits.time_s

    if instance.is_throughput:
        bound, chosen = _pack_lazily(problem, patterns, rates, programs, is_out_of_time)
    else:
        bound, chosen = _one_pipeline(rates, programs[0])
    details = (("route", "layered"), ("patterns", patterns.shape[0]), ("exact_patterns", int((rates.shape >= 0).sum())))
    if bound is None:
        return outcome(
            instance, name, None, None, elapsed_s=elapsed(), incumbent=incumbent, limits=limits, details=details,
            is_infeasible=True, witness=EnumerationWitness(patterns.shape[0]),
            message="no set of devices holds the model",
        )  # fmt: skip
    plans = [programs[rates.shape[p]].plan(p, float(rates.interval[p])) for p in chosen]
    plan = realise(instance.table, problem.groups, plans) if plans else None
    _, worth = better_plan(instance, incumbent, plan)
    return outcome(
        instance, name, plan, bound, elapsed_s=elapsed(), incumbent=incumbent,
        witness=EnumerationWitness(patterns.shape[0]), limits=limits, details=details,
        history=(HistoryPoint(elapsed(), worth, bound),),
        message="" if problem.groups.has_uniform_links else "pattern bound with the smallest hops",
    )  # fmt: skip


def _one_pipeline(rates: _Rates, program: LayeredProgram) -> tuple[float | None, tuple[int, ...]]:
    """Return the shortest interval of any pattern in seconds and the pattern; (None, ()) when none is possible."""
    hopeful = np.flatnonzero(rates.limits[0] > 0)
    if hopeful.size == 0:
        return None, ()
    found = program.best(hopeful, float("inf"))
    if found is None:
        return None, ()
    ticks, best = found
    rates.shape[best], rates.interval[best] = 0, ticks
    return ticks * TICK_S, (best,)


def _pack_lazily(
    problem: PatternProblem,
    patterns: NDArray[np.int16],
    rates: _Rates,
    programs: list[LayeredProgram],
    is_out_of_time: Callable[[], bool],
) -> tuple[float | None, tuple[int, ...]]:
    """Return minus the best sum of rates and its patterns; (None, ()) when no pattern is possible."""
    usage = patterns.astype(np.int64) @ problem.groups.usage.T
    cards = problem.groups.pool_cards
    done = np.zeros(patterns.shape[0], dtype=bool)
    while True:
        hopeful = np.flatnonzero(rates.upper > 0)
        value, picked = pack(cards, usage[hopeful], rates.upper[hopeful])
        chosen = tuple(int(hopeful[i]) for i in picked)
        if not chosen:
            return None, ()
        fresh = sorted({p for p in chosen if not done[p]})
        if not fresh:
            return -value, chosen
        if is_out_of_time():
            known = np.flatnonzero(rates.exact > 0)
            _, picked = pack(cards, usage[known], rates.exact[known])
            return -value, tuple(int(known[i]) for i in picked)
        for p in fresh:
            _make_exact(rates, programs, p)
            done[p] = True
