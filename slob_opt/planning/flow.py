"""Max-flow value of a placement whose devices may be shared or replicated: an evaluator, no goal of its own.

Two views. *Holdings*: each device holds a run of layers and serves tokens at a rate, a token may go on to any device
that holds its next layer (Helix). *Placements*: tokens follow stages, a device divides its time among its slices. Both
are one small linear program: flow on arcs, conserved at nodes, with arcs and shared resources of limited capacity.

References
----------
Mei et al. (2025), "Helix: Serving Large Language Models over Heterogeneous GPUs and Network via Max-Flow", section 4.
Deviation: a device that holds several slices shares its time among them instead of having one rate.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from slob_opt.cost.table import CostTable
from slob_opt.errors import InputError
from slob_opt.planning.evaluate import format_gib, stage_devices
from slob_opt.planning.flow_program import SINK, SOURCE, Arc, largest_flow
from slob_opt.problem.placement import Placement


@dataclass(frozen=True, slots=True)
class Holding:
    """A device that holds layers ``[first, end)``.

    Attributes
    ----------
    first, end
        Half-open range of layers.
    rate
        Tokens/s that pass through all of them, the device's network card included.
    """

    first: int
    end: int
    rate: float

    def __post_init__(self) -> None:
        if not 0 <= self.first < self.end:
            raise InputError(f"holding [{self.first}, {self.end}), expected 0 <= first < end")
        if not (self.rate >= 0 and math.isfinite(self.rate)):
            raise InputError(f"rate of a holding is {self.rate!r}, expected a finite number of at least zero")


@dataclass(frozen=True, slots=True)
class FlowReport:
    """Flow of a placement.

    Attributes
    ----------
    rate
        Tokens/s.
    slice_rates
        Tokens/s through each (device, first, end).
    busy
        Share of its time that each used device works, at this rate.
    """

    rate: float
    slice_rates: Mapping[tuple[int, int, int], float]
    busy: Mapping[int, float]

    @property
    def bottlenecks(self) -> tuple[int, ...]:
        """Devices that work all the time."""
        return tuple(sorted(d for d, share in self.busy.items() if share >= 1 - 1e-9))


def network_flow(
    node_rates: Sequence[float],
    entries: Mapping[int, float],
    exits: Mapping[int, float],
    links: Mapping[tuple[int, int], float],
) -> float:
    """Return the largest flow from source to sink, tokens/s.

    Parameters
    ----------
    node_rates
        Most tokens/s through each node.
    entries, exits
        Most tokens/s from the source into a node and from a node to the sink; ``inf`` sets no limit.
    links
        Most tokens/s from a node to a node.

    Examples
    --------
    >>> network_flow([4.0, 3.0, 9.0], {0: 9.0, 1: 9.0}, {2: 9.0}, {(0, 2): 2.0, (1, 2): 8.0})
    5.0
    """
    capacity: dict[Arc, float] = {(SOURCE, v): c for v, c in entries.items()}
    capacity.update({(v, SINK): c for v, c in exits.items()})
    capacity.update(links)
    through: dict[int, dict[Arc, float]] = {v: {} for v in range(len(node_rates))}
    for arc in capacity:
        if arc[1] >= 0:
            through[arc[1]][arc] = 1.0
    limits = [(weights, float(rate)) for weights, rate in zip(through.values(), node_rates, strict=True)]
    return largest_flow(capacity, limits, len(node_rates))[0]


def flow_value(
    holdings: Sequence[Holding],
    num_layers: int,
    *,
    links: Mapping[tuple[int, int], float] | None = None,
    entries: Mapping[int, float] | None = None,
    exits: Mapping[int, float] | None = None,
    is_partial: bool = False,
) -> float:
    """Return the max-flow value of holdings, tokens/s.

    Parameters
    ----------
    holdings
        One for each device.
    num_layers
        L.
    links
        Most tokens/s from device i to device j, by (i, j); ``None`` connects every pair without limit.
    entries, exits
        Most tokens/s from the source into a device and from a device to the sink, for the devices that have such a
        link; ``None`` connects every device without limit.
    is_partial
        Whether a token that comes from layer ``e`` may enter a device in the middle of its run (``first <= e < end``);
        otherwise only at its first layer.

    Examples
    --------
    Two devices hold the first layer at 3 and 2 tokens/s, one holds the second at 4.

    >>> flow_value([Holding(0, 1, 3.0), Holding(0, 1, 2.0), Holding(1, 2, 4.0)], 2)
    4.0
    """
    count = range(len(holdings))
    every_link = {(i, j): math.inf for i in count for j in count if i != j}
    every_end = dict.fromkeys(count, math.inf)

    def may_follow(i: int, j: int) -> bool:
        end = holdings[i].end
        return holdings[j].first <= end < holdings[j].end if is_partial else end == holdings[j].first

    return network_flow(
        [h.rate for h in holdings],
        {v: c for v, c in (every_end if entries is None else entries).items() if holdings[v].first == 0},
        {v: c for v, c in (every_end if exits is None else exits).items() if holdings[v].end == num_layers},
        {(i, j): c for (i, j), c in (every_link if links is None else links).items() if may_follow(i, j)},
    )


def cover_value(holdings: Sequence[Holding], num_layers: int) -> float:
    """Return the smallest sum over layers of the rates of the devices that hold the layer, tokens/s.

    An upper limit on the flow, and equal to it with partial use of held layers and without binding links.

    Examples
    --------
    >>> cover_value([Holding(0, 2, 3.0), Holding(1, 3, 2.0), Holding(2, 3, 2.0)], 3)
    3.0
    """
    total = np.zeros(num_layers)
    for h in holdings:
        total[h.first : h.end] += h.rate
    return float(total.min())


def device_rate(table: CostTable, device: int, first: int, end: int) -> float:
    """Return the most output tokens/s of a device that holds and executes ``[first, end)``, 0.0 when they don't fit.

    The best throughput row whose b sequences fit the device's memory beside the layers.
    """
    best = 0.0
    for row, b in enumerate(table.batch_sizes):
        if row and _held_bytes(table, row, device, {(first, end)}, b) <= _capacity(table, device):
            time_s = table.stage_s(row, device, first, end)
            best = max(best, b / time_s if time_s else math.inf)
    return best


def placement_flow(table: CostTable, placement: Placement) -> FlowReport:
    """Return the max flow of a placement, output tokens/s, each device dividing its time among its slices.

    Tokens may change between pipelines wherever the layers meet. A device works in the batch size at which its slices,
    each with that many sequences, fit its memory and one token through all of them takes least time. Links and network
    cards carry what a token of their row weighs at most.

    Parameters
    ----------
    table
        Times and bytes; rows 1 and on are used.
    placement
        Pipelines may share devices and repeat stages.

    Raises
    ------
    InputError
        When a device's slices don't fit its memory, or overlap in part, or cards form no planning device.
    """
    slices: dict[int, set[tuple[int, int]]] = {}
    for pipeline in placement.pipelines:
        if pipeline.num_layers != table.num_layers:
            raise InputError(f"a pipeline executes {pipeline.num_layers} layers, the model has {table.num_layers}")
        for device, stage in zip(stage_devices(table, pipeline), pipeline.stages, strict=True):
            slices.setdefault(device, set()).add((stage.first, stage.end))
    nodes = [(device, first, end) for device in sorted(slices) for first, end in sorted(slices[device])]
    rows = {device: _best_row(table, device, slices[device]) for device in slices}
    capacity: dict[Arc, float] = {}
    for v, (device, first, end) in enumerate(nodes):
        if first == 0:
            capacity[SOURCE, v] = math.inf
        if end == table.num_layers:
            capacity[v, SINK] = math.inf
        for w, (other, start, _) in enumerate(nodes):
            if start == end and other != device and table.link_class[device, other] >= 0:
                capacity[v, w] = math.inf
    limits = [*_time_limits(table, nodes, rows, capacity), *_link_limits(table, nodes, rows, capacity)]
    rate, flow = largest_flow(capacity, limits, len(nodes))
    through = [sum(x for (_, w), x in flow.items() if w == v) for v in range(len(nodes))]
    busy = dict.fromkeys(sorted(slices), 0.0)
    for v, (device, first, end) in enumerate(nodes):
        busy[device] += through[v] * _token_s(table, rows[device], device, first, end)
    return FlowReport(rate, dict(zip(nodes, through, strict=True)), busy)


_Nodes = list[tuple[int, int, int]]
_Limits = list[tuple[dict[Arc, float], float]]


def _time_limits(table: CostTable, nodes: _Nodes, rows: Mapping[int, int], capacity: Mapping[Arc, float]) -> _Limits:
    """Seconds of each device's time that a token/s on each arc takes, at most 1 in total."""
    limits: dict[int, dict[Arc, float]] = {device: {} for device in rows}
    for arc in capacity:
        if arc[1] >= 0:
            device, first, end = nodes[arc[1]]
            limits[device][arc] = _token_s(table, rows[device], device, first, end)
    return [(weights, 1.0) for _, weights in sorted(limits.items())]


