"""Why a plan leaves a device out, told by trying what would happen if it were put in."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from experiments.layer_map import distinct_names, left_out_devices
from slob_opt.cost.table import CostTable
from slob_opt.planning.evaluate import format_gib, report_pipeline, stage_devices
from slob_opt.planning.instance import PlacementInstance
from slob_opt.planning.split import best_split, pipeline_of
from slob_opt.problem.placement import Pipeline, Placement

SMALL_CHANGE = 5e-4
"""Relative change of an interval that is not worth a device. Chosen: below the cost model's own error by far."""

MAX_TRIALS = 600
"""Most insertions tried per class of devices. Chosen: below a second on 40 stages."""


@dataclass(frozen=True, slots=True)
class LeftOut:
    """One device without work.

    Attributes
    ----------
    device
        Name of the planning device.
    class_name
        Its class.
    reason
        One sentence.
    """

    device: str
    class_name: str
    reason: str


@dataclass(frozen=True, slots=True)
class _Insertion:
    """A device put into a pipeline: index of the pipeline, layers it would get, interval in seconds."""

    pipeline: int
    layers: int
    interval_s: float


def explain_left_out(instance: PlacementInstance, placement: Placement) -> tuple[LeftOut, ...]:
    """Return a reason for every device that a plan leaves out.

    For each the best single insertion is found: every position in every pipeline, layers split anew by
    :func:`slob_opt.planning.split.best_split`, K and b as planned. Devices of one class and one node share the finding.
    """
    table = instance.table
    devices = left_out_devices(table, placement)
    if not devices:
        return ()
    alone, names = _alone(instance, placement, devices), distinct_names(table)
    by_place: dict[tuple[int, int], str] = {}
    found = []
    for device in devices:
        place = (int(table.device_class[device]), -1 if table.has_uniform_links else int(table.device_node[device]))
        if place not in by_place:
            by_place[place] = _reason(instance, placement, device) + alone
        name = names[table.device_class[device]]
        found.append(LeftOut(table.device_names[device], name, by_place[place]))
    return tuple(found)


def summarise(left_out: tuple[LeftOut, ...]) -> tuple[tuple[str, tuple[str, ...], str], ...]:
    """Return (class, device names, reason) with devices of one class and one reason together."""
    groups: dict[tuple[str, str], list[str]] = defaultdict(list)
    for item in left_out:
        groups[item.class_name, item.reason].append(item.device)
    return tuple((name, tuple(devices), reason) for (name, reason), devices in groups.items())


def _row(instance: PlacementInstance, pipeline: Pipeline) -> int:
    return instance.table.row_of_batch(pipeline.batch_size) if instance.is_throughput else 0


def _most_layers(table: CostTable, row: int, device: int, sequences: int) -> int:
    """Most middle layers that a device can hold."""
    c = int(table.device_class[device])
    free = int(table.capacity_bytes[c] - table.workspace_bytes[row, c])
    need = table.weight_prefix_bytes[c] + sequences * table.kv_prefix_bytes[c]
    sizes = need[1:] - need[:-1]
    held = 0
    for size in sorted(int(s) for s in sizes):
        if size > free:
            break
        free -= size
        held += 1
    return held


