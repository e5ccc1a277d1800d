"""Worth of a placement in whole ticks, whole bytes and exact rationals; shares no code with :mod:`.evaluate`."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from scipy.optimize import linprog

from slob_opt.cost.table import CostTable, FloatArray, IntArray
from slob_opt.planning.instance import PlacementInstance
from slob_opt.planning.objectives import IntervalObjective
from slob_opt.planning.ticks import TICKS_PER_S, whole_ticks
from slob_opt.problem.placement import Pipeline, Placement


@dataclass(frozen=True, slots=True)
class MemoryRow:
    """Memory of one stage, recomputed.

    Attributes
    ----------
    pipeline, stage
        Where in the placement.
    device
        Name of the planning device.
    first, end
        Layers.
    need_bytes, capacity_bytes
        Bytes a card.
    parts
        (part, bytes a card) pairs that add up to `need_bytes`.
    """

    pipeline: int
    stage: int
    device: str
    first: int
    end: int
    need_bytes: int
    capacity_bytes: int
    parts: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class ExactWorth:
    """What a placement is worth, exactly.

    Attributes
    ----------
    objective
        Minimised worth, seconds or negative tokens/s; ``None`` when it can't be computed.
    intervals_s
        One a pipeline that could be computed, seconds.
    memory
        One row a stage.
    violations
        One sentence each; empty when the placement is allowed.
    """

    objective: Fraction | None
    intervals_s: tuple[Fraction, ...]
    memory: tuple[MemoryRow, ...]
    violations: tuple[str, ...]


def _ticks(value: float | np.floating) -> int:
    return int(whole_ticks(np.asarray(value)))


def _sum_bytes(values: IntArray) -> int:
    return sum(int(v) for v in values)


def exact_worth(instance: PlacementInstance, placement: Placement) -> ExactWorth:
    """Return worth, memory and violations of a placement; never raises for a placement that is merely not allowed."""
    table, objective = instance.table, instance.objective
    violations: list[str] = []
    memory: list[MemoryRow] = []
    intervals: list[Fraction] = []
    rates: list[Fraction] = []
    loads: list[dict[tuple[str, int], Fraction]] = []
    all_cards = [c for p in placement.pipelines for s in p.stages for c in s.cards]
    if len(set(all_cards)) < len(all_cards):
        twice = sorted({c for c in all_cards if all_cards.count(c) > 1})
        violations.append(f"cards {twice} serve more than one stage, pipelines have to be disjoint")
    if isinstance(objective, IntervalObjective) and len(placement.pipelines) != 1:
        violations.append(f"{len(placement.pipelines)} pipelines, the interval objective takes one")
    for index, pipeline in enumerate(placement.pipelines):
        done = sum(s.end - s.first for s in pipeline.stages)
        if done != table.num_layers or pipeline.stages[-1].end != table.num_layers:
            counts = " + ".join(str(s.end - s.first) for s in pipeline.stages)
            violations.append(f"pipeline {index} executes {counts} = {done} layers, the model has {table.num_layers}")
            continue
        devices = [table.device_of_cards.get(frozenset(s.cards)) for s in pipeline.stages]
        known = [d for d in devices if d is not None]
        if len(known) < len(devices):
            lost = [s.cards for s, d in zip(pipeline.stages, devices, strict=True) if d is None]
            violations.append(f"pipeline {index}: cards {lost[0]} are no device of this table")
            continue
        row = 0
        if not isinstance(objective, IntervalObjective):
            matches = [r for r, b in enumerate(table.batch_sizes) if r > 0 and b == pipeline.batch_size]
            if not matches:
                violations.append(f"pipeline {index}: batch size {pipeline.batch_size} is not in the table's grid")
                continue
            row = matches[0]
        memory.extend(_memory(table, index, pipeline, known, row))
        interval, load = _interval(table, pipeline, known, row)
        intervals.append(interval)
        rates.append(Fraction(pipeline.num_micro_batches * pipeline.batch_size) / interval if interval else Fraction(0))
        loads.append(load)
        violations.extend(_limits(instance, index, pipeline, interval))
    violations.extend(
        f"{m.device} needs {m.need_bytes} bytes for layers [{m.first}, {m.end}) and has {m.capacity_bytes}"
        for m in memory
        if m.need_bytes > m.capacity_bytes
    )
    worth: Fraction | None = None
    if len(intervals) == len(placement.pipelines) and all(interval > 0 for interval in intervals):
        worth = intervals[0] if isinstance(objective, IntervalObjective) else -_carried(table, rates, loads)
    return ExactWorth(worth, tuple(intervals), tuple(memory), tuple(violations))


def _memory(table: CostTable, index: int, pipeline: Pipeline, devices: list[int], row: int) -> list[MemoryRow]:
    """Return the bytes of each stage."""
    rows = []
    sequences = pipeline.num_micro_batches * pipeline.batch_size
    last = len(devices) - 1
    for position, (device, stage) in enumerate(zip(devices, pipeline.stages, strict=True)):
        c = int(table.device_class[device])
        held = range(stage.first, stage.end)
        parts = [
            ("workspace", int(table.workspace_bytes[row, c])),
            ("weights", _sum_bytes(table.weight_bytes[c, held.start : held.stop])),
            ("kv", sequences * _sum_bytes(table.kv_bytes[c, held.start : held.stop])),
        ]
        if position == 0:
            parts.append(("embedding", int(table.embed_bytes[c])))
        if position == last:
            parts.append(("head", int(table.head_bytes[row, c])))
        if last == 0:
            parts.append(("tied", -int(table.tied_saving_bytes[c])))
        need, room = sum(size for _, size in parts), int(table.capacity_bytes[c])
        name = table.device_names[device]
        rows.append(MemoryRow(index, position, name, stage.first, stage.end, need, room, tuple(parts)))
    return rows


def _interval(
    table: CostTable, pipeline: Pipeline, devices: list[int], row: int
) -> tuple[Fraction, dict[tuple[str, int], Fraction]]:
    """Return the interval in seconds, and what network cards carry for each token, bytes by (direction, node)."""
    k, last = pipeline.num_micro_batches, len(devices) - 1
    times = []
    for position, (device, stage) in enumerate(zip(devices, pipeline.stages, strict=True)):
        c = int(table.device_class[device])
        ticks = _ticks(table.fixed_s[row, c])
        ticks += sum(_ticks(t) for t in table.layer_s[row, c, stage.first : stage.end])
        ticks += _ticks(table.embed_s[row, c]) if position == 0 else 0
        ticks += _ticks(table.head_s[row, c]) if position == last else 0
        times.append(ticks)
    chain, busiest = sum(times), Fraction(max(times))
    load: dict[tuple[str, int], Fraction] = {}
    if last > 0:
        messages = [(a, b, int(table.hop_bytes[row])) for a, b in itertools.pairwise(devices)]
        messages.append((devices[-1], devices[0], int(table.return_bytes[row])))
        for position, (a, b, size) in enumerate(messages):
            link = int(table.link_class[a, b])
            hop, busy = (
                (table.return_s, table.return_occupancy_s)
                if position == len(messages) - 1
                else (table.hop_s, table.occupancy_s)
            )
            chain += _ticks(hop[row, link])
            busiest = max(busiest, Fraction(_ticks(busy[row, link])))
            source, target = int(table.device_node[a]), int(table.device_node[b])
            if source != target:
                for key in (("out", source), ("in", target)):
                    load[key] = load.get(key, Fraction(0)) + size
        for (_, node), carried in load.items():
            capacity = float(table.nic_bytes_per_s[node])
            if np.isfinite(capacity):
                busiest = max(busiest, carried / Fraction(capacity) * TICKS_PER_S)
    per_token = {key: size / pipeline.batch_size for key, size in load.items()}
    return max(Fraction(chain), k * busiest) / TICKS_PER_S, per_token


def _limits(instance: PlacementInstance, index: int, pipeline: Pipeline, interval_s: Fraction) -> list[str]:
    """Return what violates the objective's limits on K, b, K * b and the interval."""
    objective = instance.objective
    k, b = pipeline.num_micro_batches, pipeline.batch_size
    if isinstance(objective, IntervalObjective):
        if k != objective.in_flight or b != 1:
            return [f"pipeline {index} has K = {k}, b = {b}; the objective has K = {objective.in_flight}, b = 1"]
        return []
    found = []
    if k > objective.max_micro_batches:
        found.append(f"pipeline {index} has K = {k}, the limit is {objective.max_micro_batches}")
    if objective.max_in_flight is not None and k * b > objective.max_in_flight:
        found.append(f"pipeline {index} has {k * b} sequences in flight, the limit is {objective.max_in_flight}")
    if objective.max_interval_s is not None and interval_s > Fraction(objective.max_interval_s):
        found.append(
            f"pipeline {index} has an interval of {float(interval_s):.6g} s, "
            f"the limit is {objective.max_interval_s:g} s"
        )
    return found


