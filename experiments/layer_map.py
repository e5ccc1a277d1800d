"""Which device holds which layers, as data for the screen's coloured bar and for the plot."""

from __future__ import annotations

from dataclasses import dataclass

from slob_opt.cost.table import CostTable
from slob_opt.planning.evaluate import Evaluation
from slob_opt.problem.placement import Placement

PALETTE = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#8C6D31", "#7F7F7F", "#4B3F8F")
"""Colours of device classes, told apart by colour-blind readers too (first seven: Okabe & Ito 2008)."""


@dataclass(frozen=True, slots=True)
class LayerBlock:
    """One stage.

    Attributes
    ----------
    device
        Name of the planning device.
    class_index
        Class of the device; colours follow it.
    first, end
        Layers ``[first, end)``.
    memory_bytes, capacity_bytes
        Bytes a card holds and may hold.
    time_s
        Time in one iteration, seconds.
    is_bottleneck
        Whether no stage of the pipeline is slower.
    """

    device: str
    class_index: int
    first: int
    end: int
    memory_bytes: int
    capacity_bytes: int
    time_s: float
    is_bottleneck: bool

    @property
    def memory_use(self) -> float:
        """Share of the usable memory that is taken; above 1 the stage does not fit."""
        return self.memory_bytes / self.capacity_bytes


@dataclass(frozen=True, slots=True)
class LayerRow:
    """One pipeline.

    Attributes
    ----------
    blocks
        Stages in execution order.
    num_micro_batches, batch_size
        K and b.
    interval_s
        Token interval, seconds.
    rate
        Output tokens/s, before shared network cards limit it.
    """

    blocks: tuple[LayerBlock, ...]
    num_micro_batches: int
    batch_size: int
    interval_s: float
    rate: float


@dataclass(frozen=True, slots=True)
class LayerMap:
    """A placement to look at.

    Attributes
    ----------
    num_layers
        L.
    rows
        Pipelines, in the placement's order.
    class_names
        Names of all device classes, by class index.
    class_counts
        Planning devices per class: (used, all).
    left_out
        (name, class index) of devices without work, in table order.
    """

    num_layers: int
    rows: tuple[LayerRow, ...]
    class_names: tuple[str, ...]
    class_counts: tuple[tuple[int, int], ...]
    left_out: tuple[tuple[str, int], ...]

    @property
    def used_classes(self) -> tuple[int, ...]:
        """Classes that appear in rows, ascending."""
        return tuple(sorted({block.class_index for row in self.rows for block in row.blocks}))

    @property
    def min_headroom_bytes(self) -> int:
        """Fewest free bytes on any card that works; negative when one is over-full."""
        return min(block.capacity_bytes - block.memory_bytes for row in self.rows for block in row.blocks)


def colour(class_index: int) -> str:
    """Return the colour of a device class as ``#RRGGBB``; colours repeat after ten classes."""
    return PALETTE[class_index % len(PALETTE)]


def left_out_devices(table: CostTable, placement: Placement) -> tuple[int, ...]:
    """Return planning devices of which no card works, each card once (by the smallest group that holds it)."""
    used = set(placement.used_cards)
    found = []
    covered: set[int] = set()
    for device in sorted(range(table.num_devices), key=lambda d: (len(table.device_cards[d]), d)):
        cards = set(table.device_cards[device])
        if not cards & used and not cards & covered:
            found.append(device)
            covered |= cards
    return tuple(sorted(found))


def distinct_names(table: CostTable) -> tuple[str, ...]:
    """Return class names, told apart by a device where two classes have the same name."""
    names = table.class_names
    first = {int(c): table.device_names[d] for d, c in reversed(list(enumerate(table.device_class)))}
    return tuple(f"{name} (as {first[c]})" if names.count(name) > 1 else name for c, name in enumerate(names))


def layer_map(table: CostTable, placement: Placement, evaluation: Evaluation) -> LayerMap:
    """Return the layer map of a placement and its evaluation (which may have violations)."""
    rows = []
    used: set[int] = set()
    for pipeline, report in zip(placement.pipelines, evaluation.pipelines, strict=False):
        slowest = report.bottleneck
        used |= {stage.device for stage in report.stages}
        rows.append(
            LayerRow(
                blocks=tuple(
                    LayerBlock(
                        device=table.device_names[stage.device],
                        class_index=int(table.device_class[stage.device]),
                        first=stage.first,
                        end=stage.end,
                        memory_bytes=stage.memory_bytes,
                        capacity_bytes=stage.capacity_bytes,
                        time_s=stage.time_s,
                        is_bottleneck=index == slowest,
                    )
                    for index, stage in enumerate(report.stages)
                ),
                num_micro_batches=pipeline.num_micro_batches,
                batch_size=pipeline.batch_size,
                interval_s=report.interval_s,
                rate=report.rate,
            )
        )
    classes = [int(c) for c in table.device_class]
    return LayerMap(
        num_layers=table.num_layers,
        rows=tuple(rows),
        class_names=distinct_names(table),
        class_counts=tuple((sum(classes[d] == c for d in used), classes.count(c)) for c in range(table.num_classes)),
        left_out=tuple((table.device_names[d], classes[d]) for d in left_out_devices(table, placement)),
    )
