"""What a formulation hands to a back end: the model, its pipelines, and what its numbers mean."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from slob_opt.cost.table import CostTable
from slob_opt.errors import InputError
from slob_opt.planning.instance import PlacementInstance
from slob_opt.problem.placement import Pipeline, Placement, Stage
from solvers.integer_model import IntegerModel
from solvers.slots import LayerForm, RouteForm, Slot, has_free_order


@dataclass(frozen=True, slots=True)
class Formulation:
    """A model of an instance.

    Attributes
    ----------
    model
        Minimised.
    slots
        Pipelines that may exist, with the ids of their variables.
    unit
        Seconds (`interval`) or tokens/s (`throughput`) of one unit of the model's objective.
    bound_slack
        What the model's optimum may lie above the true one at most, in units; taken off each bound.
    tick_s
        Seconds of a model tick, for reports.
    """

    model: IntegerModel
    slots: tuple[Slot, ...]
    unit: float
    bound_slack: float
    tick_s: float

    def natural_bound(self, model_bound: float) -> float:
        """Return a bound on the instance's objective from a bound on the model's."""
        return (model_bound - self.bound_slack) * self.unit


def choose_forms(table: CostTable, *, has_circuit: bool, is_multiplied: bool) -> tuple[LayerForm, RouteForm]:
    """Return how a model tells layers and routes of a table.

    Parameters
    ----------
    has_circuit
        Whether the back end knows circuits.
    is_multiplied
        Whether times are multiplied by a real variable, which needs 0/1 variables.
    """
    counted = LayerForm.BITS if is_multiplied else LayerForm.COUNT
    layers = counted if table.has_identical_layers else LayerForm.CUTS
    if has_free_order(table):
        return layers, RouteForm.NONE if table.has_identical_layers else RouteForm.CUTS
    return layers, RouteForm.CIRCUIT if has_circuit else RouteForm.FLOW


def work_rates(instance: PlacementInstance) -> tuple[float, ...]:
    """Return (D,) tokens/s that each device adds at most to the rate of its pipeline.

    Layers carry weights that sum to 1, in proportion to their times on the first class. A pipeline of rate rho passes
    each layer rho times a second, and a device that holds layers of weight w spends at most all its time on them, so
    ``rho * w <= b * w / stage time``; its pipeline's rate is the sum over its devices. FORMULATION.md, section 2.

    Raises
    ------
    InputError
        When a stage takes no time at all.
    """
    table = instance.table
    weight = np.diff(table.layer_prefix_s[0, int(table.device_class[0])])
    share = np.full(table.num_layers, 1 / table.num_layers) if weight.sum() == 0 else weight / weight.sum()
    done = np.concatenate([[0.0], np.cumsum(share)])
    best = np.zeros(table.num_classes)
    for row in sorted({shape[0] for shape in instance.shapes()}):
        for c in range(table.num_classes):
            prefix = table.layer_prefix_s[row, c]
            first, end = np.triu_indices(table.num_layers + 1, k=1)
            seconds = table.fixed_s[row, c] + prefix[end] - prefix[first]
            if not np.all(seconds > 0):
                raise InputError(f"a stage of class {table.class_names[c]} takes no time, so rates have no limit")
            rates = table.batch_sizes[row] * (done[end] - done[first]) / seconds
            best[c] = max(best[c], float(rates.max()))
    return tuple(float(best[c]) for c in table.device_class)


def fastest_pass_s(table: CostTable, row: int) -> float:
    """Return a lower limit of the time of a token through any pipeline, seconds: each layer where it is fastest."""
    used = sorted({int(c) for c in table.device_class})
    return float(table.layer_s[row][used].min(axis=0).sum() + table.fixed_s[row][used].min())


def decode(table: CostTable, slots: tuple[Slot, ...], values: Mapping[int, float]) -> Placement | None:
    """Return the placement that a solution's values tell, or ``None`` when they tell none."""
    pipelines = []
    for slot in slots:
        if values[slot.active] < 0.5:
            continue
        shape = max(slot.shapes, key=lambda pair: values[pair[1]])[0]
        stages: list[Stage] = []
        done = 0
        for d in _route(slot, values):
            end = done + round(sum(k * values[v] for v, k in slot.count[d].items()))
            if end <= done:
                return None
            stages.append(Stage(table.device_cards[d], done, end))
            done = end
        if done != table.num_layers:
            return None
        pipelines.append(Pipeline(tuple(stages), shape[1], shape[2]))
    return Placement(tuple(pipelines)) if pipelines else None


def _route(slot: Slot, values: Mapping[int, float]) -> list[int]:
    """Devices in stage order."""
    used = [d for d in slot.devices if values[slot.used[d]] > 0.5]
    if slot.cut_first:
        firsts = {d: sum(i * values[v] for (e, i), v in slot.cut_first.items() if e == d) for d in used}
        return sorted(used, key=lambda d: firsts[d])
    if not slot.forward:
        return sorted(used, key=lambda d: (values[slot.is_first[d]] < 0.5, values[slot.is_last[d]] > 0.5, d))
    following = {d: e for (d, e), x in slot.forward.items() if values[x] > 0.5}
    route = [d for d in used if values[slot.is_first[d]] > 0.5]
    while route and route[-1] in following and len(route) <= len(used):
        route.append(following[route[-1]])
    return route
