"""Layers in proportion to memory."""

from __future__ import annotations

from slob_opt.planning.baselines.fixed_split import Family, FixedSplit, solve_families, whole_devices
from slob_opt.planning.instance import PlacementInstance
from slob_opt.planning.result import SolveLimits, SolveResult
from slob_opt.problem.placement import Placement


class MemoryProportionalPlanner:
    """One pipeline through all devices, largest memory first, layers in proportion to memory.

    References
    ----------
    exo, ``exo/topology/ring_memory_weighted_partitioning_strategy.py`` and ``partitioning_strategy.py`` (2024): shares
    rounded to five digits, cut points rounded down, the last device takes what is left. Deviations: memory is what the
    cost table calls usable; equal memories keep table order; a device whose share is no layer is left out.
    """

    is_baseline = True

    @property
    def name(self) -> str:
        """Name in tables and files."""
        return "memory-proportional"

    def solve(
        self, instance: PlacementInstance, *, incumbent: Placement | None = None, limits: SolveLimits | None = None
    ) -> SolveResult:
        """Return the ring of memory shares; the incumbent is ignored."""
        return solve_families(self.name, instance, [_ring(instance)], limits)


def _ring(instance: PlacementInstance) -> Family:
    """The one pipeline of the rule."""
    table = instance.table
    memory = {
        d: int(table.capacity_bytes[table.device_class[d]]) * len(table.device_cards[d]) for d in whole_devices(table)
    }
    order = sorted(memory, key=lambda d: (-memory[d], d))
    total, start, counts = sum(memory.values()), 0.0, []
    for device in order:
        end = round(start + memory[device] / total, 5)
        counts.append(int(end * table.num_layers) - int(start * table.num_layers))
        start = end
    counts[-1] += table.num_layers - sum(counts)
    return (FixedSplit.of_holders(order, counts),)