def _carried(table: CostTable, rates: list[Fraction], loads: list[dict[tuple[str, int], Fraction]]) -> Fraction:
    """Return the summed rate that network cards let through, tokens/s.

    Where shared cards bind, the split comes from a float linear program and is then made feasible in exact arithmetic,
    so the figure is one that the placement does reach.
    """
    nodes = sorted({key for load in loads for key in load if np.isfinite(table.nic_bytes_per_s[key[1]])})
    capacity = {key: Fraction(float(table.nic_bytes_per_s[key[1]])) for key in nodes}

    def use(flow: list[Fraction], key: tuple[str, int]) -> Fraction:
        return sum((f * load.get(key, Fraction(0)) for f, load in zip(flow, loads, strict=True)), Fraction(0))

    if all(use(rates, key) <= capacity[key] for key in nodes):
        return sum(rates, Fraction(0))
    matrix: FloatArray = np.array([[float(load.get(key, 0) / capacity[key]) for load in loads] for key in nodes])
    solved = linprog(-np.ones(len(rates)), matrix, np.ones(len(nodes)), bounds=[(0.0, float(r)) for r in rates])
    split: list[float] = [0.0] * len(rates) if solved.x is None else solved.x.tolist()
    flow = [min(rate, max(Fraction(0), Fraction(x))) for rate, x in zip(rates, split, strict=True)]
    over = max([Fraction(1)] + [use(flow, key) / capacity[key] for key in nodes])
    return sum(flow, Fraction(0)) / over
