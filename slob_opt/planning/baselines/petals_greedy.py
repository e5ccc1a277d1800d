"""Blocks chosen one server after the other where the swarm is weakest."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from slob_opt.cost.table import TICK_S, CostTable
from slob_opt.planning.baselines.fixed_split import Family, FixedSplit, shape_grid, solve_families, whole_devices
from slob_opt.planning.instance import PlacementInstance
from slob_opt.planning.result import SolveLimits, SolveResult
from slob_opt.problem.placement import Placement


class PetalsGreedyPlanner:
    """Each device joins in table order, holds as many layers as its memory takes, and takes the weakest run of layers.

    The weakest run is the one whose sorted layer throughputs are smallest. Sessions then route through the swarm:
    pipelines are taken off one by one, each time going on with the unused device that holds the next layer and reaches
    furthest; the last device executes only what is left.

    References
    ----------
    Borzunov et al. (2023), "Distributed Inference and Fine-tuning of Large Language Models Over The Internet", section
    3.2 and ``petals/server/block_selection.py`` (``_choose_best_start``). Deviations: devices join once and never
    rebalance; memory is reserved for a grid of sequences in flight, the best result counts; routes are disjoint and
    minimise the number of devices, not the measured latency.
    """

    is_baseline = True

    @property
    def name(self) -> str:
        """Name in tables and files."""
        return "petals-greedy"

    def solve(
        self, instance: PlacementInstance, *, incumbent: Placement | None = None, limits: SolveLimits | None = None
    ) -> SolveResult:
        """Return the pipelines of the greedy swarm; the incumbent is ignored."""
        return solve_families(self.name, instance, _families(instance), limits)


def most_layers(table: CostTable, row: int, device: int, sequences: int) -> int:
    """Return how many layers of average size fit a device beside its workspace and the KV of the sequences."""
    c = int(table.device_class[device])
    free = int(table.capacity_bytes[c]) - int(table.workspace_bytes[row, c])
    held = int(table.weight_prefix_bytes[c, -1]) + sequences * int(table.kv_prefix_bytes[c, -1])
    if free < 0:
        return 0
    return table.num_layers if held == 0 else min(table.num_layers, free * table.num_layers // held)


def choose_start(throughput: list[float], num_blocks: int) -> int:
    """Return the first layer of the run of `num_blocks` layers whose sorted throughputs are smallest.

    Examples
    --------
    >>> choose_start([2.0, 2.0, 0.0, 1.0, 0.0], 2)
    2
    """
    return min(
        range(len(throughput) - num_blocks + 1),
        key=lambda start: (sorted(throughput[start : start + num_blocks]), start),
    )


def _families(instance: PlacementInstance) -> Iterator[Family]:
    """Chains of the swarm for each distinct set of holdings."""
    table, seen = instance.table, set()
    devices = whole_devices(table)
    for row, sequences in shape_grid(instance):
        blocks = tuple(most_layers(table, row, d, sequences) for d in devices)
        if blocks in seen:
            continue
        seen.add(blocks)
        throughput = [0.0] * table.num_layers
        held = {}
        for device, count in zip(devices, blocks, strict=True):
            if count == 0:
                continue
            start = choose_start(throughput, count)
            held[device] = (start, start + count)
            speed = 1 / max(float(np.mean(table.layer_s[row, table.device_class[device]])), TICK_S)
            for layer in range(start, start + count):
                throughput[layer] += speed
        chains = _chains(held, table.num_layers)
        if chains:
            yield chains if instance.is_throughput else chains[:1]


def _chains(held: dict[int, tuple[int, int]], num_layers: int) -> Family:
    """Disjoint chains of devices through all layers."""
    left: dict[int, tuple[int, int]] = dict(held)
    found: list[FixedSplit] = []
    while True:
        chain, counts, layer = [], [], 0
        while layer < num_layers:
            holders = [d for d, (first, end) in left.items() if first <= layer < end]
            if not holders:
                return tuple(found)
            device = max(holders, key=lambda d: (left[d][1], -d))
            chain.append(device)
            counts.append(left[device][1] - layer)
            layer = left.pop(device)[1]
        found.append(FixedSplit(tuple(chain), tuple(counts)))