def _link_limits(table: CostTable, nodes: _Nodes, rows: Mapping[int, int], capacity: Mapping[Arc, float]) -> _Limits:
    """Seconds of each link's time, and bytes of each network card, that a token/s on each arc takes."""
    links: dict[tuple[int, int], dict[Arc, float]] = {}
    cards: dict[tuple[int, bool], dict[Arc, float]] = {}
    for arc in capacity:
        if min(arc) < 0:
            continue
        a, b = nodes[arc[0]][0], nodes[arc[1]][0]
        row = rows[a]
        sequences = table.batch_sizes[row]
        occupancy_s = float(table.occupancy_s[row, table.link_class[a, b]])
        links.setdefault((a, b), {})[arc] = occupancy_s / sequences
        source, target = int(table.device_node[a]), int(table.device_node[b])
        if source != target:
            each = int(table.hop_bytes[row]) / sequences
            cards.setdefault((source, True), {})[arc] = each
            cards.setdefault((target, False), {})[arc] = each
    found: _Limits = [(weights, 1.0) for _, weights in sorted(links.items())]
    for (node, _), weights in sorted(cards.items()):
        if np.isfinite(table.nic_bytes_per_s[node]):
            found.append((weights, float(table.nic_bytes_per_s[node])))
    return found


def _capacity(table: CostTable, device: int) -> int:
    """Usable bytes of a card of a device."""
    return int(table.capacity_bytes[table.device_class[device]])


