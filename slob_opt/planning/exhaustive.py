"""The oracle for tiny instances: looks at every plan, by the plainest means there are.

Every ordered set of devices, every cut of the layers, every shape; for throughput the best family of disjoint pipelines
over all sets of cards. It shares no search code with the other planners, so agreement with it means something.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Iterator

import numpy as np

from slob_opt.cost.table import CostTable, FloatArray, IntArray
from slob_opt.planning.evaluate import evaluate, report_pipeline
from slob_opt.planning.infeasible import explain_infeasible
from slob_opt.planning.instance import PlacementInstance
from slob_opt.planning.result import OPTIMALITY_TOLERANCE, HistoryPoint, SolveLimits, SolveResult, Status
from slob_opt.planning.witness import EnumerationWitness
from slob_opt.problem.placement import Pipeline, Placement, Stage

MAX_CARDS = 10
"""Most cards; 3^10 pairs of card sets are looked at to put pipelines together."""

MAX_SPLITS = 4_000_000
"""Most pairs of a route and a layer split, over all rows; about ten seconds. Chosen."""

_Choice = tuple[float, Pipeline]


class ExhaustivePlanner:
    """Looks at every plan and proves the optimum; refuses instances above a stated size.

    A refusal has status UNKNOWN (FEASIBLE with the incumbent, when one was given) and says the size.

    Parameters
    ----------
    max_splits
        Largest number of (route, layer split, row) triples to look at.

    Examples
    --------
    >>> from slob_opt.cost.direct import DirectClass, direct_table
    >>> from slob_opt.planning.objectives import IntervalObjective
    >>> table = direct_table([DirectClass("a", 1, 20, 1.0), DirectClass("b", 1, 90, 2.0)], 4, layer_bytes=10)
    >>> result = ExhaustivePlanner().solve(PlacementInstance(table, IntervalObjective(1)))
    >>> str(result.status), round(result.objective, 6)
    ('OPTIMAL', 6.0)
    """

    is_baseline = False

    def __init__(self, max_splits: int = MAX_SPLITS) -> None:
        self._max_splits = max_splits

    @property
    def name(self) -> str:
        """Name in tables and files."""
        return "exhaustive"

    def solve(
        self, instance: PlacementInstance, *, incumbent: Placement | None = None, limits: SolveLimits | None = None
    ) -> SolveResult:
        """Return the optimum, or a proof that no plan exists."""
        start, limits = time.perf_counter(), limits or SolveLimits()
        size = count_splits(instance)
        if instance.table.num_cards > MAX_CARDS or size > self._max_splits:
            reason = (
                f"not enumerated: {instance.table.num_cards} cards and {size} splits, "
                f"the limits are {MAX_CARDS} and {self._max_splits}"
            )
            return self._without_proof(instance, incumbent, limits, start, reason)
        best: dict[int, _Choice] = {}
        num_plans, lookup = 0, _Lookup(instance.table)
        for route in _routes(instance.table):
            if limits.time_s is not None and time.perf_counter() - start > limits.time_s:
                return self._without_proof(instance, incumbent, limits, start, "time limit reached while enumerating")
            mask = sum(1 << card for device in route for card in instance.table.device_cards[device])
            choice, looked_at = _best_on_route(instance, route, lookup)
            num_plans += looked_at
            if choice is not None and (mask not in best or choice[0] < best[mask][0]):
                best[mask] = choice
        witness = EnumerationWitness(num_plans)
        elapsed = time.perf_counter() - start
        details = (("num_plans", num_plans),)
        if not best:
            return SolveResult(
                self.name, Status.INFEASIBLE, None, None, None, elapsed, witness=witness, limits=limits,
                details=details, message=explain_infeasible(instance),
            )  # fmt: skip
        if instance.is_throughput:
            bound, family = _best_family(best, instance.table.num_cards)
        else:
            bound, pipeline = min((best[mask] for mask in sorted(best)), key=lambda choice: choice[0])
            family = (pipeline,)
        placement = Placement(family)
        objective = evaluate(instance, placement).objective
        if objective is None:
            raise AssertionError("the enumeration and evaluate() disagree on what fits")
        elapsed = time.perf_counter() - start
        # Shared network cards may let the family through only in part; its sum of rates is then a bound and no more.
        is_optimal = objective - bound <= OPTIMALITY_TOLERANCE * abs(objective)
        return SolveResult(
            self.name,
            Status.OPTIMAL if is_optimal else Status.FEASIBLE,
            placement,
            objective,
            bound,
            elapsed,
            witness=witness,
            history=(HistoryPoint(elapsed, objective, bound),),
            limits=limits,
            details=details,
            message="" if is_optimal else "shared network cards limit the sum of rates; the bound ignores them",
        )

    def _without_proof(
        self, instance: PlacementInstance, incumbent: Placement | None, limits: SolveLimits, start: float, reason: str
    ) -> SolveResult:
        """Result without a proof, keeping the incumbent when it is allowed."""
        objective = None if incumbent is None else evaluate(instance, incumbent).objective
        return SolveResult(
            self.name,
            Status.UNKNOWN if objective is None else Status.FEASIBLE,
            None if objective is None else incumbent,
            objective,
            None,
            time.perf_counter() - start,
            limits=limits,
            message=reason,
        )


def count_splits(instance: PlacementInstance) -> int:
    """Return how many (route, layer split, row) triples an enumeration looks at, card sharing ignored."""
    devices, layers = instance.table.num_devices, instance.table.num_layers
    rows = len({row for row, _, _ in instance.shapes()})
    return rows * sum(math.perm(devices, n) * math.comb(layers - 1, n - 1) for n in range(1, min(devices, layers) + 1))


def _routes(table: CostTable) -> Iterator[tuple[int, ...]]:
    """All ordered sets of planning devices that share no card and are no more than the layers."""
    for size in range(1, min(table.num_devices, table.num_layers) + 1):
        for route in itertools.permutations(range(table.num_devices), size):
            cards = [card for device in route for card in table.device_cards[device]]
            if len(cards) == len(set(cards)):
                yield route


def _cuts(num_layers: int, num_stages: int) -> IntArray:
    """(splits, stages + 1) int: every way to cut the layers into contiguous non-empty stages."""
    inner = list(itertools.combinations(range(1, num_layers), num_stages - 1))
    return np.array([(0, *cut, num_layers) for cut in inner], dtype=np.int64)


def _best_on_route(instance: PlacementInstance, route: tuple[int, ...], lookup: _Lookup) -> tuple[_Choice | None, int]:
    """Best pipeline on an ordered set of devices as (minimised worth, pipeline), and the number of plans looked at."""
    table, shapes = instance.table, instance.shapes()
    cuts = _cuts(table.num_layers, len(route))
    best: _Choice | None = None
    for row in sorted({shape[0] for shape in shapes}):
        stages = [lookup(row, device) for device in route]
        windows = [(cuts[:, s], cuts[:, s + 1]) for s in range(len(route))]
        times = np.stack([time_s[window] for (time_s, _), window in zip(stages, windows, strict=True)])
        most = np.stack([fits[window] for (_, fits), window in zip(stages, windows, strict=True)]).min(axis=0)
        sums, longest = times.sum(axis=0), times.max(axis=0)
        # Hops depend on the route alone: any split tells them.
        sample = report_pipeline(table, _pipeline(table, route, cuts[0], 1, 1), row)
        for _, k, b in (shape for shape in shapes if shape[0] == row):
            is_allowed = k * b <= most
            interval = np.maximum(sums + sample.hops_s + sample.return_s, k * np.maximum(longest, sample.occupancy_s))
            if instance.max_interval_s is not None:
                is_allowed &= interval <= instance.max_interval_s
            if not np.any(is_allowed):
                continue
            index = int(np.argmin(np.where(is_allowed, interval, np.inf)))
            worth = -(k * b / float(interval[index])) if instance.is_throughput else float(interval[index])
            if best is None or worth < best[0]:
                best = worth, _pipeline(table, route, cuts[index], k, b)
    return best, len(cuts) * len(shapes)


class _Lookup:
    """Time and memory of every stage a device can have, for each (row, device); computed once."""

    def __init__(self, table: CostTable) -> None:
        self._table = table
        self._found: dict[tuple[int, int], tuple[FloatArray, IntArray]] = {}

    def __call__(self, row: int, device: int) -> tuple[FloatArray, IntArray]:
        """(L + 1, L + 1) seconds of a stage ``[first, end)`` and (L + 1, L + 1) the most sequences it holds."""
        if (row, device) not in self._found:
            self._found[row, device] = self._compute(row, device)
        return self._found[row, device]

    def _compute(self, row: int, device: int) -> tuple[FloatArray, IntArray]:
        table, size = self._table, self._table.num_layers + 1
        times, most = np.zeros((size, size)), np.full((size, size), -1, np.int64)
        for first, end in itertools.combinations(range(size), 2):
            times[first, end] = table.stage_s(row, device, first, end)
            without_kv = sum(table.stage_memory(row, device, first, end, 0).values())
            kv = sum(table.stage_memory(row, device, first, end, 1).values()) - without_kv
            free = int(table.capacity_bytes[table.device_class[device]]) - without_kv
            if free >= 0:
                most[first, end] = free // kv if kv else 2**62
        return times, most


def _pipeline(table: CostTable, route: tuple[int, ...], cut: IntArray, k: int, b: int) -> Pipeline:
    """Pipeline of a route and its cuts."""
    stages = tuple(Stage(table.device_cards[d], int(cut[s]), int(cut[s + 1])) for s, d in enumerate(route))
    return Pipeline(stages, k, b)


def _best_family(best: dict[int, _Choice], num_cards: int) -> tuple[float, tuple[Pipeline, ...]]:
    """Smallest sum of worths of pipelines on disjoint sets of cards (bit masks), and these pipelines."""
    worth = [0.0] * (1 << num_cards)
    family: list[tuple[Pipeline, ...]] = [()] * (1 << num_cards)
    for cards in range(1, 1 << num_cards):
        lowest = cards & -cards
        # The lowest card is left out, or it is in one pipeline on `part`.
        worth[cards], family[cards] = worth[cards ^ lowest], family[cards ^ lowest]
        part = cards
        while part:
            if part & lowest and part in best:
                total = best[part][0] + worth[cards ^ part]
                if total < worth[cards]:
                    worth[cards], family[cards] = total, (best[part][1], *family[cards ^ part])
            part = (part - 1) & cards
    return worth[-1], family[-1]
