"""A known placement as values of a model's variables, for warm starts."""

from __future__ import annotations

import itertools

from slob_opt.cost.table import CostTable
from slob_opt.problem.placement import Placement
from solvers.formulation import Formulation
from solvers.slots import Slot
from solvers.symmetry import canonical_placement, devices_of, exchangeable_groups

Stages = list[tuple[int, int, int]]
"""(device, first layer, end) in execution order."""


def encode(table: CostTable, formulation: Formulation, placement: Placement) -> dict[int, float] | None:
    """Return values of the whole-number variables for a placement, in the order that the symmetry rows ask for.

    Times and rates are left to the back end. ``None`` when the model has no place for the placement (a shape outside
    its list).
    """
    model = formulation.model
    derived = ("T", "S[", "S0[", "M[", "t[", "rho[", "KB", "B", "one[")
    values = {
        i: 0.0
        for i, variable in enumerate(model.variables)
        if variable.is_integer and not variable.name.startswith(derived)
    }
    by_index = {slot.index: slot for slot in formulation.slots}
    for pipeline in canonical_placement(table, placement).pipelines:
        devices = devices_of(table, pipeline)
        slot = by_index.get(min(devices)) if len(by_index) > 1 else formulation.slots[0]
        stages = [(d, s.first, s.end) for d, s in zip(devices, pipeline.stages, strict=True)]
        shape = next(
            (
                (s, y)
                for s, y in (slot.shapes if slot else ())
                if (s[1], table.batch_sizes[s[0]]) == (pipeline.num_micro_batches, pipeline.batch_size)
            ),
            None,
        )
        if slot is None or shape is None:
            return None
        values[slot.active] = values[shape[1]] = 1.0
        if not slot.forward and not slot.cut_first:
            stages = _by_role(table, stages)
        _set_stages(values, slot, stages, table.num_layers)
    for i, variable in enumerate(model.variables):
        if variable.name.startswith("z["):
            p, row = variable.name[2:-1].split(",")
            chosen = [y for s, y in by_index[int(p)].shapes if s[0] == int(row)]
            values[i] = sum(values[y] for y in chosen)
    return values


def _by_role(table: CostTable, stages: Stages) -> Stages:
    """Hand the stages of equal devices out anew: larger role and count to the smaller device."""
    found = list(stages)
    last = len(stages) - 1
    for group in exchangeable_groups(table):
        places = [i for i, (d, _, _) in enumerate(stages) if d in group]
        devices = sorted(stages[i][0] for i in places)
        places.sort(key=lambda i: (i == 0, i == last, stages[i][2] - stages[i][1]), reverse=True)
        for device, i in zip(devices, places, strict=True):
            found[i] = (device, stages[i][1], stages[i][2])
    return found


def _set_stages(values: dict[int, float], slot: Slot, stages: Stages, num_layers: int) -> None:
    for i, (d, first, end) in enumerate(stages):
        values[slot.used[d]] = 1.0
        values[slot.is_first[d]] = float(i == 0)
        values[slot.is_last[d]] = float(i == len(stages) - 1)
        values[slot.is_whole[d]] = float(len(stages) == 1)
        if slot.cut_first:
            values[slot.cut_first[d, first]] = values[slot.cut_end[d, end]] = 1.0
        else:
            left = end - first
            for variable, weight in sorted(slot.count[d].items(), key=lambda item: -item[1]):
                digit = left if len(slot.count[d]) == 1 else int(left >= weight)
                values[variable] = float(digit)
                left -= int(digit * weight)
        if slot.start:
            values[slot.start[d]] = float(first)
    if slot.forward:
        for a, b in itertools.pairwise(stages):
            values[slot.forward[a[0], b[0]]] = 1.0
        if len(stages) > 1:
            values[slot.back[stages[-1][0], stages[0][0]]] = 1.0