def _held_bytes(table: CostTable, row: int, device: int, slices: set[tuple[int, int]], sequences: int) -> int:
    """Bytes a card holds for the union of its slices: shared layers once, workspace once."""
    merged: list[list[int]] = []
    for first, end in sorted(slices):
        if merged and first <= merged[-1][1]:
            merged[-1][1] = max(merged[-1][1], end)
        else:
            merged.append([first, end])
    parts = [table.stage_memory(row, device, first, end, sequences) for first, end in merged]
    held = sum(sum(part.values()) for part in parts) - (len(parts) - 1) * parts[0]["workspace"]
    if len(merged) > 1 and merged[0][0] == 0 and merged[-1][1] == table.num_layers:
        held -= int(table.tied_saving_bytes[table.device_class[device]])
    return held


def _best_row(table: CostTable, device: int, slices: set[tuple[int, int]]) -> int:
    """Throughput row with the shortest time a token over all slices, among those that fit memory."""
    fitting = [
        row
        for row, b in enumerate(table.batch_sizes)
        if row and _held_bytes(table, row, device, slices, b) <= _capacity(table, device)
    ]
    if not fitting:
        need = min(
            _held_bytes(table, row, device, slices, b) for row, b in enumerate(table.batch_sizes) if row
        ) if len(table.batch_sizes) > 1 else 0  # fmt: skip
        raise InputError(
            f"{table.device_names[device]} needs {format_gib(need)} for its slices "
            f"{', '.join(f'[{first}, {end})' for first, end in sorted(slices))} "
            f"and has {format_gib(_capacity(table, device))}"
        )
    return min(fitting, key=lambda row: (sum(_token_s(table, row, device, *s) for s in slices), row))


def _token_s(table: CostTable, row: int, device: int, first: int, end: int) -> float:
    """Seconds of a device's time for one output token through a slice."""
    return table.stage_s(row, device, first, end) / table.batch_sizes[row]