def _reason(instance: PlacementInstance, placement: Placement, device: int) -> str:
    """What the best single insertion of a device would bring."""
    table = instance.table
    small = min(placement.pipelines, key=lambda p: (p.num_in_flight, p.batch_size))
    row, sequences = _row(instance, small), small.num_in_flight
    if _most_layers(table, row, device, sequences) == 0:
        c = int(table.device_class[device])
        need = int(table.workspace_bytes[row, c] + table.weight_bytes[c].min() + sequences * table.kv_bytes[c].min())
        return (
            f"can't hold one layer with {sequences} sequences in flight: needs {format_gib(need)}, "
            f"has {format_gib(int(table.capacity_bytes[c]))}"
        )
    if all(len(p.stages) >= table.num_layers for p in placement.pipelines):
        return f"every layer has a device of its own already ({table.num_layers} layers)"
    best = _best_insertion(instance, placement, device)
    if best is None:
        return "fits at no place of the plan: memory of the neighbours or the interval cap stands against it"
    pipeline = placement.pipelines[best.pipeline]
    before = report_pipeline(table, pipeline, _row(instance, pipeline)).interval_s
    change = best.interval_s / before - 1
    layers = f"{best.layers} layer{'s' if best.layers != 1 else ''}"
    where = f"at its best place ({layers} of pipeline {best.pipeline}) the token interval would be"
    figures = f"{best.interval_s * 1e3:.4g} ms instead of {before * 1e3:.4g} ms"
    if change < -SMALL_CHANGE:
        return f"overlooked by this method: {where} {figures} ({change:+.1%})"
    if change <= SMALL_CHANGE:
        return f"would change next to nothing: {where} {figures}"
    return f"would slow the plan down: {where} {figures} ({change:+.1%})"


def _best_insertion(instance: PlacementInstance, placement: Placement, device: int) -> _Insertion | None:
    """The insertion with the largest gain (or least loss) relative to its pipeline's interval; deterministic."""
    table = instance.table
    best: tuple[float, _Insertion] | None = None
    seen: set[tuple[object, ...]] = set()
    trials = 0
    for index, pipeline in enumerate(placement.pipelines):
        stages = stage_devices(table, pipeline)
        kind = (pipeline.num_micro_batches, pipeline.batch_size, *(int(table.device_class[d]) for d in stages))
        if table.has_uniform_links and kind in seen:
            continue
        seen.add(kind)
        if len(stages) >= table.num_layers:
            continue
        row = _row(instance, pipeline)
        before = report_pipeline(table, pipeline, row).interval_s
        for position in range(len(stages) + 1):
            trials += 1
            if trials > MAX_TRIALS:
                break
            trial = _split_with(instance, pipeline, (*stages[:position], device, *stages[position:]), row)
            if trial is None:
                continue
            interval_s, counts = trial
            insertion = _Insertion(index, counts[position], interval_s)
            if best is None or interval_s / before < best[0]:
                best = interval_s / before, insertion
    return best[1] if best else None


def _split_with(
    instance: PlacementInstance, pipeline: Pipeline, devices: tuple[int, ...], row: int
) -> tuple[float, tuple[int, ...]] | None:
    """Best interval and layer counts of a pipeline over other devices, K and b kept; ``None`` when not allowed."""
    table = instance.table
    if len(devices) > table.num_layers:
        return None
    even = [1] * (len(devices) - 1) + [table.num_layers - len(devices) + 1]
    k, b = pipeline.num_micro_batches, pipeline.batch_size
    links = report_pipeline(table, pipeline_of(table, devices, even, k, b), row)  # hops don't depend on the split
    return best_split(
        table, row, devices, k, k * b, links.hops_s + links.return_s, links.occupancy_s, instance.max_interval_s
    )


def _alone(instance: PlacementInstance, placement: Placement, devices: tuple[int, ...]) -> str:
    """What the left-out devices could do together as one more pipeline; empty for the interval objective."""
    if not instance.is_throughput:
        return ""
    table = instance.table
    row, b = 1, table.batch_sizes[1]
    held = sum(min(_most_layers(table, row, d, b), table.num_layers) for d in devices)
    if held < table.num_layers:
        many = f"all {len(devices)} left-out devices together hold" if len(devices) > 1 else "alone it holds"
        own = "their own" if len(devices) > 1 else "its own"
        return f"; {many} at most {held} of {table.num_layers} layers, too few for a pipeline of {own}"
    order = tuple(sorted(devices, key=lambda d: (float(table.layer_s[row, table.device_class[d]].sum()), d)))
    chain = Pipeline(placement.pipelines[0].stages, 1, b)
    split = _split_with(instance, chain, order, row)
    if split is None:
        return "; in one chain the left-out devices would break the interval cap or their memory"
    return f"; in one chain the left-out devices would make about {b / split[0]:.3g} tokens/s"
