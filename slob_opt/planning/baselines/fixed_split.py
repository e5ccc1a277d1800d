"""From the layer splits that a baseline's rule gives to its result.

The rules say nothing about micro-batches, so each pipeline gets the K and b that are best for its fixed split. That is
generous to the baselines, and the same for all of them.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from slob_opt.cost.table import CostTable
from slob_opt.planning.evaluate import Evaluation, evaluate, format_gib, report_pipeline
from slob_opt.planning.instance import PlacementInstance
from slob_opt.planning.result import HistoryPoint, SolveLimits, SolveResult, Status
from slob_opt.planning.split import pipeline_of
from slob_opt.problem.placement import Pipeline, Placement


@dataclass(frozen=True, slots=True)
class FixedSplit:
    """A pipeline without its shape.

    Attributes
    ----------
    devices
        Planning devices in stage order.
    counts
        Layers of each, all positive.
    """

    devices: tuple[int, ...]
    counts: tuple[int, ...]

    @classmethod
    def of_holders(cls, devices: Sequence[int], counts: Sequence[int]) -> FixedSplit:
        """Return the split without the devices that got no layer."""
        kept = [(d, n) for d, n in zip(devices, counts, strict=True) if n > 0]
        return cls(tuple(d for d, _ in kept), tuple(n for _, n in kept))


Family = tuple[FixedSplit, ...]
"""Pipelines that are to work side by side."""


def whole_devices(table: CostTable) -> tuple[int, ...]:
    """Return planning devices that use no card twice, in table order: larger tensor-parallel groups come first.

    Today's engines put tensor parallelism inside a node and pipelines across nodes.
    """
    taken: set[int] = set()
    found = []
    for device in sorted(range(table.num_devices), key=lambda d: (-len(table.device_cards[d]), d)):
        if taken.isdisjoint(table.device_cards[device]):
            taken.update(table.device_cards[device])
            found.append(device)
    return tuple(sorted(found))


def shape_grid(instance: PlacementInstance) -> tuple[tuple[int, int], ...]:
    """Return (row, sequences in flight) pairs that a rule may plan memory for: per row K = 1, 2, 4, ..., largest."""
    depths: dict[tuple[int, int], list[int]] = {}
    for row, k, b in instance.shapes():
        depths.setdefault((row, b), []).append(k)
    return tuple(
        (row, k * b) for (row, b), found in depths.items() for k in found if k & (k - 1) == 0 or k == max(found)
    )


def largest_remainder(weights: Sequence[float], total: int) -> list[int]:
    """Return whole numbers in proportion to the weights that sum to `total`; ties go to the earlier entry."""
    scale = total / sum(weights)
    counts = [int(w * scale) for w in weights]
    order = sorted(range(len(weights)), key=lambda i: (counts[i] - weights[i] * scale, i))
    for i in order[: total - sum(counts)]:
        counts[i] += 1
    return counts


def solve_families(
    planner: str, instance: PlacementInstance, families: Iterable[Family], limits: SolveLimits | None
) -> SolveResult:
    """Return the best of the plans that a rule gives, or its failure.

    Parameters
    ----------
    planner
        Name of the baseline.
    instance
        What is planned.
    families
        Candidates of the rule, looked at in order until the time limit; the first of equals is kept.
    limits
        Time limit and the like; ``None`` takes the defaults.
    """
    start, limits = time.perf_counter(), limits or SolveLimits()
    best: tuple[float, Placement] | None = None
    reason = "the rule finds no set of devices that holds the model"
    has_reason = False
    num_families = 0
    for family in families:
        num_families += 1
        pipelines = [_with_best_shape(instance, split) for split in family]
        broken = [p for p in pipelines if isinstance(p, str)]
        if not broken:
            placement = Placement(tuple(p for p in pipelines if isinstance(p, Pipeline)))
            found = evaluate(instance, placement)
            if found.objective is not None and (best is None or found.objective < best[0]):
                best = found.objective, placement
            broken = list(found.violations)
        if broken and not has_reason:
            reason, has_reason = broken[0], True
        if limits.time_s is not None and time.perf_counter() - start > limits.time_s:
            break
    elapsed = time.perf_counter() - start
    details = (("num_candidates", num_families),)
    if best is None:
        return SolveResult(
            planner, Status.UNKNOWN, None, None, None, elapsed, limits=limits, details=details,
            message=f"failed: {reason}",
        )  # fmt: skip
    return SolveResult(
        planner,
        Status.FEASIBLE,
        best[1],
        best[0],
        None,
        elapsed,
        history=(HistoryPoint(elapsed, best[0], None),),
        limits=limits,
        details=details,
        message=_unused(instance.table, best[1]),
    )


def _unused(table: CostTable, placement: Placement) -> str:
    """Sentence that lists the cards a plan leaves out; empty when it uses all."""
    names = [
        name
        for name, cards in zip(table.device_names, table.device_cards, strict=True)
        if len(cards) == 1 and cards[0] not in placement.used_cards
    ]
    return f"unused: {', '.join(names)}" if names else ""


def _with_best_shape(instance: PlacementInstance, split: FixedSplit) -> Pipeline | str:
    """Pipeline with the best allowed K and b for its split, or what forbids even the smallest shape."""
    table = instance.table
    best: tuple[float, int, Pipeline] | None = None
    for row, shapes in _by_row(instance):
        report = report_pipeline(table, pipeline_of(table, split.devices, split.counts, 1, table.batch_sizes[row]), row)
        path_s = sum(s.time_s for s in report.stages) + report.hops_s + report.return_s
        longest_s = max(report.occupancy_s, *(s.time_s for s in report.stages))
        for k, b in shapes:
            interval_s = max(path_s, k * longest_s)
            worth = -(k * b / interval_s) if instance.is_throughput else interval_s
            if best is not None and (worth, k * b) >= best[:2]:
                continue
            if instance.max_interval_s is not None and interval_s > instance.max_interval_s:
                continue
            if _fits(table, row, split, k * b):
                best = worth, k * b, pipeline_of(table, split.devices, split.counts, k, b)
    if best is not None:
        return best[2]
    shapes_by_size = sorted((k * b, row, k, b) for row, k, b in instance.shapes())
    if not shapes_by_size:
        return "no batch size of the grid is within max_in_flight"
    _, row, k, b = shapes_by_size[0]
    smallest = Placement((pipeline_of(table, split.devices, split.counts, k, b),))
    return _first_violation(evaluate(instance, smallest))


def _first_violation(evaluation: Evaluation) -> str:
    """The memory violation that lacks most, else the first other one."""
    stages = [s for report in evaluation.pipelines for s in report.stages]
    worst = min(stages, key=lambda s: s.headroom_bytes)
    short = f"has {format_gib(worst.capacity_bytes)}"
    for violation in evaluation.violations:
        if worst.headroom_bytes < 0 and f"[{worst.first}, {worst.end})" in violation and violation.endswith(short):
            return violation
    return evaluation.violations[0]


def _by_row(instance: PlacementInstance) -> Iterator[tuple[int, list[tuple[int, int]]]]:
    """(row, [(K, b), ...]) of an instance's shapes."""
    shapes = instance.shapes()
    for row in sorted({shape[0] for shape in shapes}):
        yield row, [(k, b) for r, k, b in shapes if r == row]


def _fits(table: CostTable, row: int, split: FixedSplit, sequences: int) -> bool:
    """Whether every stage of a split has room for a number of sequences."""
    first = 0
    for device, count in zip(split.devices, split.counts, strict=True):
        held = sum(table.stage_memory(row, device, first, first + count, sequences).values())
        if held > int(table.capacity_bytes[table.device_class[device]]):
            return False
        first += count
    return True
