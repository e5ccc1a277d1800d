"""Best rate of many patterns, exact or as an upper limit, with as little work as the question needs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from slob_opt.cost.table import TICK_S, FloatArray
from slob_opt.planning.groups import Groups, PatternPlan, ShapeCosts, group_devices, shape_costs
from slob_opt.planning.instance import PlacementInstance
from slob_opt.planning.pattern_kernel import (
    least_extras,
    pattern_split,
    reaches,
    shortest_interval,
    single_interval,
)

CHUNK = 1 << 14


@dataclass(frozen=True, slots=True)
class PatternProblem:
    """An instance seen through its groups.

    Attributes
    ----------
    instance
        What is to be planned.
    groups
        Groups and pools of its table.
    costs
        Costs by shape, most sequences in flight first.
    is_exact
        Whether a pattern's value is what a real pipeline reaches (identical layers, one link class); otherwise values
        are bounds.
    """

    instance: PlacementInstance
    groups: Groups
    costs: tuple[ShapeCosts, ...]
    is_exact: bool

    @property
    def num_layers(self) -> int:
        """L."""
        return self.instance.table.num_layers

    @property
    def max_devices(self) -> int:
        """Most devices of one pipeline."""
        return self.num_layers


def pattern_problem(instance: PlacementInstance) -> PatternProblem:
    """Return the instance seen through its groups."""
    groups = group_devices(instance.table)
    shapes = sorted(instance.shapes(), key=lambda s: (-s[1] * s[2], s[0]))
    costs = tuple(shape_costs(instance, groups.classes, s) for s in shapes)
    exact = instance.table.has_identical_layers and groups.has_uniform_links
    exact = exact and not bool(np.any(np.isfinite(instance.table.nic_bytes_per_s)))
    return PatternProblem(instance, groups, costs, exact)


@dataclass(slots=True)
class RateTable:
    """Best known rate of each pattern and how it is reached.

    Attributes
    ----------
    rate
        (P,) float64, output tokens/s; where nothing beat the floor it is the floor.
    shape
        (P,) int, index into ``PatternProblem.costs``; -1 where nothing beat the floor.
    first, last
        (P,) int, groups of the first and last stage; -1 in relaxed values.
    interval
        (P,) float64, ticks.
    """

    rate: FloatArray
    shape: NDArray[np.int64]
    first: NDArray[np.int64]
    last: NDArray[np.int64]
    interval: FloatArray


def _threshold(costs: ShapeCosts, floor: FloatArray) -> FloatArray:
    """Return (P,) ticks: the largest interval whose rate is strictly above `floor` tokens/s."""
    with np.errstate(divide="ignore"):
        limit = costs.num_in_flight / (floor * TICK_S)
    return np.asarray(np.where(floor > 0, np.minimum(np.ceil(limit) - 1, costs.max_interval), costs.max_interval))


def best_rates(problem: PatternProblem, counts: NDArray[np.int16], floor: FloatArray, exact: bool) -> RateTable:
    """Return the best rate of each pattern, as far as it is above its floor.

    Parameters
    ----------
    counts
        (P, G) devices of each group.
    floor
        (P,) tokens/s; rates that don't beat it are not looked for.
    exact
        Enumerate first and last groups; otherwise relax them, which gives upper limits and is about G squared times
        faster.
    """
    size = counts.shape[0]
    table = RateTable(
        rate=np.array(floor, dtype=np.float64),
        shape=np.full(size, -1),
        first=np.full(size, -1),
        last=np.full(size, -1),
        interval=np.full(size, np.inf),
    )
    for start in range(0, size, CHUNK):
        _rates_of_chunk(problem, counts, slice(start, min(start + CHUNK, size)), table, exact)
    return table


def _rates_of_chunk(
    problem: PatternProblem, counts: NDArray[np.int16], part: slice, table: RateTable, exact: bool
) -> None:
    """Raise the rates of one chunk of patterns in place."""
    n = np.ascontiguousarray(counts[part].T, dtype=np.float64)
    devices = n.sum(axis=0)
    offset = part.start
    alone = np.flatnonzero(devices == 1)
    alone_group = n[:, alone].argmax(axis=0)
    several = np.flatnonzero(devices > 1)
    n, devices = n[:, several], devices[several]
    row_cache: dict[int, tuple[FloatArray, FloatArray]] = {}
    for index, costs in enumerate(problem.costs):
        if alone.size:
            interval = single_interval(costs, problem.num_layers)[alone_group]
            _improve(table, alone + offset, index, costs, interval, alone_group, alone_group)
        if several.size == 0:
            continue
        if costs.row not in row_cache:
            base = (costs.fixed + costs.layer) @ n + (devices - 1) * costs.hop + costs.ret + least_extras(n, costs)
            row_cache[costs.row] = (base, devices)
        base, _ = row_cache[costs.row]
        limit = _threshold(costs, table.rate[several + offset])
        room = np.maximum(costs.cap, 0) @ n
        hopeful = np.flatnonzero((base <= limit) & (room >= problem.num_layers))
        if hopeful.size == 0:
            continue
        hopeful = hopeful[reaches(n[:, hopeful], costs, problem.num_layers, limit[hopeful])]
        for first, last in _ends(problem, exact):
            chosen = hopeful
            if first is not None and last is not None:
                need = np.zeros(problem.groups.num_groups)
                need[first] += 1
                need[last] += 1
                chosen = hopeful[np.all(n[:, hopeful] >= need[:, None], axis=0)]
                limit = _threshold(costs, table.rate[several + offset])
            if chosen.size == 0:
                continue
            interval = shortest_interval(n[:, chosen], costs, problem.num_layers, limit[chosen], first, last)
            ends = (
                np.full(chosen.size, -1 if first is None else first),
                np.full(chosen.size, -1 if last is None else last),
            )
            _improve(table, several[chosen] + offset, index, costs, interval, *ends)


def _ends(problem: PatternProblem, exact: bool) -> Iterator[tuple[int | None, int | None]]:
    """Yield the pairs of first and last group to try."""
    if not exact:
        yield None, None
        return
    for first in range(problem.groups.num_groups):
        for last in range(problem.groups.num_groups):
            yield first, last


def _improve(
    table: RateTable,
    where: NDArray[np.int64],
    index: int,
    costs: ShapeCosts,
    interval: FloatArray,
    first: NDArray[np.int64],
    last: NDArray[np.int64],
) -> None:
    """Enter rates that beat the table's."""
    rate = costs.num_in_flight / (interval * TICK_S)
    better = rate > table.rate[where]
    at = where[better]
    table.rate[at] = rate[better]
    table.shape[at] = index
    table.first[at] = first[better]
    table.last[at] = last[better]
    table.interval[at] = interval[better]


def plan_of(problem: PatternProblem, pattern: NDArray[np.int64], table: RateTable, index: int) -> PatternPlan:
    """Return the pipeline behind entry `index` of an exact rate table."""
    costs = problem.costs[int(table.shape[index])]
    if int(pattern.sum()) == 1:
        return PatternPlan((int(np.argmax(pattern)),), (problem.num_layers,), costs.num_micro_batches, costs.batch_size)
    groups, layers = pattern_split(
        np.asarray(pattern, np.int64),
        costs,
        problem.num_layers,
        float(table.interval[index]),
        int(table.first[index]),
        int(table.last[index]),
    )
    return PatternPlan(groups, layers, costs.num_micro_batches, costs.batch_size)
