"""Layers in proportion to speed."""

from __future__ import annotations

from collections.abc import Iterator

from slob_opt.cost.table import TICK_S
from slob_opt.planning.baselines.fixed_split import (
    Family,
    FixedSplit,
    largest_remainder,
    solve_families,
    whole_devices,
)
from slob_opt.planning.instance import PlacementInstance
from slob_opt.planning.result import SolveLimits, SolveResult
from slob_opt.problem.placement import Placement


class SpeedProportionalPlanner:
    """One pipeline through all devices, fastest first, layers in proportion to layers a second.

    The rule behind hand-set layer splits such as llama.cpp's ``--tensor-split`` by benchmark. Memory is not looked at.
    Shares are rounded by largest remainder; a device whose share is no layer is left out. For throughput the speeds of
    each batch size are tried.
    """

    is_baseline = True

    @property
    def name(self) -> str:
        """Name in tables and files."""
        return "speed-proportional"

    def solve(
        self, instance: PlacementInstance, *, incumbent: Placement | None = None, limits: SolveLimits | None = None
    ) -> SolveResult:
        """Return the split by speed; the incumbent is ignored."""
        return solve_families(self.name, instance, _families(instance), limits)


def _families(instance: PlacementInstance) -> Iterator[Family]:
    """One pipeline for each distinct set of shares."""
    table, seen = instance.table, set()
    devices = whole_devices(table)
    for row in sorted({row for row, _, _ in instance.shapes()}):
        layer_s = {d: max(float(table.layer_s[row, table.device_class[d]].mean()), TICK_S) for d in devices}
        order = sorted(devices, key=lambda d: (layer_s[d], d))
        split = FixedSplit.of_holders(order, largest_remainder([1 / layer_s[d] for d in order], table.num_layers))
        if split not in seen:
            seen.add(split)
            yield (split,)
