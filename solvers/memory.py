"""Memory as counts of layers, decided in exact bytes, so that no model holds a byte."""

from __future__ import annotations

from dataclasses import dataclass

from slob_opt.cost.table import CostTable


def fits(table: CostTable, row: int, device: int, layers: tuple[int, int], sequences: int) -> bool:
    """Whether a stage with layers ``[first, end)`` fits the memory of a device's cards, in exact bytes."""
    need = sum(table.stage_memory(row, device, *layers, sequences).values())
    return need <= int(table.capacity_bytes[table.device_class[device]])


@dataclass(frozen=True, slots=True)
class LayerCounts:
    """Most layers of a device in one pipeline shape, by role; for identical layers.

    Attributes
    ----------
    middle, first, last
        Most layers when the stage is neither end, the first only, the last only; 0 when not even one fits.
    has_whole
        Whether the whole model fits.
    """

    middle: int
    first: int
    last: int
    has_whole: bool


def _most(table: CostTable, row: int, device: int, sequences: int, *, start: int, is_last: bool) -> int:
    """Largest count of layers that fits, counted from `start` or up to the last layer; 0 when none."""
    num_layers = table.num_layers
    low, high = 0, num_layers - 1  # an end of a longer pipeline leaves at least one layer to others
    while low < high:
        count = (low + high + 1) // 2
        first, end = (num_layers - count, num_layers) if is_last else (start, start + count)
        if end == num_layers and not is_last:
            high = count - 1
        elif fits(table, row, device, (first, end), sequences):
            low = count
        else:
            high = count - 1
    return low


def layer_counts(table: CostTable, row: int, device: int, sequences: int) -> LayerCounts:
    """Return how many (identical) layers fit by role; more layers never take fewer bytes, so bisection finds it."""
    return LayerCounts(
        middle=_most(table, row, device, sequences, start=1, is_last=False) if table.num_layers > 2 else 0,
        first=_most(table, row, device, sequences, start=0, is_last=False),
        last=_most(table, row, device, sequences, start=0, is_last=True),
        has_whole=fits(table, row, device, (0, table.num_layers), sequences),
    )


def misfits(table: CostTable, row: int, device: int, sequences: int) -> tuple[tuple[int, ...], ...]:
    """Return, for each first layer (L entries), the ends that don't fit; for unequal layers."""
    num_layers = table.num_layers
    return tuple(
        tuple(e for e in range(first + 1, num_layers + 1) if not fits(table, row, device, (first, e), sequences))
        for first in range(num_layers)
    )
