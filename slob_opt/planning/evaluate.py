"""What a placement is worth, and what it violates; reads the cost table and nothing else."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
from scipy.optimize import linprog

from slob_opt.cost.table import CostTable
from slob_opt.errors import InputError
from slob_opt.planning.instance import PlacementInstance
from slob_opt.planning.objectives import IntervalObjective
from slob_opt.problem.placement import Pipeline, Placement


@dataclass(frozen=True, slots=True)
class StageReport:
    """One stage in numbers.

    Attributes
    ----------
    device
        Planning device.
    first, end
        Layers.
    time_s
        Time in one iteration, seconds.
    memory
        (part, bytes a card) pairs.
    capacity_bytes
        Usable bytes of a card.
    """

    device: int
    first: int
    end: int
    time_s: float
    memory: tuple[tuple[str, int], ...]
    capacity_bytes: int

    @property
    def memory_bytes(self) -> int:
        """Bytes a card of the stage holds."""
        return sum(size for _, size in self.memory)

    @property
    def headroom_bytes(self) -> int:
        """Free bytes a card; negative when the stage does not fit."""
        return self.capacity_bytes - self.memory_bytes


@dataclass(frozen=True, slots=True)
class PipelineReport:
    """One pipeline in numbers.

    Attributes
    ----------
    stages
        In execution order.
    hops_s, return_s
        Time of all hops forward and of the hop back, seconds.
    occupancy_s
        Largest time that one link (or network card) is busy in an iteration, seconds.
    interval_s
        Token interval, seconds.
    rate
        Output tokens/s (K * b / interval), before network cards limit it.
    """

    stages: tuple[StageReport, ...]
    hops_s: float
    return_s: float
    occupancy_s: float
    interval_s: float
    rate: float

    @property
    def bottleneck(self) -> int:
        """Index of the stage with the longest time."""
        return int(np.argmax([s.time_s for s in self.stages]))


@dataclass(frozen=True, slots=True)
class Evaluation:
    """A placement in numbers.

    Attributes
    ----------
    objective
        Minimised worth; ``None`` when the placement is not allowed.
    violations
        One sentence each, empty when the placement is allowed.
    pipelines
        Reports, in the placement's order.
    nic_factor
        Share of the sum of rates that network cards let through; 1.0 when they don't bind.
    """

    objective: float | None
    violations: tuple[str, ...]
    pipelines: tuple[PipelineReport, ...]
    nic_factor: float = 1.0

    @property
    def is_feasible(self) -> bool:
        """Whether nothing is violated."""
        return not self.violations


def format_gib(num_bytes: int) -> str:
    """Return bytes as GiB with two digits."""
    return f"{num_bytes / 2**30:.2f} GiB"


def stage_devices(table: CostTable, pipeline: Pipeline) -> tuple[int, ...]:
    """Return the planning device of each stage; raises InputError when cards form no planning device."""
    found = []
    for stage in pipeline.stages:
        device = table.device_of_cards.get(frozenset(stage.cards))
        if device is None:
            raise InputError(f"cards {stage.cards} are no device or tensor-parallel group of this cluster")
        found.append(device)
    return tuple(found)


def _nic_occupancy(table: CostTable, row: int, devices: tuple[int, ...]) -> float:
    """Largest busy time of one network card (per direction) in an iteration of a pipeline, seconds."""
    outgoing = np.zeros(len(table.nic_bytes_per_s))
    incoming = np.zeros(len(table.nic_bytes_per_s))
    for a, b, size in _messages(table, row, devices):
        source, target = table.device_node[a], table.device_node[b]
        if source != target:
            outgoing[source] += size
            incoming[target] += size
    return float(np.max(np.maximum(outgoing, incoming) / table.nic_bytes_per_s))


def _messages(table: CostTable, row: int, devices: tuple[int, ...]) -> list[tuple[int, int, int]]:
    """Messages of one iteration as (from, to, bytes), the returned token ids last."""
    if len(devices) == 1:
        return []
    forward = [(a, b, int(table.hop_bytes[row])) for a, b in itertools.pairwise(devices)]
    return [*forward, (devices[-1], devices[0], int(table.return_bytes[row]))]


def report_pipeline(table: CostTable, pipeline: Pipeline, row: int) -> PipelineReport:
    """Return the numbers of one pipeline in iteration shape `row`; does not check that it is allowed."""
    devices = stage_devices(table, pipeline)
    k, sequences = pipeline.num_micro_batches, pipeline.num_in_flight
    stages = tuple(
        StageReport(
            device=d,
            first=s.first,
            end=s.end,
            time_s=table.stage_s(row, d, s.first, s.end),
            memory=tuple(table.stage_memory(row, d, s.first, s.end, sequences).items()),
            capacity_bytes=int(table.capacity_bytes[table.device_class[d]]),
        )
        for d, s in zip(devices, pipeline.stages, strict=True)
    )
    hops_s = return_s = occupancy_s = 0.0
    if len(devices) > 1:
        links = [table.link_class[a, b] for a, b in itertools.pairwise(devices)]
        back = table.link_class[devices[-1], devices[0]]
        hops_s = float(sum(table.hop_s[row, c] for c in links))
        return_s = float(table.return_s[row, back])
        occupancy_s = float(max(*(table.occupancy_s[row, c] for c in links), table.return_occupancy_s[row, back]))
        if np.any(np.isfinite(table.nic_bytes_per_s)):
            occupancy_s = max(occupancy_s, _nic_occupancy(table, row, devices))
    slowest = max(s.time_s for s in stages)
    interval_s = max(sum(s.time_s for s in stages) + hops_s + return_s, k * max(slowest, occupancy_s))
    return PipelineReport(stages, hops_s, return_s, occupancy_s, interval_s, sequences / interval_s)


def _nic_factor(table: CostTable, placement: Placement, rows: list[int], reports: list[PipelineReport]) -> float:
    """Share of the summed rates that shared network cards let through, by a small linear program."""
    if len(reports) < 2 or not np.any(np.isfinite(table.nic_bytes_per_s)):
        return 1.0
    nodes = len(table.nic_bytes_per_s)
    load = np.zeros((2 * nodes, len(reports)))
    for p, (pipeline, row) in enumerate(zip(placement.pipelines, rows, strict=True)):
        for a, b, size in _messages(table, row, stage_devices(table, pipeline)):
            source, target = int(table.device_node[a]), int(table.device_node[b])
            if source != target:
                load[source, p] += size / pipeline.batch_size
                load[nodes + target, p] += size / pipeline.batch_size
    capacity = np.concatenate([table.nic_bytes_per_s, table.nic_bytes_per_s])
    rates = np.array([r.rate for r in reports])
    binds = np.isfinite(capacity) & (load @ rates > capacity)
    if not np.any(binds):
        return 1.0
    keep = np.isfinite(capacity)
    scale = capacity[keep]
    solved = linprog(
        -np.ones(len(rates)), load[keep] / scale[:, None], np.ones(scale.size), bounds=[(0, r) for r in rates]
    )
    return float(np.asarray(solved.x).sum() / rates.sum())


def evaluate(instance: PlacementInstance, placement: Placement) -> Evaluation:
    """Return worth and violations of a placement under an instance's objective.

    Raises
    ------
    InputError
        When the placement names cards or batch sizes that the table doesn't have.

    Examples
    --------
    >>> from slob_opt.cost.direct import DirectClass, direct_table
    >>> from slob_opt.planning.objectives import IntervalObjective
    >>> from slob_opt.problem.placement import Stage
    >>> table = direct_table([DirectClass("a", 1, 100, 0.25)], 4, layer_bytes=10)
    >>> plan = Placement((Pipeline((Stage((0,), 0, 4),)),))
    >>> evaluate(PlacementInstance(table, IntervalObjective(1)), plan).objective
    1.0
    """
    table, objective = instance.table, instance.objective
    violations: list[str] = []
    reports: list[PipelineReport] = []
    rows: list[int] = []
    if not placement.has_disjoint_pipelines:
        violations.append("pipelines share cards; this objective is defined for disjoint pipelines")
    for index, pipeline in enumerate(placement.pipelines):
        if pipeline.num_layers != table.num_layers:
            violations.append(
                f"pipeline {index} executes {pipeline.num_layers} layers, the model has {table.num_layers}"
            )
            continue
        row = 0 if isinstance(objective, IntervalObjective) else table.row_of_batch(pipeline.batch_size)
        rows.append(row)
        report = report_pipeline(table, pipeline, row)
        reports.append(report)
        for stage in report.stages:
            if stage.headroom_bytes < 0:
                violations.append(
                    f"{table.device_names[stage.device]} needs {format_gib(stage.memory_bytes)} for layers "
                    f"[{stage.first}, {stage.end}) and has {format_gib(stage.capacity_bytes)}"
                )
        violations.extend(_shape_violations(instance, index, pipeline, report.interval_s))
    if isinstance(objective, IntervalObjective) and len(placement.pipelines) != 1:
        violations.append(f"{len(placement.pipelines)} pipelines, the interval objective takes one")
    if violations:
        return Evaluation(None, tuple(violations), tuple(reports))
    if isinstance(objective, IntervalObjective):
        return Evaluation(reports[0].interval_s, (), tuple(reports))
    factor = _nic_factor(table, placement, rows, reports)
    return Evaluation(-sum(r.rate for r in reports) * factor, (), tuple(reports), factor)


def _shape_violations(instance: PlacementInstance, index: int, pipeline: Pipeline, interval_s: float) -> list[str]:
    """Violated limits on K, b, K * b and the interval."""
    objective = instance.objective
    k, b = pipeline.num_micro_batches, pipeline.batch_size
    if isinstance(objective, IntervalObjective):
        if (k, b) != (objective.in_flight, 1):
            return [f"pipeline {index} has K = {k}, b = {b}; the objective has K = {objective.in_flight}, b = 1"]
        return []
    found = []
    if k > objective.max_micro_batches:
        found.append(f"pipeline {index} has K = {k}, the limit is {objective.max_micro_batches}")
    if objective.max_in_flight is not None and k * b > objective.max_in_flight:
        found.append(f"pipeline {index} has {k * b} sequences in flight, the limit is {objective.max_in_flight}")
    if objective.max_interval_s is not None and interval_s > objective.max_interval_s:
        found.append(
            f"pipeline {index} has an interval of {interval_s:.6g} s, the limit is {objective.max_interval_s:g} s"
        )
    return found
