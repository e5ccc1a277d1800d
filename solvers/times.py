"""Times of a pipeline as linear terms over its variables, in whole ticks; reads the cost table and nothing else."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from slob_opt.cost.table import TICK_S, CostTable, to_ticks
from solvers.slots import Slot, added

Terms = dict[int, float]


@dataclass(frozen=True, slots=True)
class Clock:
    """The unit of time inside a model.

    Attributes
    ----------
    shift
        A model tick is 2^shift table ticks of 2^-30 s. With 0, the usual case, table times carry over exactly; above,
        they are rounded down, so that a model's optimum stays a bound.
    """

    shift: int = 0

    @property
    def tick_s(self) -> float:
        """Seconds of a model tick."""
        return TICK_S * 2.0**self.shift

    def ticks(self, seconds: float) -> int:
        """Return a table time in model ticks, rounded down."""
        return to_ticks(float(seconds)) >> self.shift

    def ticks_below(self, seconds: float) -> int:
        """Return any time in model ticks, rounded down."""
        return math.floor(seconds / self.tick_s)


def stage_terms(table: CostTable, slot: Slot, clock: Clock, row: int, device: int) -> Terms:
    """Return the time of a device's stage, ticks; zero when the pipeline doesn't use it."""
    c = int(table.device_class[device])
    terms: list[Terms] = [
        {slot.used[device]: clock.ticks(table.fixed_s[row, c])},
        {slot.is_first[device]: clock.ticks(table.embed_s[row, c])},
        {slot.is_last[device]: clock.ticks(table.head_s[row, c])},
    ]
    if slot.cut_first:
        done = [0]
        for layer in range(table.num_layers):  # floors of each layer add up, so that differences stay below
            done.append(done[-1] + clock.ticks(table.layer_s[row, c, layer]))
        terms.extend({slot.cut_end[device, i]: float(done[i])} for i in range(1, table.num_layers + 1))
        terms.extend({slot.cut_first[device, i]: -float(done[i])} for i in range(table.num_layers))
    else:
        per_layer = clock.ticks(table.layer_s[row, c, 0])
        terms.append({v: per_layer * k for v, k in slot.count[device].items()})
    return added(*terms)


def hop_terms(table: CostTable, slot: Slot, clock: Clock, row: int) -> Terms:
    """Return the time of all hops with the returning one, ticks."""
    if slot.forward:
        forward = {x: float(clock.ticks(table.hop_s[row, table.link_class[q]])) for q, x in slot.forward.items()}
        back = {r: float(clock.ticks(table.return_s[row, table.link_class[q]])) for q, r in slot.back.items()}
        return added(forward, back)
    link = _only_link(table)
    if link is None:
        return {}
    hop, back_hop = float(clock.ticks(table.hop_s[row, link])), float(clock.ticks(table.return_s[row, link]))
    # stages - 1 hops forward; one back unless one stage is the whole pipeline
    return added(
        dict.fromkeys(slot.used.values(), hop),
        {slot.active: back_hop - hop},
        dict.fromkeys(slot.is_whole.values(), -back_hop),
    )


def busy_terms(table: CostTable, slot: Slot, clock: Clock, row: int) -> list[Terms]:
    """Return the busy times of links and network cards, ticks, each at most the slowest one's."""
    if not slot.forward:
        link = _only_link(table)
        if link is None:
            return []
        busy = max(clock.ticks(table.occupancy_s[row, link]), clock.ticks(table.return_occupancy_s[row, link]))
        return [added({slot.active: float(busy)}, dict.fromkeys(slot.is_whole.values(), -float(busy)))]
    found: list[Terms] = []
    for d in slot.devices:  # one arc at most leaves a device, so the sum is the busy time of that arc
        found.append(
            {
                x: float(clock.ticks(table.occupancy_s[row, table.link_class[q]]))
                for q, x in slot.forward.items()
                if q[0] == d
            }
        )
    found.append(
        {r: float(clock.ticks(table.return_occupancy_s[row, table.link_class[q]])) for q, r in slot.back.items()}
    )
    return [t for t in found if any(t.values())] + _card_terms(table, slot, clock, row)


def _card_terms(table: CostTable, slot: Slot, clock: Clock, row: int) -> list[Terms]:
    """Busy times of limited network cards, by direction: bytes of all arcs that leave (enter) the node."""
    found: list[Terms] = []
    for node in np.flatnonzero(np.isfinite(table.nic_bytes_per_s)):
        speed = float(table.nic_bytes_per_s[node])
        hop, back = int(table.hop_bytes[row]) / speed, int(table.return_bytes[row]) / speed
        for side in (0, 1):
            terms: Terms = {}
            for arcs, seconds in ((slot.forward, hop), (slot.back, back)):
                for q, variable in arcs.items():
                    ends = (int(table.device_node[q[0]]), int(table.device_node[q[1]]))
                    if ends[0] != ends[1] and ends[side] == node:
                        terms[variable] = float(clock.ticks_below(seconds))
            if any(terms.values()):
                found.append(terms)
    return found


def _only_link(table: CostTable) -> int | None:
    """The one link class of a table with uniform links; ``None`` when no two devices may be used together."""
    links = table.link_class[table.link_class >= 0]
    return int(links[0]) if links.size else None


def pipeline_terms(table: CostTable, slot: Slot, clock: Clock, row: int) -> Terms:
    """Return the time of a token through all stages and hops, ticks."""
    stages = [stage_terms(table, slot, clock, row, d) for d in slot.devices]
    return added(*stages, hop_terms(table, slot, clock, row))


def longest_pass(table: CostTable, clock: Clock, row: int) -> int:
    """Return an upper limit of the time of a token through any pipeline, ticks: every device, the slowest of all."""
    classes = table.device_class
    per_device = table.fixed_s[row, classes]
    slowest_layers = table.layer_s[row].max(axis=0).sum()
    ends = float(table.embed_s[row].max() + table.head_s[row].max())
    hops = table.num_devices * float(table.hop_s[row].max()) + float(table.return_s[row].max())
    return clock.ticks_below(float(per_device.sum()) + float(slowest_layers) + ends + hops) + 2


def longest_step(table: CostTable, clock: Clock, row: int) -> int:
    """Return an upper limit of the slowest stage or busiest link of any pipeline, ticks."""
    busy = max(float(table.occupancy_s[row].max()), float(table.return_occupancy_s[row].max()))
    finite = table.nic_bytes_per_s[np.isfinite(table.nic_bytes_per_s)]
    if finite.size:
        size = table.num_devices * int(table.hop_bytes[row]) + int(table.return_bytes[row])
        busy = max(busy, size / float(finite.min()))
    return max(longest_pass(table, clock, row), clock.ticks_below(busy) + 2)
