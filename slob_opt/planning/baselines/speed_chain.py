"""One chain through all cards at the highest common rate."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from slob_opt.cost.table import CostTable
from slob_opt.planning.baselines.fixed_split import Family, FixedSplit, shape_grid, solve_families, whole_devices
from slob_opt.planning.instance import PlacementInstance
from slob_opt.planning.result import SolveLimits, SolveResult
from slob_opt.problem.placement import Placement


class SpeedChainPlanner:
    """One pipeline, fastest device first; each takes all layers it can do at the highest rate that covers the model.

    The slowest devices get what is left, possibly nothing. For throughput each batch size and a grid of sequences in
    flight are tried.

    References
    ----------
    This project's own simple rule; on the max-flow objective of Mei et al. (2025), "Helix", it beats the published
    plans (see :func:`speed_chain`), yet deep chains are weak where latency or KV memory count.
    """

    is_baseline = True

    @property
    def name(self) -> str:
        """Name in tables and files."""
        return "speed-chain"

    def solve(
        self, instance: PlacementInstance, *, incumbent: Placement | None = None, limits: SolveLimits | None = None
    ) -> SolveResult:
        """Return the chain; the incumbent is ignored."""
        return solve_families(self.name, instance, _families(instance), limits)


def speed_chain(rates: Sequence[npt.ArrayLike], num_layers: int) -> tuple[float, tuple[int, ...]] | None:
    """Return the highest rate F at which devices cover the model, and the layers each holds; ``None`` when none does.

    Parameters
    ----------
    rates
        One array for each device, (most layers it can hold,) float64, tokens/s: entry ``k - 1`` is the rate with k
        layers held.
    num_layers
        L. Layers too many are taken from the last devices.

    Examples
    --------
    >>> speed_chain([[6.0, 3.0, 2.0], [3.0, 1.5]], 3)
    (3.0, (2, 1))
    """
    tables = [np.asarray(r, dtype=np.float64) for r in rates]
    levels = np.unique(np.concatenate(tables))

    def counts(level: float) -> list[int]:
        return [int(np.max(np.flatnonzero(t >= level) + 1, initial=0)) for t in tables]

    low, high = -1, levels.size
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if sum(counts(float(levels[middle]))) >= num_layers else (low, middle)
    if low < 0:
        return None
    rest, found = num_layers, []
    for count in counts(float(levels[low])):
        found.append(min(count, rest))
        rest -= found[-1]
    return float(levels[low]), tuple(found)


def _families(instance: PlacementInstance) -> Iterator[Family]:
    """The chain for each row and number of sequences in flight."""
    table, seen = instance.table, set()
    for row, sequences in shape_grid(instance):
        order = sorted(whole_devices(table), key=lambda d: (float(table.layer_s[row, table.device_class[d]].mean()), d))
        split = _chain(table, row, order, sequences)
        if split is not None and split not in seen:
            seen.add(split)
            yield (split,)


def _chain(table: CostTable, row: int, order: list[int], sequences: int) -> FixedSplit | None:
    """Split with the smallest longest stage that the walk over devices reaches, to a relative 1e-6."""
    high = sum(table.stage_s(row, d, 0, table.num_layers) for d in order)
    best = _walk(table, row, order, sequences, high)
    if best is None:
        return None
    low = 0.0
    while high - low > 1e-6 * high:
        middle = 0.5 * (low + high)
        found = _walk(table, row, order, sequences, middle)
        if found is None:
            low = middle
        else:
            best, high = found, middle
    return best


def _walk(table: CostTable, row: int, order: list[int], sequences: int, longest_s: float) -> FixedSplit | None:
    """Give each device in turn the most layers within a stage time and its memory."""
    first, counts = 0, []
    for device in order:
        c = int(table.device_class[device])
        time_s = table.layer_prefix_s[row, c] + (table.fixed_s[row, c] + (table.embed_s[row, c] if first == 0 else 0.0))
        held = table.weight_prefix_bytes[c] + sequences * table.kv_prefix_bytes[c]
        held = held + (table.workspace_bytes[row, c] + (table.embed_bytes[c] if first == 0 else 0))
        is_allowed = (time_s - table.layer_prefix_s[row, c, first] <= longest_s) & (
            held - (held[first] - held[0]) <= table.capacity_bytes[c]
        )
        tied = int(table.tied_saving_bytes[c]) if first == 0 else 0
        is_allowed[-1] &= bool(
            time_s[-1] - table.layer_prefix_s[row, c, first] + table.head_s[row, c] <= longest_s
        ) and bool(held[-1] - (held[first] - held[0]) + table.head_bytes[row, c] - tied <= table.capacity_bytes[c])
        end = int(np.max(np.flatnonzero(is_allowed), initial=first))
        counts.append(max(0, end - first))
        first = max(first, end)
        if first == table.num_layers:
            used = len(counts)
            return FixedSplit.of_holders(order[:used], counts)
    return None
